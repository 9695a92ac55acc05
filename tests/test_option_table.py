"""The options of an embedding variable have one table, OPTION_ATTRS. What repeats its names has all of them and no others."""

import inspect

import pytest
from tensorflow.python.framework import op_def_registry

from tf_multitier import handle_attrs
from tf_multitier import engine
from tf_multitier import options

OPTIONS = set(handle_attrs.OPTION_ATTRS)

# What an op has in addition.
OPS = {
    "MultitierEmbeddingVariableHandle": {"container", "shared_name"},
    "MultitierHbmEmbeddingVariableHandle": {"container", "shared_name"},
    "MultitierInitialize": set(),
    "MultitierReadPart": {"variable_name", "resize", "convert"},
    "MultitierRestore": {"variable_name", "resize", "convert"},
}

# What the engine's Table calls otherwise, has in addition, or has not: the type of keys, shape and partitions belong to the variable.
ENGINE_NAMES = {
    "dtype": "value_dtype",
    "initializer_a": "a",
    "initializer_b": "b",
    "initializer_lower": "lower",
    "initializer_upper": "upper",
    "storage_sizes": "storage_size",
}
ENGINE_ONLY = {"device", "dim", "matrix", "name", "num_shards", "slots"}
VARIABLE_ONLY = {
    "default_value_dim",
    "not_admitted_parameters",
    "not_admitted_seed",
    "evaluation_parameters",
    "evaluation_seed",
    "key_dtype",
    "num_partitions",
    "partition_index",
    "read_only",
    "in_place",
    "shape",
}


@pytest.mark.parametrize("op, more", OPS.items())
def test_an_op_has_every_option_as_an_attribute_and_no_other(op, more):
    attributes = {attr.name for attr in op_def_registry.get(op).attr}
    assert attributes - more == OPTIONS


def test_the_table_of_the_engine_has_every_option_as_an_argument_and_no_other():
    arguments = set(inspect.signature(engine.Table.__init__).parameters) - {"self"}
    expected = {ENGINE_NAMES.get(name, name) for name in OPTIONS - VARIABLE_ONLY}
    assert arguments - ENGINE_ONLY == expected


def test_option_objects_give_options_of_the_table_alone():
    given = options.EmbeddingVariableOption(
        filter_option=options.CBFFilter(3, 1000),
        evict_option=options.GlobalStepEvict(5),
        storage_option=options.StorageOption("DRAM"),
    )
    found = set(options.option_attrs("name", given, given.storage_option))
    assert found <= OPTIONS
    assert {
        "filter",
        "filter_freq",
        "filter_max_elements",
        "steps_to_live",
        "storage_type",
    } <= found
