"""Options are checked when they are made, never changed, and reach the table."""

import numpy as np
import pytest
import tensorflow as tf

import external_util
import tf_multitier
from tf_multitier import config_pb2
from tf_multitier._src.lookup import multihash
from tf_multitier._src.options import storage_option

v1 = tf.compat.v1


def test_defaults_mean_what_the_issue_says():
    option = tf_multitier.EmbeddingVariableOption()
    assert (
        option.storage_option is None and option.filter_option is None and option.evict_option == ()
    )
    assert option.init_option == tf_multitier.InitializerOption()
    assert tf_multitier.StorageOption().storage_type is tf_multitier.StorageType.DEFAULT
    assert tf_multitier.StorageOption().storage_size == ()


def test_sizes_are_neither_padded_nor_shared():
    mine = [1024]
    first, second = (
        tf_multitier.StorageOption(storage_type="DRAM", storage_size=mine) for _ in range(2)
    )
    mine.append(7)
    assert first.storage_size == (1024,) and first == second
    assert tf_multitier.StorageOption(storage_size=512).storage_size == (512,)


def test_storage_types_have_deeprecs_numbers_and_names():
    assert config_pb2.StorageType.DRAM == config_pb2.DRAM == 1
    assert config_pb2.DRAM_SSDHASH == 12 and config_pb2.HBM_DRAM_SSDHASH == 102
    assert config_pb2.CacheStrategy.LFU == config_pb2.LFU == 1
    assert (
        config_pb2.StorageType.Name(14) == "DRAM_LEVELDB"
        and config_pb2.StorageType.Value("HBM") == 6
    )
    tiers = {"_".join(t.tiers) for t in config_pb2.StorageType}
    for base in (
        "DRAM",
        "DRAM_PMEM",
        "DRAM_LEVELDB",
        "DRAM_SSDHASH",
        "DRAM_PMEM_LEVELDB",
        "DRAM_PMEM_SSDHASH",
    ):
        assert base in tiers and f"HBM_{base}" in tiers
    assert {"HBM", "PMEM", "LEVELDB", "SSDHASH"} <= tiers


