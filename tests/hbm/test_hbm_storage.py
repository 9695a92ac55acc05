"""Storage types with HBM from NumPy, on the emulated device: the values of DRAM, and what only HBM does or refuses."""

import numpy as np
import pytest
import tensorflow as tf
from storage_util import Model

import tf_multitier
from tf_multitier import engine

v1 = tf.compat.v1

TYPES = [
    t.name
    for t in tf_multitier.StorageType
    if t.tiers[0] == "HBM" and t is not tf_multitier.StorageType.HBM
]
KEYS = np.arange(-20, 30)
HYPER = dict(learning_rate=0.1)


def table(kind, path, dim=4, rows=4, **options):
    """A table in which each tier except the last holds this number of rows with one slot."""
    tiers = kind.split("_")
    return engine.Table(
        dim=dim,
        initializer="uniform",
        a=-1.0,
        b=1.0,
        storage_type=kind,
        storage_path=str(path),
        storage_size=[rows * 32] * (len(tiers) - 1),
        slots=[("accumulator", dim, 0.1)],
        device="emulated",
        **options,
    )


def train(tables, steps=12, seed=1):
    rng = np.random.default_rng(seed)
    for step in range(steps):
        keys = rng.choice(KEYS, 16)
        grads = rng.standard_normal((16, 4)).astype(np.float32)
        for one in tables:
            one.apply("adagrad", keys, grads, hyper=HYPER, global_step=step)
        probe = rng.choice(KEYS, 9)
        values = [one.lookup(probe) for one in tables]
        for found in values[1:]:
            np.testing.assert_array_equal(found, values[0])


def assert_same(a, b):
    for one in (a, b):
        one.drain()
    x, y = a.export(), b.export()
    np.testing.assert_array_equal(np.sort(x.keys), np.sort(y.keys))
    np.testing.assert_array_equal(x.data[np.argsort(x.keys)], y.data[np.argsort(y.keys)])
    for query in ("frequency", "version", "lookup", "peek"):
        np.testing.assert_array_equal(getattr(a, query)(KEYS), getattr(b, query)(KEYS))


@pytest.mark.parametrize("strategy", ["DEFAULT", "LRU", "LFU"])
@pytest.mark.parametrize("kind", TYPES)
def test_every_type_gives_the_bits_of_dram(kind, strategy, tmp_path):
    plain, hbm = table("DRAM", tmp_path), table(kind, tmp_path, cache_strategy=strategy)
    train([plain, hbm])
    assert_same(plain, hbm)
    assert [tier["name"].upper() for tier in hbm.stats()["tiers"]] == kind.split("_")
    tiers = hbm.lookup_tier(KEYS)
    assert (tiers == 0).sum() == 4 and tiers.max() <= len(kind.split("_")) - 1
    assert plain.remove(KEYS[:9]) == hbm.remove(KEYS[:9])
    train([plain, hbm], seed=2)
    hbm.compact()
    assert_same(plain, hbm)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_expire_scan_import_and_are_cleared_as_in_dram(kind, tmp_path):
    plain, hbm = (table(one, tmp_path, steps_to_live=5) for one in ("DRAM", kind))
    train([plain, hbm])
    assert plain.expire(12) == hbm.expire(12) > 0
    assert_same(plain, hbm)
    cursor, scanned = 0, []
    while True:
        rows, cursor = hbm.scan(cursor, 7)
        scanned += rows.keys.tolist()
        if cursor == 0:
            break
    assert sorted(scanned) == sorted(plain.export().keys.tolist())
    copy = table(kind, tmp_path, name="copy")
    replaced = int(hbm.export().keys[0])
    copy.apply("adagrad", [replaced, 77], np.ones((2, 4), np.float32), hyper=HYPER)
    copy.import_rows(hbm.export())
    assert copy.remove([77]) == 1
    assert_same(plain, copy)
    hbm.clear()
    assert hbm.total_count() == 0 and (hbm.lookup_tier(KEYS) == -1).all()


@pytest.mark.parametrize("kind", [t for t in TYPES if t.endswith("SSDHASH")])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_kept_table_is_opened_with_the_rows_that_were_in_hbm(kind, flushed, tmp_path):
    plain, hbm = table("DRAM", tmp_path), table(kind, tmp_path, keep=True)
    train([plain, hbm])
    path = hbm.path
    if flushed:
        hbm.flush()
    hbm.close()
    with engine.Table.open(path) as opened:
        assert_same(plain, opened)
        assert opened.stats()["tiers"][0]["name"] == "hbm"


