"""The kernels of the ops, without a Python layer in between: results, errors, and the life of a variable."""

import json

import numpy as np
import pytest
import tensorflow as tf
from op_util import DIM
from op_util import adagrad
from op_util import handle
from op_util import initialize
from op_util import initialized
from op_util import keys64
from op_util import ops
from op_util import sgd
from op_util import sparse
from op_util import unknown

from tf_multitier import engine

tf1 = tf.compat.v1


errors = tf.errors


@pytest.fixture(name="ev")
def fixture_ev(session):
    return initialized(session)


# Life of a variable.


def test_uninitialised_use_names_the_variable_and_what_to_run(session):
    h = handle("user_id")
    assert not session.run(ops.multitier_is_initialized(h))
    for op in (
        ops.multitier_lookup(h, keys64([1]), []),
        ops.multitier_count(h),
        sgd(h, [1], np.ones((1, DIM))),
        sparse(h, [1], [0], 1),
        ops.multitier_export(h).keys,
        ops.multitier_export_rows(h).manifest,
        ops.multitier_drain(h),
        ops.multitier_prefetch(h, keys64([1])),
        ops.multitier_release_prefetched(h),
        ops.multitier_pop_dropped(h),
        ops.multitier_removed_since(h, version=0),
        ops.multitier_pop_dropped_rows(h, N=1, column_names=["value"]),
        ops.multitier_last_update(h),
        ops.multitier_peek(h, keys64([1]), []),
        ops.multitier_compact(h),
    ):
        with pytest.raises(
            errors.FailedPreconditionError,
            match="'user_id' is not initialized: run its initializer",
        ):
            session.run(op)


def test_a_prefetch_at_best_effort_of_an_uninitialised_variable_keeps_nothing(session):
    assert session.run(ops.multitier_prefetch(handle(), keys64([1]), best_effort=True)) == 0


def test_initialize_again_gives_an_empty_variable(session, ev):
    session.run(sgd(ev, [1], np.ones((1, DIM))))
    assert session.run(ops.multitier_count(ev)) == 1
    session.run(initialize(ev))
    assert session.run(ops.multitier_is_initialized(ev))
    assert session.run(ops.multitier_count(ev)) == 0


def test_sessions_of_one_server_share_a_variable():
    server = tf1.train.Server.create_local_server()
    with tf.Graph().as_default():
        h = handle()
        init, train, count = (
            initialize(h),
            sgd(h, [1, 2], np.ones((2, DIM))),
            ops.multitier_count(h),
        )
        with tf1.Session(server.target) as a, tf1.Session(server.target) as b:
            a.run(init)
            b.run(train)
            assert a.run(count) == 2


def test_containers_and_names_tell_variables_apart(session):
    named = ops.multitier_embedding_variable_handle(shape=[0, DIM], name="node_name")
    other = ops.multitier_embedding_variable_handle(
        shape=[0, DIM], name="other_name", container="c"
    )
    session.run(initialize(named))
    assert session.run(ops.multitier_is_initialized(named))
    assert not session.run(ops.multitier_is_initialized(other))


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            dict(storage_type="HBM_DRAM"),
            errors.UnimplementedError,
            "HBM_DRAM: its HBM tier needs.*use DRAM",
        ),
        (
            dict(storage_type="LEVELDB"),
            errors.InvalidArgumentError,
            "storage_path: expected a directory.*LEVELDB",
        ),
        (
            dict(storage_type="TAPE"),
            errors.InvalidArgumentError,
            "storage_type: expected one of DRAM, .*found 'TAPE'",
        ),
        (
            dict(initializer="zeros"),
            errors.InvalidArgumentError,
            "initializer.kind: expected one of constant.*found 'zeros'",
        ),
        (
            dict(filter="lottery"),
            errors.InvalidArgumentError,
            "filter.kind: expected one of none.*found 'lottery'",
        ),
        (dict(filter=dict(kind="bloom", filter_freq=3)), errors.InvalidArgumentError, "0"),
        (
            dict(cache_strategy="FIFO"),
            errors.InvalidArgumentError,
            "cache_strategy: expected one of DEFAULT, LRU, LFU, SCORE; found 'FIFO'",
        ),
        (dict(storage_size=[-1]), errors.InvalidArgumentError, r"storage_size\[0\].*found -1"),
        (
            dict(storage_size=[1, 2]),
            errors.InvalidArgumentError,
            "at most 1, one for each tier of DRAM; found 2",
        ),
        (dict(filter=dict(filter_freq=-1)), errors.InvalidArgumentError, "filter_freq.*found -1"),
        (dict(steps_to_live=-1), errors.InvalidArgumentError, "steps_to_live.*found -1"),
        (dict(num_partitions=0), errors.InvalidArgumentError, "num_partitions.*found 0"),
        (
            dict(partition_index=2, num_partitions=2),
            errors.InvalidArgumentError,
            "partition_index.*found 2",
        ),
        (
            dict(initializer="matrix"),
            errors.InvalidArgumentError,
            "matrix_rows >= 1, found 0",
        ),
        (
            dict(initializer=dict(kind="matrix", matrix_rows=2)),
            errors.InvalidArgumentError,
            r"shape \[2,4\], found \[0,4\]",
        ),
        (dict(initializer=dict(kind="uniform", b=-2.0)), errors.InvalidArgumentError, "."),
    ],
)
def test_options_out_of_range_are_refused_by_name(session, options, error, message):
    h = handle()
    # The record is checked when the op is built, the other attributes and the machine when it runs.
    with pytest.raises((error, ValueError), match=message):
        session.run(initialize(h, **options))
    assert not session.run(ops.multitier_is_initialized(h))