WRONG = [
    (
        lambda: tf_multitier.StorageOption(storage_type="DRAM_TAPE"),
        "storage_type: expected one of .*DRAM.*; found 'DRAM_TAPE'",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_type=55),
        "storage_type: expected one of .*; found '55'",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_size=[-1]),
        r"storage_size\[0\]: expected 1 to .* bytes, or text such as 4GB or 512 MiB, found -1",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_size=["4G"]),
        r"storage_size\[0\]: expected 1 to .* bytes, or text such as 4GB or 512 MiB, found '4G'",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_size=[1.5]),
        r"storage_size\[0\]: expected an integer of bytes, .*found 1.5",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_size=[1, 2]),
        "at most 1, one for each tier of DRAM; found 2",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_type="DRAM_SSDHASH"),
        "storage_path: expected a directory .*SSDHASH.*found none",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_type="HBM_DRAM_SSDHASH"),
        "storage_path: expected a directory for",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_path=3),
        "storage_path: expected text, found 3",
    ),
    (
        lambda: tf_multitier.StorageOption(cache_strategy="MRU"),
        "cache_strategy: expected .*LRU.*LFU.*; found 'MRU'",
    ),
    (lambda: tf_multitier.StorageOption(layout="normal"), "unexpected keyword argument 'layout'"),
    (
        lambda: tf_multitier.StorageOption("DRAM_LEVELDB", "/x", [1, 2, 3]),
        "at most 2, .*DRAM_LEVELDB; found 3",
    ),
    (
        lambda: tf_multitier.StorageOption("SSDHASH", ""),
        "storage_path: expected a directory .*SSDHASH, found none",
    ),
    (
        lambda: tf_multitier.StorageOption("SSDHASH", "a\0b"),
        r"storage_path: expected text without null characters, found 'a\\0b'",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_size=2**61),
        r"storage_size\[0\]: expected 1 to 1152921504606846976 bytes, .*found",
    ),
    (
        lambda: tf_multitier.StorageOption("DRAM_SSDHASH", "/x", [9], drop_coldest=True),
        "drop_coldest: expected the size of the last tier of DRAM_SSDHASH .*found 1 of 2 sizes",
    ),
    (
        lambda: tf_multitier.StorageOption(drop_coldest=True),
        "drop_coldest: expected the size of the last tier of DRAM .*found 0 of 1 sizes",
    ),
    (
        lambda: tf_multitier.StorageOption(storage_size=9, drop_coldest=2),
        "drop_coldest: expected True or False, found 2",
    ),
    (
        lambda: tf_multitier.StorageOption(on_corruption="skip"),
        "on_corruption: expected one of error, reinit, drop; found 'skip'",
    ),
    (
        lambda: tf_multitier.StorageOption(on_corruption=3),
        "on_corruption: expected one of error, reinit, drop; found 3",
    ),
    (
        lambda: tf_multitier.CounterFilter(-1),
        "CounterFilter.filter_freq: expected 0 to 4294967295, found -1",
    ),
    (lambda: tf_multitier.CounterFilter(2.0), "filter_freq: expected an integer, found 2.0"),
    (lambda: tf_multitier.CBFFilter(3), "max_element_size: expected at least 1, found 0"),
    (
        lambda: tf_multitier.CBFFilter(3, 10, 1.0),
        r"false_positive_probability: expected more than 0 and less than 1, found 1.0",
    ),
    (
        lambda: tf_multitier.CBFFilter(3, 10, counter_type=tf.float32),
        "counter_type: expected .*; found tf.float32",
    ),
    (
        lambda: tf_multitier.CBFFilter(300, 10, counter_type=tf.uint8),
        r"filter_freq: expected one that fits in counter_bits \(8\), found 300",
    ),
    (
        lambda: tf_multitier.CBFFilter(300, 10, counter_type=tf.int8),
        r"filter_freq: expected one that fits in counter_bits \(8\), found 300",
    ),
    (
        lambda: tf_multitier.ProbabilisticFilter(0),
        r"probability: expected more than 0 and at most 1, found 0",
    ),
    (lambda: tf_multitier.GlobalStepEvict(0), "steps_to_live: expected at least 1, found 0"),
    (
        lambda: tf_multitier.L2WeightEvict(-2.0),
        "l2_weight_threshold: expected at least 0, or -1 for none; found -2",
    ),
    (
        lambda: tf_multitier.L2WeightEvict(float("nan")),
        "l2_weight_threshold: expected a finite number, found nan",
    ),
    (
        lambda: tf_multitier.InitializerOption(default_value_dim=0),
        "default_value_dim: expected at least 1, found 0",
    ),
    (
        lambda: tf_multitier.InitializerOption(default_value_no_permission="x"),
        "expected a finite number, found 'x'",
    ),
    (
        lambda: tf_multitier.EmbeddingVariableOption(filter_option=3),
        "filter_option: expected CounterFilter or .*found 3",
    ),
    (
        lambda: tf_multitier.EmbeddingVariableOption(storage_option="DRAM"),
        "storage_option: expected StorageOption or None",
    ),
    (
        lambda: tf_multitier.EmbeddingVariableOption(
            evict_option=[tf_multitier.GlobalStepEvict(1)] * 2
        ),
        "at most one",
    ),
    (
        lambda: tf_multitier.EmbeddingVariableOption(ht_type=""),
        "unexpected keyword argument 'ht_type'",
    ),
    (
        lambda: tf_multitier.EmbeddingVariableOption(None),
        "takes 1 positional argument but 2 were given",
    ),
]


@pytest.mark.parametrize("make, message", WRONG, ids=[m[:40] for _, m in WRONG])
def test_a_wrong_option_names_what_was_expected_and_found(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("kind", [t.name for t in tf_multitier.StorageType if "HBM" in t.name])
def test_storage_types_with_a_gpu_tier_are_refused_by_name_with_the_reason(graph, kind, tmp_path):
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(kind, str(tmp_path))
    )
    with pytest.raises(
        NotImplementedError,
        match="'ev': storage_type: expected one of DRAM, .*DRAM_PMEM_SSDHASH, .* because this build has no GPU "
        f"tier; found {kind}",
    ):
        tf_multitier.get_embedding_variable("ev", 4, ev_option=option)
    assert not graph.get_operations()


@pytest.mark.parametrize("kind", [t.name for t in tf_multitier.StorageType if "HBM" not in t.name])
def test_every_other_storage_type_makes_a_table_of_its_tiers(graph, kind, tmp_path):
    external = external_util.Dict if "EXTERNAL" in kind else None
    storage = tf_multitier.StorageOption(kind, str(tmp_path), external_storage=external)
    ev = tf_multitier.get_embedding_variable(
        "ev", 4, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage)
    )
    with v1.Session() as session:
        session.run(ev.initializer)
        tiers = session.run(ev.stats())["tiers"]
    assert tuple(tier["name"].upper() for tier in tiers) == storage.storage_type.tiers
    assert [tier["budget_bytes"] for tier in tiers] == [1 << 30] * (len(tiers) - 1) + [0]


