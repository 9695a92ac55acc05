"""What a program gives as an option by mistake is an error that names it: nothing is ignored, and no other option is taken."""

import copy
import datetime
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import engine
from tf_multitier.keras import option_configs

CACHE, STORAGE = tf_multitier.CacheStrategy, tf_multitier.StorageType
Bloom, Counter, L2 = tf_multitier.CBFFilter, tf_multitier.CounterFilter, tf_multitier.L2WeightEvict
Steps, Storage = tf_multitier.GlobalStepEvict, tf_multitier.StorageOption
Option = tf_multitier.EmbeddingVariableOption


@pytest.mark.parametrize(
    "call, message",
    [
        # A parameter of another kind of filter.
        (lambda: engine.Table(4, filter_freq=3), "filter_freq: expected it only with .*counter"),
        (lambda: engine.Table(4, filter="none", filter_freq=4), "filter_freq: expected it only"),
        (lambda: engine.Table(4, filter="counter", max_element_size=9), "max_element_size: expect"),
        (
            lambda: engine.Table(4, filter="bloom", max_element_size=9, max_keys=4),
            "max_keys: expected it only",
        ),
        # The same of initializers.
        (lambda: engine.Table(4, "uniform", -1, 1, lower=0), "lower: expected it only with"),
        (
            lambda: engine.Table(4, eval_initializer={"upper": 1}),
            "eval_initializer.upper: expected",
        ),
        (lambda: engine.Table(4, "constant", 1, 2), "initializer.b: expected it only .*constant"),
        (lambda: engine.Table(4, "debug", 1), "initializer.a: expected it only .*debug"),
        (
            lambda: engine.Table(
                4, initializers=[{"columns": [{"initializer": {"a": 1, "b": 2}}]}]
            ),
            r"initializers\[0\].columns\[0\].initializer.b: expected it only",
        ),
        # Names.
        (lambda: engine.Table(4, storage_sise=None), "storage_sise: .*did you mean 'storage_size'"),
        (lambda: engine.Table(4, foo=object()), "foo: expected an option of a table, found none"),
        (lambda: engine.Table(4, version=2), "version: expected an option of a table, found none"),
        (lambda: engine.Table(4, options=["DRAM"]), "options: expected a mapping"),
        # An enum in place of another one.
        (lambda: Storage(CACHE.LFU), "storage_type: expected .*found 'LFU'"),
        (lambda: Storage(cache_strategy=STORAGE.DRAM), "cache_strategy: expected .*found 'DRAM'"),
        # What has nothing to act on.
        (
            lambda: Storage(storage_path="/ssd"),
            "storage_path: expected storage_type with it, found",
        ),
        (lambda: Storage("DRAM_SSDHASH", "/ssd", [99], on_full="warn"), "found 1 of 2 sizes"),
        (lambda: engine.Table(4, on_full="warn"), "on_full: expected warn only if the last tier"),
        (lambda: Storage("DRAM", None, 99, dropped="rows"), "dropped: expected rows only with dr"),
        (lambda: Storage("HBM_DRAM", on_corruption="drop"), "on_corruption: expected error, bec"),
        (lambda: engine.Table(4).expire(3), "^expire: expected an option by which rows expire"),
        # Values that JSON does not have, or that are too large.
        (lambda: Storage(initial_rows=10**5000), "integers of 64 bits"),
        (lambda: L2(10**400), "l2_weight_threshold: expected a finite number"),
        (
            lambda: Storage("DRAM_SSDHASH", "\ud800", 9),
            r"storage_path: expected text in UTF-8, found '.ud800'",
        ),
        (lambda: Storage("DRAM_SSDHASH", "/tmp", {"2GB", "1GB"}), "storage_size: expected a list"),
        (lambda: Storage("DRAM", storage_size={b"DRAM": 5}), "storage_size: expected {tier: size}"),
        (lambda: Storage("DRAM", storage_size=b"4GB"), "storage_size.*or text such as 4GB"),
        (lambda: Option(value_dtype=1), "value_dtype: expected float32, .*found 1"),
        (lambda: tf_multitier.TruncatedNormal(seed=1.9), "seed: expected an integer, found 1.9"),
        (lambda: Bloom(1, 10, 0.1, [1]), "counter_type: expected"),
        (
            lambda: engine.Table(4, "matrix", matrix=np.ones((3, 4), np.float32), matrix_rows=7),
            "matrix_rows: expected 3, the rows of matrix, found 7",
        ),
    ],
)
def test_it_is_refused_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize(
    "option, name",
    [
        (Counter(3), "filter_frq"),
        (tf_multitier.InitializerOption(), "eval_initialiser"),
        (Steps(3), "steps"),
        (Storage(), "storage_sise"),
        (Option(), "filter"),
        (tf_multitier.TruncatedNormal(), "sed"),
    ],
)
def test_a_misspelt_attribute_is_refused(option, name):
    before = copy.deepcopy(option)
    with pytest.raises(AttributeError, match=f"expected one of .*found '{name}'"):
        setattr(option, name, 5)
    assert option == before