def test_matrix_initializer_gives_row_key_mod_n(session):
    matrix = np.arange(2 * DIM, dtype=np.float32).reshape(2, DIM)
    h = handle()
    session.run(initialize(h, matrix=matrix, initializer=dict(kind="matrix", matrix_rows=2)))
    np.testing.assert_array_equal(
        session.run(ops.multitier_lookup(h, keys64([0, 3, -1]), [])), matrix[[0, 1, 1]]
    )


# Lookup and apply.


def test_lookup_of_any_shape_and_key_width_creates_nothing(session, ev):
    wide = session.run(ops.multitier_lookup(ev, keys64([[1, -2], [3, 1]]), []))
    narrow = session.run(ops.multitier_lookup(ev, tf.constant([[1, -2], [3, 1]], tf.int32), []))
    np.testing.assert_array_equal(wide, narrow)
    np.testing.assert_array_equal(wide[0, 0], wide[1, 1])
    assert session.run(ops.multitier_lookup(ev, keys64(5), [])).shape == (DIM,)
    assert session.run(ops.multitier_lookup(ev, tf.zeros([0, 3], tf.int64), [])).shape == (
        0,
        3,
        DIM,
    )
    assert session.run(ops.multitier_count(ev)) == 0


def test_lookup_equals_the_engine(session, ev):
    table = engine.Table(dim=DIM, initializer="uniform", a=-1.0, b=1.0, seed=5)
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1000)
    np.testing.assert_array_equal(
        session.run(ops.multitier_lookup(ev, keys64(keys), [])), table.lookup(keys)
    )


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32])
def test_repeated_keys_are_updated_once_with_the_sum(session, ev, dtype):
    lookup = ops.multitier_lookup(ev, keys64([1, 2]), [])
    before = session.run(lookup)
    session.run(sgd(ev, [1, 1, 1], np.ones((3, DIM)), dtype=dtype))
    np.testing.assert_array_equal(session.run(lookup), [before[0] - np.float32(3.0), before[1]])
    assert session.run(ops.multitier_frequency(ev, keys64([[1, 2]]))).tolist() == [[3, 0]]
    assert session.run(ops.multitier_version(ev, tf.constant([1, 2]))).tolist() == [1, -1]
    assert session.run(ops.multitier_lookup_tier(ev, keys64([1, 2]))).tolist() == [0, -1]


def test_counts_and_step_are_kept(session, ev):
    session.run(sgd(ev, [1, 2], np.ones((2, DIM)), counts=[5, 0], step=9))
    assert session.run(ops.multitier_frequency(ev, keys64([1, 2]))).tolist() == [5, 0]
    assert session.run(ops.multitier_version(ev, keys64([1, 2]))).tolist() == [9, 9]