def test_environment_describes_the_storage_of_a_variable_without_an_option(graph, monkeypatch):
    monkeypatch.setenv("TF_MULTITIER_STORAGE_TYPE", "DRAM")
    monkeypatch.setenv("TF_MULTITIER_STORAGE_SIZE", "128")
    ev = tf_multitier.get_embedding_variable("ev", 3, initializer=v1.zeros_initializer())
    assert ev.table_options["storage_size"] == [128]
    given = tf_multitier.EmbeddingVariableOption(storage_option=tf_multitier.StorageOption("DRAM"))
    assert (
        tf_multitier.get_embedding_variable("given", 3, ev_option=given).table_options[
            "storage_size"
        ]
        == []
    )
    # 128 bytes hold four rows of dim 3 with an Adagrad slot; the fifth does not fit, and nothing of its batch is kept.
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train, {ids: [1, 2, 3, 4]})
        with pytest.raises(tf.errors.ResourceExhaustedError):
            session.run(train, {ids: [1, 5]})
        assert session.run(ev.get_frequency(np.arange(1, 6))).tolist() == [1, 1, 1, 1, 0]


def test_environment_puts_variables_without_an_option_on_disk(graph, monkeypatch, tmp_path):
    for variable, value in (("TYPE", "DRAM_SSDHASH"), ("PATH", str(tmp_path)), ("SIZE", "64")):
        monkeypatch.setenv("TF_MULTITIER_STORAGE_" + variable, value)
    ev = tf_multitier.get_embedding_variable("ev", 4)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(ev, np.arange(10)))
    )
    with v1.Session() as session:
        session.run(ev.initializer)
        session.run(train)
        session.run(ev.drain())
        assert sorted(session.run(ev.lookup_tier(np.arange(10)))) == [0] * 4 + [1] * 6


@pytest.mark.parametrize(
    "environ, message",
    [
        (
            {"TF_MULTITIER_STORAGE_TYPE": "TAPE"},
            "TF_MULTITIER_STORAGE_TYPE: expected one of .*; found 'TAPE'",
        ),
        (
            {"TF_MULTITIER_STORAGE_SIZE": "1G"},
            r"TF_MULTITIER_STORAGE_SIZE\[0\]: expected 1 to .*, or text such as 4GB or 512 MiB, found '1G'",
        ),
        (
            {"TF_MULTITIER_STORAGE_SIZE": "-5"},
            r"TF_MULTITIER_STORAGE_SIZE\[0\]: expected 1 to .*, found '-5'",
        ),
        (
            {"TF_MULTITIER_STORAGE_TYPE": "DRAM_SSDHASH"},
            "TF_MULTITIER_STORAGE_PATH: expected a directory for the files of storage_type DRAM_SSDHASH, found none",
        ),
        (
            {"TF_MULTITIER_STORAGE_TYPE": ""},
            "TF_MULTITIER_STORAGE_TYPE: expected one of .*; found ''",
        ),
        (
            {"TF_MULTITIER_STORAGE_SIZE": "0"},
            r"TF_MULTITIER_STORAGE_SIZE\[0\]: expected 1 to .*, found '0'",
        ),
        (
            {"TF_MULTITIER_STORAGE_SIZE": "5,6"},
            "TF_MULTITIER_STORAGE_SIZE: expected at most 1, .*; found 2",
        ),
        (
            {"TF_MULTITIER_STORAGE_TIPE": "DRAM"},
            "expected .*, found 'TF_MULTITIER_STORAGE_TIPE': did you mean 'TF_MULTITIER_STORAGE_TYPE'",
        ),
        (
            {"TF_MULTITIER_STORAGE_PATH": "/ssd"},
            "TF_MULTITIER_STORAGE_TYPE: .* because TF_MULTITIER_STORAGE_PATH is set, found none",
        ),
        (
            {"TF_MULTITIER_STORAGE_TYPE": "DRAM", "TF_MULTITIER_STORAGE_PATH": ""},
            "TF_MULTITIER_STORAGE_PATH: expected the path of a directory, found ''",
        ),
    ],
)
def test_a_bad_environment_variable_is_refused_by_name(environ, message):
    with pytest.raises(ValueError, match=message):
        storage_option.storage_option_from_environment(environ)


def test_sizes_are_numbers_text_or_by_tier(monkeypatch, tmp_path):
    for size in ([4_000_000_000, 1 << 20], ["4GB", "1 MiB"], {"SSDHASH": "1MiB", "DRAM": "4 GB"}):
        option = tf_multitier.StorageOption("DRAM_SSDHASH", str(tmp_path), size)
        assert option.storage_size == (4_000_000_000, 1 << 20)
    monkeypatch.setenv("TF_MULTITIER_STORAGE_SIZE", "512 MiB")
    assert storage_option.storage_option_from_environment().storage_size == (512 << 20,)


