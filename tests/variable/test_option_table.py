"""The options of a table are one array, in the engine. What takes them in Python or describes them has them from it."""

import inspect
import json

import numpy as np
import pytest
from tensorflow.python.framework import op_def_registry

import tf_multitier
from tf_multitier import engine
from tf_multitier import options
from tf_multitier._src.options import handle_attrs
from tf_multitier._src.options import option_record
from tf_multitier._src.options import storage_option

DESCRIPTIONS = option_record.DESCRIPTIONS

# What an op has besides the attributes of the variable.
OPS = {
    "MultitierEmbeddingVariableHandle": {"container", "shared_name"},
    "MultitierHbmEmbeddingVariableHandle": {"container", "shared_name"},
    "MultitierInitialize": set(),
    "MultitierReadPart": {"variable_name", "resize", "convert", "rename_slots", "check_only"},
    "MultitierRestore": {"variable_name", "resize", "convert", "rename_slots"},
}


@pytest.mark.parametrize("op, more", OPS.items())
def test_an_op_has_the_record_and_no_option_of_its_own(op, more):
    attributes = {attr.name for attr in op_def_registry.get(op).attr}
    assert attributes - more == set(handle_attrs.HANDLE_ATTRS)


def test_an_option_of_storage_has_the_name_and_default_of_the_record():
    parameters = inspect.signature(options.StorageOption).parameters
    assert set(parameters) <= {name for name, each in DESCRIPTIONS.items() if each["in_variable"]}
    given = {name: each.default for name, each in parameters.items() if each.default is not None}
    assert given == {name: DESCRIPTIONS[name]["default"] for name in given}
    made = storage_option.storage_record("ev", options.StorageOption())
    assert option_record.check(made) == option_record.complete(option_record.text_of({}))


FILTERS = {
    options.CounterFilter: (3, 10),
    options.CBFFilter: (3, 1000),
    options.ProbabilisticFilter: (0.5,),
}


def test_every_option_of_a_variable_has_a_way_into_its_record():
    filters = [kind(*given)._record() for kind, given in FILTERS.items()]
    fields = {field["name"] for field in DESCRIPTIONS["filter"]["fields"]}
    assert set().union(*filters) == fields
    given = options.EmbeddingVariableOption(
        evict_option=[options.GlobalStepEvict(5), options.L2WeightEvict(1.0)]
    )
    made = options.record_of("name", given, options.StorageOption())
    of_the_variable = {"initializer", "initializers", "read_only", "in_place"}  # variable_scope.py
    assert set(made) | of_the_variable == {
        name for name, each in DESCRIPTIONS.items() if each["in_variable"]
    }


def test_a_class_of_options_says_the_words_of_the_record():
    for function, names in (
        (options.StorageOption, storage_option.OPTIONS),
        (engine.Table.__init__, ["filter", "storage_type", "num_shards", "keep"]),
    ):
        said = " ".join(function.__doc__.split())
        assert "{options}" not in said
        for name in names:
            assert f"{name}: {DESCRIPTIONS[name]['text']}" in said


def test_a_table_takes_options_by_name_or_as_a_mapping_and_no_other():
    by_name = engine.Table(2, "uniform", a=-1.0, b=1.0, seed=7, filter="counter", filter_freq=2)
    given = {
        "initializer": {"kind": "uniform", "a": -1.0, "b": 1.0, "seed": 7},
        "filter": {"kind": "counter", "filter_freq": 2},
    }
    as_mapping = engine.Table(2, options=given)
    for table in (by_name, as_mapping):
        table.apply("sgd", [1, 1], np.zeros((2, 2)), hyper={"learning_rate": 0.1})
    np.testing.assert_array_equal(by_name.lookup([1, 2]), as_mapping.lookup([1, 2]))
    assert by_name.lookup([1]).any()
    with pytest.raises(
        ValueError,
        match="storage_sizes: expected an option of a table, found none of that name: did you mean 'storage_size'?",
    ):
        engine.Table(2, storage_sizes=[1])
    for given in ({"seed": 3}, {"initializer": {"kind": "uniform", "seed": 3}}):
        with pytest.raises(
            ValueError, match="seed: expected it once, found it in (options|initializer) "
        ):
            engine.Table(2, seed=4, options=given)
    seeds = [engine.Table(2, 0.5, seed=3), engine.Table(2, 0.5)]
    for table in seeds:
        np.testing.assert_array_equal(table.lookup([1]), [[0.5, 0.5]])


def test_a_newer_record_is_refused_by_its_version():
    record = json.dumps({"version": 2}).encode()
    with pytest.raises(NotImplementedError, match="options: expected version 1, found 2"):
        option_record.complete(record)


def test_paths_of_any_bytes_survive(tmp_path):
    path = str(tmp_path / "f\udcff\xe9")
    record = option_record.text_of({"storage_type": "SSDHASH", "storage_path": path})
    assert option_record.complete(record)["storage_path"] == path


def test_a_wrong_option_of_an_op_is_refused_when_the_op_is_built():
    import tensorflow as tf

    ops = tf.load_op_library(tf_multitier.get_library_path())
    with tf.Graph().as_default(), pytest.raises(ValueError, match="score: expected one of step, "):
        ops.multitier_embedding_variable_handle(
            shape=[0, 4], options='{"version": 1, "score": "steps"}'
        )