def test_empty_apply_changes_nothing(session, ev):
    session.run(sgd(ev, [], np.zeros((0, DIM))))
    assert session.run(ops.multitier_count(ev)) == 0


def test_large_batch_over_all_threads_equals_the_engine(session, ev):
    table = engine.Table(dim=DIM, initializer="uniform", a=-1.0, b=1.0, seed=5)
    random = np.random.default_rng(2)
    for _ in range(3):
        keys = random.integers(0, 20000, 50000)
        grads = random.standard_normal((50000, DIM)).astype(np.float32)
        session.run(sgd(ev, keys, grads))
        table.apply("sgd", keys, grads, hyper={"learning_rate": 1.0})
    probe = np.arange(20000)
    np.testing.assert_array_equal(
        session.run(ops.multitier_lookup(ev, keys64(probe), [])), table.lookup(probe)
    )


def test_the_first_apply_adds_the_slots(session, ev):
    session.run(sgd(ev, [1], np.ones((1, DIM))))
    session.run(adagrad(ev, [1, 2], np.ones((2, DIM))))
    saved = session.run(ops.multitier_export_rows(ev))
    assert [c["name"] for c in json.loads(saved.manifest)["columns"]] == ["value", "ev/Adagrad"]
    np.testing.assert_array_equal(saved.rows[:, DIM:], np.full((2, DIM), 1.25))


def test_added_slots_are_used_and_another_dim_is_refused(session, ev):
    session.run(
        ops.multitier_add_slots(
            ev, slot_names=["ev/Adagrad"], slot_dims=[DIM], slot_initial_values=[2.0]
        )
    )
    session.run(adagrad(ev, [1], np.ones((1, DIM))))
    np.testing.assert_array_equal(
        session.run(ops.multitier_export_rows(ev)).rows[:, DIM:], np.full((1, DIM), 3.0)
    )
    with pytest.raises(errors.AlreadyExistsError, match="ev/Adagrad"):
        session.run(
            ops.multitier_add_slots(
                ev, slot_names=["ev/Adagrad"], slot_dims=[1], slot_initial_values=[2.0]
            )
        )


def run_apply(session, h, keys, grads, counts=(), step=-1, hyper=(1.0,), **kwargs):
    """An apply without static shapes."""
    feeds = {unknown(): keys, unknown(tf.float32): grads, unknown(): counts, unknown(): step}
    scalars = {unknown(tf.float32): x for x in hyper}
    attrs = dict(rule="sgd", slot_names=[], slot_initial_values=[]) | kwargs
    session.run(ops.multitier_apply(h, *feeds, list(scalars), [], **attrs), feeds | scalars)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(keys=[[1]], grads=np.ones((1, DIM))), r"keys: expected rank 1, found shape \[1,1\]"),
        (dict(keys=[1], grads=np.ones(DIM)), r"grads: expected rank 2, found shape \[4\]"),
        (
            dict(keys=[1], grads=np.ones((1, 3))),
            r"'ev': expected grads of shape \[1,4\], found \[1,3\]",
        ),
        (
            dict(keys=[1, 2], grads=np.ones((1, DIM))),
            r"expected grads of shape \[2,4\], found \[1,4\]",
        ),
        (
            dict(keys=[1], grads=np.ones((1, DIM)), counts=[1, 2]),
            r"expected counts of shape \[1\] or \[0\], found \[2\]",
        ),
        (dict(keys=[1], grads=np.ones((1, DIM)), counts=[-1]), r"counts\[0\] = -1"),
        (dict(keys=[1], grads=np.ones((1, DIM)), step=[3]), "global_step: expected rank 0"),
        (dict(keys=[1], grads=np.ones((1, DIM)), hyper=([1.0],)), "learning_rate: expected rank 0"),
        (
            dict(keys=[1], grads=np.ones((1, DIM)), hyper=()),
            "rule sgd: expected 1 hyperparameters, found 0",
        ),
        (
            dict(keys=[1], grads=np.ones((1, DIM)), rule="adagrad", hyper=(1.0, 1.0)),
            "rule adagrad: expected 1",
        ),
        (dict(keys=[1], grads=np.ones((1, DIM)), rule="sdg"), "sdg"),
    ],
)
def test_an_apply_that_does_not_fit_changes_nothing(session, ev, kwargs, message):
    session.run(sgd(ev, [1], np.ones((1, DIM))))
    before = session.run(ops.multitier_export_rows(ev))
    with pytest.raises(errors.InvalidArgumentError, match=message):
        run_apply(session, ev, **kwargs)
    for a, b in zip(before, session.run(ops.multitier_export_rows(ev))):
        np.testing.assert_array_equal(a, b)