def test_what_is_set_later_is_what_the_constructor_makes_of_it():
    option = Storage()
    option.storage_type = "DRAM"
    option.storage_size = "4GiB"
    assert option == Storage("DRAM", storage_size=4 << 30)
    with pytest.raises(ValueError, match=r"StorageOption.storage_type: expected .*did you mean"):
        option.storage_type = "DRM"
    assert option == Storage("DRAM", storage_size=4 << 30)
    assert Storage(b"DRAM", cache_strategy="DEFAULT") == Storage("DRAM")
    assert Storage("DRAM", storage_size={STORAGE.DRAM: 5}) == Storage("DRAM", storage_size=5)


def test_reuse_with_another_lifetime_is_refused(graph):
    scope = tf.compat.v1.variable_scope
    tf.compat.v1.train.get_or_create_global_step()
    tf_multitier.get_embedding_variable("a", 4, ev_option=Option(evict_option=Steps(5)))
    with scope("", reuse=True), pytest.raises(ValueError, match="steps_to_live"):
        tf_multitier.get_embedding_variable("a", 4, ev_option=Option())


def test_no_two_variables_share_the_lists_of_their_options(graph):
    first, second = (tf_multitier.get_embedding_variable(name, 4) for name in "ab")
    first.table_options["storage_size"].append(99)
    assert second.table_options["storage_size"] == []


def option_of_all_kinds():
    return Option(
        evict_option=[Steps(datetime.timedelta(days=2)), L2(np.float32(0.5))],
        filter_option=Bloom(np.int64(3), 100, 0.1, tf.uint8),
        storage_option=Storage("DRAM", None, "4MB", cache_strategy=CACHE.SCORE),
        init_option=tf_multitier.InitializerOption(
            default_value_no_permission=tf_multitier.TruncatedNormal(seed=np.int64(4))
        ),
        score="time",
    )


def test_a_configuration_of_keras_makes_the_option_again():
    option = option_of_all_kinds()
    assert option_configs.from_config(option_configs.to_config(option)) == option


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda fields: fields.update(filter=3), "unexpected keyword argument 'filter'"),
        (
            lambda fields: fields["filter_option"].update(option="CounterFiltre"),
            "ev_option: option: .*found 'CounterFiltre': did you mean 'CounterFilter'",
        ),
        (
            lambda fields: fields["filter_option"]["fields"].update(filter_freq=-1),
            "CBFFilter.filter_freq: expected",
        ),
        (
            lambda fields: fields["storage_option"]["fields"].update(
                storage_type={"enum": "StorageType", "name": "DRM"}
            ),
            "ev_option: StorageType: .*found 'DRM'",
        ),
        (
            lambda fields: fields.update(filter_option=fields["storage_option"]),
            "filter_option: expected CounterFilter",
        ),
        (
            lambda fields: fields["evict_option"].append(fields["evict_option"][0]),
            "expected at most one GlobalStepEvict",
        ),
    ],
)
def test_a_changed_configuration_of_keras_is_refused(change, message):
    config = option_configs.to_config(option_of_all_kinds())
    change(config["fields"])
    with pytest.raises((TypeError, ValueError), match=message):
        option_configs.from_config(config)


def test_an_option_of_a_later_release_in_a_kept_table_is_named(tmp_path):
    with engine.Table(4, storage_type="SSDHASH", storage_path=str(tmp_path), keep=True) as table:
        path = table.path
    with open(f"{path}/instance.table", "rb") as file:
        _, _, text = file.read().partition(b"\n")
    text = text.replace(b'"options": {', b'"options": {"later": 1, ')

    with open(f"{path}/instance.table", "wb") as file:
        file.write(b"multitier-table 1 %08x\n" % zlib.crc32(text) + text)
    with pytest.raises(NotImplementedError, match="later: expected an option of this release"):
        engine.Table.open(path)
