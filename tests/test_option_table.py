"""The options of an embedding variable have one table, OPTION_ATTRS. What repeats its names has all of them and no others."""

import inspect
import pathlib
import re

import pytest
from tensorflow.python.framework import op_def_registry

from tf_multitier import handle_attrs
from tf_multitier import engine
from tf_multitier import options

OPTIONS = set(handle_attrs.OPTION_ATTRS)
SOURCES = pathlib.Path(__file__).resolve().parent.parent / "cc"

# The options of the first SavedModels. An option that is not one of them has a value in NEWER_ATTRS.
FIRST_OPTIONS = set(
    """dtype key_dtype shape initializer initializer_a initializer_b seed default_value_dim default_value_no_permission filter
    filter_freq filter_max_elements filter_false_positive filter_counter_bits filter_probability steps_to_live
    l2_weight_threshold storage_type storage_path storage_sizes cache_strategy drop_coldest on_corruption keep read_only in_place
    partition_index num_partitions""".split()
)

# What an op has in addition.
OPS = {
    "MultitierEmbeddingVariableHandle": {"container", "shared_name"},
    "MultitierHbmEmbeddingVariableHandle": {"container", "shared_name"},
    "MultitierInitialize": set(),
    "MultitierReadPart": {"variable_name", "resize", "convert", "rename_slots", "check_only"},
    "MultitierRestore": {"variable_name", "resize", "convert", "rename_slots"},
}

# What the engine's Table calls otherwise, has in addition, or has not: shape and partitions belong to the variable.
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


def names_in(path):
    """The strings in a C++ source that may be names of options."""
    return set(re.findall(r'"([a-z0-9_]+)"', (SOURCES / path).read_text()))


def test_the_kernels_read_every_option():
    # Initial values of other keys are read by one function: attr + "_seed".
    read = names_in("kernels/embedding_variable.cc")
    read |= {
        base + suffix
        for base in ("not_admitted", "evaluation")
        for suffix in read
        if suffix in ("_parameters", "_seed")
    }
    assert OPTIONS - read == set()


def test_the_binding_of_the_engine_reads_every_argument():
    # The type of keys is known to Python alone. Sizes have another name there.
    options = {ENGINE_NAMES.get(name, name) for name in OPTIONS - VARIABLE_ONLY}
    assert options - names_in("python/py_table.cc") == {"storage_size", "key_dtype"}
    assert "storage_sizes" in names_in("python/py_table.cc")


def test_a_newer_option_has_a_value_for_models_of_before_it():
    assert set(handle_attrs.NEWER_ATTRS) == OPTIONS - FIRST_OPTIONS