def test_a_full_table_is_resource_exhausted_and_stays_usable(session):
    h = handle()
    session.run(initialize(h, storage_size=[2 * 4 * DIM]))
    session.run(sgd(h, [1, 2], np.ones((2, DIM))))
    with pytest.raises(errors.ResourceExhaustedError):
        session.run(sgd(h, [1, 3], np.ones((2, DIM))))
    assert session.run(ops.multitier_frequency(h, keys64([1, 2, 3]))).tolist() == [1, 1, 0]


# Inspection, removal.


def test_export_is_sorted_by_key(session, ev):
    keys = np.array([7, -3, 2**40, 0])
    session.run(sgd(ev, keys, np.ones((4, DIM)), step=3))
    exported = session.run(ops.multitier_export(ev))
    assert exported.keys.tolist() == sorted(keys)
    np.testing.assert_array_equal(
        exported.values, session.run(ops.multitier_lookup(ev, keys64(sorted(keys)), []))
    )
    assert exported.versions.tolist() == [3] * 4 and exported.frequencies.tolist() == [1] * 4


def test_remove_expire_stats_and_drain(session):
    h = handle()
    session.run(initialize(h, steps_to_live=10))
    session.run(sgd(h, [1, 2], np.ones((2, DIM)), step=1))
    session.run(sgd(h, [3], np.ones((1, DIM)), step=20))
    assert session.run(ops.multitier_remove(h, keys64([2, 50]))) == 1
    assert session.run(ops.multitier_expire(h, tf.constant(21, tf.int64))) == 1
    session.run(ops.multitier_drain(h))
    stats = json.loads(session.run(ops.multitier_stats(h)))
    assert (
        stats["rows"] == 1
        and stats["removed"] == 1
        and stats["expired"] == 1
        and stats["tiers"][0]["name"] == "dram"
    )


# Strings of Arrow's memory.


def test_strings_are_gathered_at_any_position_and_length(session):
    strings = [b"a", b"", b"x" * 22, b"y" * 23, b"\0\xff", b"z" * 5000]
    offsets, text = (
        np.cumsum([0] + [len(string) for string in strings]),
        np.frombuffer(b"".join(strings), np.uint8),
    )
    found = session.run(ops.multitier_gather_strings(offsets, text, [[5, 0, 1], [4, 3, 2]]))
    assert found.tolist() == [
        [strings[5], strings[0], strings[1]],
        [strings[4], strings[3], strings[2]],
    ]
    for shape in ((0,), (2, 0)):
        none = ops.multitier_gather_strings(
            keys64([0]), np.zeros(0, np.uint8), np.zeros(shape, np.int32)
        )
        assert session.run(none).shape == shape
    assert session.run(
        ops.multitier_gather_strings(keys64([0, 0]), np.zeros(0, np.uint8), [0, 0])
    ).tolist() == [b"", b""]


@pytest.mark.parametrize(
    "offsets, positions, message",
    [
        ([0, 2, 1], [0, 1], r"expected ascending offsets in \[0, 4\], found 2 and 1 of string 1"),
        ([0, 5], [0], r"expected ascending offsets in \[0, 4\], found 0 and 5 of string 0"),
        ([-1, 2], [0], r"expected ascending offsets in \[0, 4\], found -1 and 2 of string 0"),
        ([0, 4], [1], r"expected positions in \[0, 1\), found 1"),
        ([0, 4], [-1], r"expected positions in \[0, 1\), found -1"),
        ([0], [0], r"expected positions in \[0, 0\), found 0"),
        ([], [0], r"expected positions in \[0, 0\), found 0"),
    ],
)
def test_offsets_and_positions_outside_of_the_strings_are_refused(
    session, offsets, positions, message
):
    with pytest.raises(errors.InvalidArgumentError, match=message):
        session.run(ops.multitier_gather_strings(keys64(offsets), np.zeros(4, np.uint8), positions))