def test_the_record_of_a_variable_is_an_attribute_of_its_handle(graph):
    ev = tf_multitier.get_embedding_variable(
        "ev",
        4,
        ev_option=tf_multitier.EmbeddingVariableOption(
            filter_option=tf_multitier.CBFFilter(3, 1000, 0.02, tf.uint16),
            evict_option=[tf_multitier.GlobalStepEvict(10), tf_multitier.L2WeightEvict(0.5)],
            storage_option=tf_multitier.StorageOption(
                "DRAM", storage_size=[4096], cache_strategy=config_pb2.LRU
            ),
            init_option=tf_multitier.InitializerOption(
                v1.random_uniform_initializer(0, 1, seed=-3), None, 0.5
            ),
        ),
    )
    expected = dict(
        filter=dict(
            kind="bloom",
            filter_freq=3,
            max_element_size=1000,
            false_positive_probability=0.02,
            counter_bits=16,
        ),
        steps_to_live=10,
        l2_weight_threshold=0.5,
        storage_type="DRAM",
        storage_size=[4096],
        cache_strategy="LRU",
        initializer=dict(kind="uniform", b=1, seed=2**64 - 3),
        default_value_no_permission=dict(a=0.5),
    )
    assert {k: ev.table_options[k] for k in expected} == expected
    assert ev.handle.op.get_attr("options") == ev.handle_attrs["options"]


def test_the_old_spelling_of_steps_to_live(graph):
    assert tf_multitier.get_embedding_variable("ev", 4, steps_to_live=7).steps_to_live == 7
    option = tf_multitier.EmbeddingVariableOption(evict_option=tf_multitier.L2WeightEvict(1.0))
    with pytest.raises(ValueError, match="found both"):
        tf_multitier.get_embedding_variable("other", 4, steps_to_live=7, ev_option=option)


ALMOST = {
    "storage type": (lambda: tf_multitier.StorageOption("dram_ssdhash", "/x"), "DRAM_SSDHASH"),
    "number of it": (lambda: config_pb2.StorageType.Value("DRAM_SSDHAHS"), "DRAM_SSDHASH"),
    "environment": (
        lambda: storage_option.storage_option_from_environment(
            {storage_option.ENV_STORAGE_TYPE: "DRAM-LEVELDB"}
        ),
        "DRAM_LEVELDB",
    ),
    "cache strategy": (lambda: tf_multitier.StorageOption(cache_strategy="lfu"), "LFU"),
    "on_full": (lambda: tf_multitier.StorageOption(on_full="DROP"), "drop"),
    "score": (lambda: tf_multitier.EmbeddingVariableOption(score="steps"), "step"),
    "value type": (
        lambda: tf_multitier.EmbeddingVariableOption(value_dtype="bfloat_16"),
        "bfloat16",
    ),
    "counter type": (lambda: tf_multitier.CBFFilter(1, 9, 0.1, counter_type="uint_8"), "uint8"),
    "name of an option": (
        lambda: setattr(tf_multitier.EmbeddingVariableOption(), "storage", None),
        "storage_option",
    ),
    "optimizer of sizing": (lambda: tf_multitier.memory(9, 4, "adagard"), "adagrad"),
    "combiner": (
        lambda: tf_multitier.nn.group_embedding_lookup_sparse(
            [tf.ones([3, 2])], [tf.sparse.from_dense([[1]])], "SUM"
        ),
        "sum",
    ),
    "operation": (lambda: multihash.check_kind("m", "Q-R", "Add"), "add"),
    "key type": (
        lambda: tf_multitier.get_embedding_variable("u", 4, key_dtype="uint_64"),
        "uint64",
    ),
    "rule of the engine": (
        lambda: tf_multitier.engine.Table(2).apply("Adam", [1], np.ones([1, 2], np.float32)),
        "adam",
    ),
    "key type of the engine": (
        lambda: tf_multitier.engine.Table(2, key_dtype="uint_64"),
        "uint64",
    ),
}


@pytest.mark.parametrize("name", list(ALMOST))
def test_a_name_that_is_almost_right_is_answered_with_the_right_one(name):
    use, meant = ALMOST[name]
    with pytest.raises(
        (ValueError, TypeError, AttributeError), match=f": did you mean '{meant}'\\?$"
    ):
        use()


def test_a_name_that_is_like_no_other_gets_no_suggestion():
    with pytest.raises(ValueError, match="found 'TAPE'$"):
        tf_multitier.StorageOption("TAPE")
