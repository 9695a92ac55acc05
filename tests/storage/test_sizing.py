"""tf_multitier.memory: bounds that real tables keep, and are not far below."""

import os
import re
import textwrap

import forks
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT
from paths import environment

import tf_multitier
from tf_multitier import engine

v1 = tf.compat.v1


BATCH = 8192


def filled(kind, path, sizes, rows, dim, **options):
    """An engine table of that storage with this number of rows, trained with Adagrad in a scattered order."""
    table = engine.Table(
        dim=dim,
        storage_type=kind,
        storage_path=path,
        storage_size=sizes,
        slots=[("a", dim, 0.1)],
        **options,
    )
    keys = np.random.default_rng(1).permutation(rows)
    for begin in list(range(0, rows, BATCH)) * 2:
        batch = keys[begin : begin + BATCH]
        table.apply(
            "adagrad",
            batch,
            np.ones((len(batch), dim), np.float32),
            hyper={"learning_rate": 0.1},
            slots=["a"],
        )
    table.drain()
    return table


@pytest.mark.parametrize("strategy", ["DEFAULT", "LRU"])
@pytest.mark.parametrize(
    "kind, rows, dim, dram_rows",
    [
        ("DRAM", 30_000, 8, None),
        ("DRAM", 200_000, 5, None),
        ("SSDHASH", 20_000, 8, None),
        ("PMEM", 20_000, 8, None),
        ("PMEM", 200_000, 5, None),
        ("LEVELDB", 20_000, 8, None),
        ("DRAM_SSDHASH", 30_000, 8, 2_000),
        ("DRAM_SSDHASH", 200_000, 4, 70_000),
        ("DRAM_LEVELDB", 30_000, 16, 3_000),
        ("DRAM_PMEM", 30_000, 8, 3_000),
        ("DRAM_PMEM_SSDHASH", 30_000, 8, 3_000),
    ],
)
def test_tables_stay_within_what_was_computed(kind, rows, dim, dram_rows, strategy, tmp_path):
    names = kind.split("_")
    row_bytes = 2 * (-(-4 * dim // 16) * 16)
    sizes = [] if dram_rows is None else [dram_rows * row_bytes] * (len(names) - 1)
    table = filled(kind, str(tmp_path), sizes, rows, dim, cache_strategy=strategy)
    stats = table.stats()
    option = tf_multitier.StorageOption(
        kind, str(tmp_path), sizes, None if strategy == "DEFAULT" else strategy
    )
    bound = tf_multitier.memory(rows, dim, "adagrad", option, batch_keys=BATCH)
    assert (
        bound.bytes_per_row == stats["row_bytes"] == row_bytes
        and bound.rows == rows == stats["rows"]
    )
    assert [t.name.lower() for t in bound.tiers] == [t["name"] for t in stats["tiers"]]
    assert stats["index_bytes"] <= bound.index_bytes <= 4 * stats["index_bytes"] + (64 << 10)
    for tier, found in zip(bound.tiers, stats["tiers"]):
        assert found["rows"] <= tier.rows and found["row_bytes"] <= tier.row_bytes
        assert found["resident_bytes"] <= tier.memory_bytes
        assert found["stored_bytes"] <= tier.disk_bytes
    on_disk = sum(
        os.stat(os.path.join(folder, name)).st_blocks * 512
        for folder, _, names in os.walk(tmp_path)
        for name in names
    )
    assert on_disk <= bound.disk_bytes


def test_shards_double_their_indexes_one_after_the_other():
    sizes = [tf_multitier.memory(n * 10**6, 8, "sgd").index_bytes for n in range(36, 52)]
    doubled = [after - sizes[0] for after in sizes[1:] if after > sizes[0]]
    assert (
        sizes[-1] == 2 * sizes[0]
    )  # from before the pages of the first doubling to after the last
    assert len(set(doubled)) > 3 and doubled == sorted(doubled)


# Prints the growth of anonymous memory that a table of a storage costs.
RESIDENT = """
    import gc, sys
    from test_sizing import filled
    kind, path, *numbers = sys.argv[1:]
    size, rows, dim = map(int, numbers)
    def resident():
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    filled(kind, path, [size] if size else [], 2 * 8192, dim)  # buffers of the process and its threads
    gc.collect()
    before = resident()
    table = filled(kind, path, [size] if size else [], rows, dim)
    print(resident() - before)
"""


@pytest.mark.parametrize(
    "kind, dram_bytes, rows",
    [
        ("DRAM", 0, 300_000),
        ("DRAM_SSDHASH", 128 * 80_000, 300_000),
        ("DRAM_LEVELDB", 128 * 20_000, 100_000),
    ],
)
def test_resident_memory_of_a_process_stays_within_what_was_computed(
    kind, dram_bytes, rows, tmp_path
):
    done = forks.run(
        ["-c", textwrap.dedent(RESIDENT), kind, tmp_path, dram_bytes, rows, 16],
        env=environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    option = tf_multitier.StorageOption(kind, str(tmp_path), [dram_bytes] if dram_bytes else None)
    bound = tf_multitier.memory(rows, 16, "adagrad", option, batch_keys=BATCH).memory_bytes
    assert int(done.stdout) <= bound, str(
        tf_multitier.memory(rows, 16, "adagrad", option, batch_keys=BATCH)
    )
    assert int(done.stdout) >= bound / 8


@pytest.mark.parametrize("rows", [20_000, 100_000])
@pytest.mark.parametrize("kind", ["DRAM", "PMEM"])
def test_a_single_tier_that_drops_its_coldest_stays_within_what_was_computed(kind, rows, tmp_path):
    sizes = [64 * rows]
    table = filled(kind, str(tmp_path), sizes, 2 * rows, 8, drop_coldest=True)
    (tier,) = table.stats()["tiers"]
    option = tf_multitier.StorageOption(kind, str(tmp_path), sizes, drop_coldest=True)
    bound = tf_multitier.memory(2 * rows, 8, "adagrad", option, batch_keys=BATCH)
    assert (
        tier["rows"] == rows == bound.rows
        and tier["name"] == bound.tiers[0].name.lower() == kind.lower()
    )
    assert tier["resident_bytes"] <= bound.tiers[0].memory_bytes
    assert tier["stored_bytes"] <= bound.tiers[0].disk_bytes <= 4 * 96 * rows
    assert (kind == "PMEM") == (tier["stored_bytes"] > 0) == (bound.tiers[0].disk_bytes > 0)


def test_rows_and_bytes_of_each_tier_by_hand():
    option = tf_multitier.StorageOption("DRAM_PMEM_SSDHASH", "/nowhere", [128 * 1000, 128 * 5000])
    needed = tf_multitier.memory(20_000, 16, "adagrad", option)
    assert [(t.name, t.rows, t.row_bytes) for t in needed.tiers] == [
        ("DRAM", 1000, 128_000),
        ("PMEM", 5000, 640_000),
        ("SSDHASH", 20_000, 2_560_000),
    ]
    assert needed.bytes_per_row == 128 and needed.rows == 20_000
    assert needed.tiers[0].memory_bytes > 1000 * 160 and needed.tiers[0].disk_bytes == 0
    assert needed.tiers[2].disk_bytes > 20_000 * 128 * 1.5
    assert needed.memory_bytes == sum(t.memory_bytes for t in needed.tiers) + needed.index_bytes
    text = str(needed)
    assert text.startswith("20,000 rows of 128 bytes\n") and "SSDHASH" in text and "at most" in text
    assert len({len(line) for line in text.splitlines()[1:]}) <= 2


def test_the_documented_example_is_what_is_printed(capsys):
    with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as page:
        program, printed = re.findall(r"```(?:python)?\n(.*?)```\n", page.read(), re.S)[:2]
    exec(program, {})
    assert capsys.readouterr().out == printed


def test_optimizers_partitions_filters_and_bounds_count():
    of = lambda **kwargs: tf_multitier.memory(**{"rows": 10_000, "embedding_dim": 10, **kwargs})
    assert of(optimizer=None).bytes_per_row == 48 and of(optimizer="adam").bytes_per_row == 144
    assert of(optimizer="rowwise_adagrad").bytes_per_row == 64
    assert of(optimizer=["adagrad", "ftrl"]).bytes_per_row == 48 * 4
    assert of(optimizer=tf_multitier.optimizers.Adam()).bytes_per_row == 144
    assert of(optimizer=tf_multitier.optimizers.RMSprop(centered=True)).bytes_per_row == 48 * 4
    assert of(optimizer=tf_multitier.optimizers.RowwiseAdagrad()).bytes_per_row == 64
    with tf.Graph().as_default():
        assert of(optimizer=v1.train.RMSPropOptimizer(0.1, centered=True)).bytes_per_row == 48 * 4
    one, four = of(), of(num_partitions=4)
    assert one.rows == four.rows == 10_000 and one.memory_bytes < four.memory_bytes
    bloom = of(filter_option=tf_multitier.CBFFilter(3, 1000, 0.01, tf.uint16))
    assert 1000 * 9.58 * 2 < bloom.filter_bytes < 1000 * 9.6 * 2 + 4096
    assert (
        of(filter_option=tf_multitier.CounterFilter(3), waiting_keys=5000).filter_bytes >= 5000 * 24
    )
    assert of(batch_keys=1000).batch_bytes > 0 == of().batch_bytes
    bounded = tf_multitier.StorageOption(
        "DRAM_SSDHASH", "/nowhere", [96 * 100, 96 * 200], drop_coldest=True
    )
    assert (
        of(storage_option=bounded).rows == 300 and of(storage_option=bounded).tiers[1].rows == 200
    )
    assert of(storage_option=bounded, num_partitions=2).rows == 600


@pytest.mark.parametrize("strategy", [None, "LFU"])
def test_the_memory_of_hbm_is_what_was_computed(monkeypatch, strategy):
    monkeypatch.setenv("TF_MULTITIER_DEVICE", "emulated")
    option = tf_multitier.StorageOption("HBM_DRAM", None, [3000 * 64], strategy)
    computed = tf_multitier.memory(5000, 8, "adagrad", option)
    with engine.Table(
        dim=8,
        storage_type="HBM_DRAM",
        storage_size=[3000 * 64],
        cache_strategy=strategy,
        slots=[("a", 8, 0.1)],
    ) as table:
        hbm = table.stats()["tiers"][0]
    assert [tier.name for tier in computed.tiers] == ["HBM", "DRAM"]
    assert (computed.tiers[0].rows, computed.tiers[1].rows) == (3000, 5000)
    assert hbm["resident_bytes"] <= computed.hbm_bytes <= hbm["resident_bytes"] + 2048
    assert "memory of the GPU" in str(computed)


@pytest.mark.parametrize("rows, size", [(100, None), (5000, None), (3000, 3000 * 64)])
def test_the_memory_of_hbm_alone_has_room_for_the_rows(monkeypatch, rows, size):
    monkeypatch.setenv("TF_MULTITIER_DEVICE", "emulated")
    sizes = [size] if size else None
    option = tf_multitier.StorageOption("HBM", None, sizes)
    computed = tf_multitier.memory(rows, 8, "adagrad", option)
    with engine.Table(
        dim=8, storage_type="HBM", storage_size=sizes or [], slots=[("accumulator", 8, 0.1)]
    ) as table:
        for keys in np.array_split(np.arange(rows), 5):
            grads = np.ones((len(keys), 8), np.float32)
            table.apply("adagrad", keys, grads, hyper=dict(learning_rate=0.1))
        table.lookup(np.arange(rows))
        hbm = table.stats()["tiers"][0]
    assert [tier.name for tier in computed.tiers] == ["HBM", "DRAM"]
    assert hbm["rows"] == rows == computed.tiers[0].rows
    assert hbm["resident_bytes"] <= computed.hbm_bytes <= 2.1 * hbm["resident_bytes"] + 2048


def test_the_environment_says_the_storage_where_no_option_does(monkeypatch):
    monkeypatch.setenv("TF_MULTITIER_STORAGE_TYPE", "DRAM_LEVELDB")
    monkeypatch.setenv("TF_MULTITIER_STORAGE_PATH", "/nowhere")
    monkeypatch.setenv("TF_MULTITIER_STORAGE_SIZE", "6400")
    assert [(t.name, t.rows) for t in tf_multitier.memory(1000, 8).tiers] == [
        ("DRAM", 100),
        ("LEVELDB", 1000),
    ]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (dict(rows=0), ValueError, "rows: expected at least 1, found 0"),
        (dict(rows=1.5), TypeError, "rows: expected an integer, found 1.5"),
        (dict(embedding_dim=0), ValueError, "embedding_dim: expected at least 1, found 0"),
        (dict(num_partitions=0), ValueError, "num_partitions: expected at least 1, found 0"),
        (dict(batch_keys=-1), ValueError, "batch_keys: expected at least 0, found -1"),
        (
            dict(optimizer="lbfgs"),
            ValueError,
            "optimizer: expected one of .*adagrad.*found 'lbfgs'",
        ),
        (dict(waiting_keys=9), ValueError, "waiting_keys: expected 0, because no CounterFilter"),
        (dict(storage_option="DRAM"), TypeError, "storage_option: expected StorageOption or None"),
        (dict(optimizer=3), TypeError, "optimizer: expected the name of an update rule, .*found 3"),
        (
            dict(storage_option=tf_multitier.StorageOption(storage_size=16)),
            ValueError,
            r"storage_size\[0\]: expected at least 64 bytes \(one row\), found 16",
        ),
        (
            dict(storage_option=tf_multitier.StorageOption("HBM_DRAM")),
            NotImplementedError,
            "this build has no GPU tier; found HBM_DRAM",
        ),
    ],
)
def test_a_bad_argument_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        tf_multitier.memory(**{"rows": 10, "embedding_dim": 8, **arguments})