def test_prefetched_rows_come_into_hbm_and_stay(tmp_path):
    hbm = table("HBM_DRAM_SSDHASH", tmp_path, rows=8, cache_strategy="LRU")
    for key in range(40):
        hbm.apply("adagrad", [key], np.ones((1, 4), np.float32), hyper=HYPER)
    hbm.drain()
    expected = hbm.peek([1, 2])
    assert hbm.lookup_tier([1, 2]).tolist() != [0, 0]
    assert hbm.prefetch([1, 2], 1000.0) == hbm.stats()["prefetched"] == 2
    for key in range(10, 40):  # would take the place of every other row
        hbm.lookup([key])
    assert hbm.lookup_tier([1, 2]).tolist() == [0, 0]
    np.testing.assert_array_equal(hbm.lookup([1, 2]), expected)
    assert hbm.stats()["prefetched"] == 0
    for key in range(10, 40):
        hbm.lookup([key])
    assert 0 not in hbm.lookup_tier([1, 2]).tolist()


def sized(kind, sizes, path, in_rows, **options):
    """A table of rows of 16 bytes whose tiers have these numbers of rows."""
    size = dict(storage_rows=sizes) if in_rows else dict(storage_size=[16 * n for n in sizes])
    device = "emulated" if kind.startswith("HBM") else None
    return engine.Table(
        4, storage_type=kind, storage_path=str(path), device=device, name=kind, **size, **options
    )


def refusal(call):
    """The message of a ResourceExhaustedError, without the advice; None if there is none."""
    try:
        call()
    except engine.ResourceExhaustedError as error:
        return str(error).replace("HBM_", "").split(": remove or expire keys")[0]
    return None


@pytest.mark.parametrize("in_rows", [False, True])
@pytest.mark.parametrize(
    "kind, sizes",
    [("HBM_DRAM", [4, 6]), ("HBM_DRAM", [50, 6]), ("HBM_DRAM_SSDHASH", [3, 2, 6])],
)
def test_a_full_last_tier_refuses_what_it_refuses_without_hbm(kind, sizes, in_rows, tmp_path):
    hbm = sized(kind, sizes, tmp_path, in_rows)
    plain = sized(kind[4:], sizes[1:], tmp_path, in_rows)
    sgd = dict(learning_rate=1.0)
    rng = np.random.default_rng(2)
    refused = 0
    for step in range(40):
        keys = rng.integers(0, 16, rng.integers(1, 5))
        grads = rng.standard_normal((len(keys), 4)).astype(np.float32)
        messages = [
            refusal(lambda t=t: t.apply("sgd", keys, grads, hyper=sgd)) for t in (plain, hbm)
        ]
        assert messages[0] == messages[1]
        refused += messages[0] is not None
        if step % 4 == 3:
            assert plain.remove(keys[:2]) == hbm.remove(keys[:2])
        if step % 7 == 6:
            np.testing.assert_array_equal(hbm.lookup(np.arange(20)), plain.lookup(np.arange(20)))
    assert refused > 5
    assert_same(plain, hbm)


@pytest.mark.parametrize("kind, sizes", [("HBM_DRAM", [4, 6]), ("HBM_DRAM_SSDHASH", [3, 2, 6])])
def test_a_full_table_is_saved_scanned_upserted_and_closed(kind, sizes, tmp_path):
    hbm = sized(kind, sizes, tmp_path, True)
    rows = sum(sizes[1:])
    sgd = dict(learning_rate=1.0)
    message = refusal(
        lambda: hbm.apply("sgd", np.arange(100), np.ones((100, 4), np.float32), hyper=sgd)
    )
    assert "0 of %d rows" % rows in message and "no room for 100 more" in message
    assert hbm.total_count() == 0
    hbm.apply("sgd", np.arange(rows), np.ones((rows, 4), np.float32), hyper=sgd)
    assert "no room for 1 more" in refusal(
        lambda: hbm.apply("sgd", [0, 77], np.ones((2, 4), np.float32), hyper=sgd)
    )
    assert sorted(hbm.scan(0, 100)[0].keys.tolist()) == list(range(rows))
    values = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    assert hbm.upsert(np.arange(rows), {"value": values}) == rows
    np.testing.assert_array_equal(hbm.lookup(np.arange(rows)), values)
    assert "no room for 1 more" in refusal(lambda: hbm.upsert([77], {"value": values[:1]}))
    hbm.apply("sgd", np.arange(rows), np.ones((rows, 4), np.float32), hyper=sgd)
    hbm.drain()
    exported = hbm.export()
    assert sorted(exported.keys.tolist()) == list(range(rows))
    np.testing.assert_array_equal(exported.data[np.argsort(exported.keys)], values - 1)
    hbm.remove([1])
    hbm.apply("sgd", [77], np.ones((1, 4), np.float32), hyper=sgd)
    assert hbm.total_count() == rows
    hbm.close()


@pytest.mark.parametrize("kind, rows", [("HBM_DRAM", [4, 12]), ("HBM_DRAM_SSDHASH", [4, 3, 9])])
def test_a_full_variable_trains_is_saved_and_restored(
    kind, rows, tmp_path, emulated_device, session
):
    model = Model(tf_multitier.StorageOption(kind, str(tmp_path), storage_rows=rows))
    saver = v1.train.Saver()
    session.run(v1.global_variables_initializer())
    model.run(session, np.arange(12))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="12 of 12 rows.*no room for 2 more"):
        model.run(session, [3, 50, 51])
    model.run(session, [3, 4])
    expected = model.look_up(session, np.arange(14))
    prefix = saver.save(session, str(tmp_path / "full"))
    model.run(session, [3, 4, 5])
    saver.restore(session, prefix)
    np.testing.assert_array_equal(model.look_up(session, np.arange(14)), expected)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no room for 1 more"):
        model.run(session, [50])


def test_hbm_that_the_device_cannot_hold_names_what_was_asked_and_what_was_free(tmp_path):
    with pytest.raises(
        engine.ResourceExhaustedError,
        match=r"no memory for \d+ bytes; \d+ of 68719476736 bytes are free",
    ):
        engine.Table(
            dim=1 << 14, storage_type="HBM_DRAM", storage_size=[1 << 37], device="emulated"
        )


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (dict(device="cuda"), ValueError, "device: expected emulated.* found 'cuda'"),
        (dict(device=3), ValueError, "device: expected text, found 3"),
        (dict(device=None), NotImplementedError, "HBM_DRAM: its HBM tier needs.*; use DRAM"),
        (
            dict(storage_size=[64], drop_coldest=True),
            ValueError,
            "drop_coldest: expected the size of the last tier of HBM_DRAM to be given too, found 1",
        ),
        (dict(keep=True), ValueError, "with files, found HBM_DRAM"),
        (
            dict(storage_size=[15]),
            ValueError,
            r"tier hbm of at least one row \(16 bytes\), found 15",
        ),
    ],
)
def test_what_hbm_cannot_do_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        engine.Table(**{"dim": 4, "storage_type": "HBM_DRAM", "device": "emulated", **arguments})


# ---- HBM alone: it grows, and keeps every row


def hbm_alone(path, **options):
    return engine.Table(
        dim=4,
        initializer="uniform",
        a=-1.0,
        b=1.0,
        storage_type="HBM",
        slots=[("accumulator", 4, 0.1)],
        device="emulated",
        **options,
    )


def test_hbm_alone_keeps_every_row_and_has_the_bits_of_dram(tmp_path):
    plain, hbm = table("DRAM", tmp_path), hbm_alone(tmp_path)
    train([plain, hbm])
    keys = np.arange(100, 2500)  # more than HBM has room for at first
    for one in (plain, hbm):
        one.apply("adagrad", keys, np.ones((len(keys), 4), np.float32), hyper=HYPER)
    train([plain, hbm], seed=2)
    assert_same(plain, hbm)
    np.testing.assert_array_equal(hbm.lookup(keys), plain.lookup(keys))
    assert (hbm.lookup_tier(keys) == 0).all()
    tiers = hbm.stats()["tiers"]
    assert [tier["name"] for tier in tiers] == ["hbm", "dram"]  # the host's copies
    assert tiers[0]["rows"] == hbm.total_count() and tiers[0]["budget_bytes"] == 0
    assert plain.remove(keys[:9]) == hbm.remove(keys[:9]) == 9
    assert_same(plain, hbm)


def test_hbm_alone_of_a_given_size_refuses_rows_beyond_it(tmp_path):
    hbm = hbm_alone(tmp_path, storage_size=[10 * 32])
    ones = np.ones((12, 4), np.float32)
    hbm.apply("adagrad", np.arange(10), ones[:10], hyper=HYPER)
    with pytest.raises(
        engine.ResourceExhaustedError,
        match="tier hbm: expected room for 12 rows .* found a size of 320 bytes, which holds 10",
    ):
        hbm.apply("adagrad", np.arange(12), ones, hyper=HYPER)
    hbm.apply("adagrad", np.arange(10), ones[:10], hyper=HYPER)
    assert hbm.frequency(np.arange(12)).tolist() == [2] * 10 + [0] * 2


def test_hbm_alone_takes_over_the_rows_of_another_table(tmp_path):
    plain, hbm = table("DRAM", tmp_path), hbm_alone(tmp_path)
    train([plain])
    hbm.import_rows(plain.export())
    train([plain, hbm], seed=2)
    assert_same(plain, hbm)
    with pytest.raises(ValueError, match="keep: expected a storage_type with files, found HBM"):
        hbm_alone(tmp_path, keep=True)


def test_a_bad_device_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("TF_MULTITIER_DEVICE", "tpu")
    with pytest.raises(ValueError, match="TF_MULTITIER_DEVICE: expected emulated.* found 'tpu'"):
        engine.Table(dim=4)
