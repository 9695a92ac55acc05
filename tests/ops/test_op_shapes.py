"""The shape functions of the ops, without a Python layer in between, and graphs that they refuse."""

import numpy as np
import pytest
import tensorflow as tf
from op_util import DIM
from op_util import handle
from op_util import initialize
from op_util import keys64
from op_util import ops
from op_util import sgd
from op_util import sparse
from op_util import unknown


def test_shapes_of_lookups_with_known_and_unknown_inputs():
    with tf.Graph().as_default():
        h, anonymous = handle(), unknown(tf.resource)
        assert ops.multitier_lookup(h, unknown(shape=[2, 3]), []).shape.as_list() == [2, 3, DIM]
        assert ops.multitier_lookup(h, unknown(shape=[None]), []).shape.as_list() == [None, DIM]
        assert ops.multitier_lookup(h, unknown(), []).shape.rank is None
        assert ops.multitier_lookup(anonymous, unknown(shape=[2]), []).shape.as_list() == [2, None]
        assert sparse(h, [1], [0], 7).shape.as_list() == [7, DIM]
        pooled = ops.multitier_lookup_sparse(
            [anonymous],
            unknown(),
            unknown(),
            unknown(tf.float32),
            unknown(),
            combiner="sum",
            dim=3,
            has_weights=True,
        )
        assert pooled.shape.as_list() == [None, 3]
        for has_weights, n in ((True, 9), (False, 0)):
            grads = ops.multitier_lookup_sparse_grad(
                [h],
                unknown(shape=[9]),
                unknown(),
                unknown(tf.float32),
                unknown(tf.float32),
                combiner="sum",
                dim=DIM,
                has_weights=has_weights,
            )
            assert [t.shape.as_list() for t in grads] == [[9, DIM], [n]]
        grads = ops.multitier_lookup_sparse_grad(
            [anonymous],
            unknown(),
            unknown(),
            unknown(tf.float32),
            unknown(tf.float32, [7, 4]),
            combiner="sum",
            dim=4,
            has_weights=True,
        )
        assert [t.shape.as_list() for t in grads] == [[None, 4], [None]]
        clipped = ops.multitier_hbm_clip_by_norm_grad(
            h, unknown(tf.float32, [7, None]), unknown(tf.float32, [None, 4]), max_norm=1.0
        )
        assert clipped.shape.as_list() == [7, 4]
        filled = ops.multitier_fill_empty_rows(unknown(shape=[9]), unknown())
        assert [t.shape.as_list() for t in filled] == [[None], [None]]
        positions, parts = ops.multitier_partition_keys(unknown(shape=[9]), num_partitions=3)
        assert [t.shape.as_list() for t in positions + parts] == [[None]] * 6
        strings = ops.multitier_gather_strings(
            unknown(), unknown(tf.uint8), unknown(tf.int32, [2, None])
        )
        assert strings.dtype == tf.string and strings.shape.as_list() == [2, None]


def test_shapes_of_the_other_ops():
    with tf.Graph().as_default():
        h, keys = handle(), unknown(shape=[2, None])
        for op in (
            ops.multitier_frequency,
            ops.multitier_version,
            ops.multitier_score,
            ops.multitier_lookup_tier,
        ):
            assert op(h, keys).shape.as_list() == [2, None]
        for out in (
            h,
            ops.multitier_is_initialized(h),
            ops.multitier_count(h),
            ops.multitier_stats(h),
            ops.multitier_remove(h, keys),
            ops.multitier_expire(h, 1),
            ops.multitier_prefetch(h, keys),
        ):
            assert out.shape.rank == 0
        steps = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[])
        assert ops.multitier_begin_step([steps, steps]).shape.rank == 0
        assert ops.multitier_least_in_flight(steps).shape.rank == 0
        assert ops.multitier_pop_dropped(h).shape.as_list() == [None]
        assert ops.multitier_removed_since(h, version=0).shape.as_list() == [None]
        assert [t.shape.as_list() for t in ops.multitier_last_update(h)] == [[], []]
        dropped = ops.multitier_pop_dropped_rows(h, N=1, column_names=["value"])
        assert [t.shape.as_list() for t in tf.nest.flatten(dropped)] == [
            [None],
            [None, DIM],
            [None],
            [None],
        ]
        exported = ops.multitier_export(h)
        assert [t.shape.as_list() for t in exported] == [[None], [None, DIM], [None], [None]]
        group = ops.multitier_save_group()
        assert group.shape.as_list() == []
        assert ops.multitier_saved_part(group, h).shape.as_list() == []
        assert ops.multitier_save_part(h, "p").shape.as_list() == []
        saved = ops.multitier_export_rows(h)
        assert [t.shape.as_list() for t in saved] == [
            [],
            [None],
            [None, None],
            [None],
            [None],
            [None, 3],
            [None, DIM],
            [None],
        ]
        for op in (
            initialize(h),
            sgd(h, [1], np.ones((1, DIM))),
            ops.multitier_drain(h),
            ops.multitier_flush(h),
            ops.multitier_reserve(h, 5),
            ops.multitier_set_score(h, 5),
            ops.multitier_release_prefetched(h),
            ops.multitier_add_slots(h, slot_names=[], slot_dims=[], slot_initial_values=[]),
            ops.multitier_restore(h, "p", variable_name="ev", shape=[0, DIM]),
        ):
            assert isinstance(op, tf.Operation)


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda h: ops.multitier_embedding_variable_handle(shape=[DIM]),
            r"expected \[0, dim\].*found \[4\]",
        ),
        (
            lambda h: ops.multitier_embedding_variable_handle(shape=[0, None]),
            r"expected \[0, dim\]",
        ),
        (
            lambda h: ops.multitier_embedding_variable_handle(shape=[5, DIM]),
            r"expected \[0, dim\].*found \[5,4\]",
        ),
        (lambda h: initialize(h, matrix=tf.zeros([0, 3])), "4 and 3"),
        (lambda h: initialize(h, matrix=tf.zeros([4])), "rank 2"),
        (lambda h: sgd(h, [[1]], np.ones((1, DIM))), "rank 1"),
        (lambda h: sgd(h, [1], np.ones(DIM)), "rank 2"),
        (lambda h: sgd(h, [1], np.ones((1, 3))), "4 and 3"),
        (lambda h: sgd(h, [1, 2], np.ones((1, DIM))), "2 and 1"),
        (lambda h: sgd(h, [1], np.ones((1, DIM)), step=[1]), "rank 0"),
        (lambda h: sparse(h, [1], [0], 1, dim=3), "3 and 4"),
        (lambda h: sparse(h, [1, 2], [0], 1), "2 and 1"),
        (lambda h: sparse(h, [1], [0], [1]), "rank 0"),
        (lambda h: sparse(h, [1], [0], 1, combiner="max"), "combiner"),
        (lambda h: ops.multitier_lookup(tf.stack([h, h]), keys64([1]), []), "rank 0"),
        (
            lambda h: ops.multitier_saved_part(ops.multitier_save_group(), tf.stack([h, h])),
            "rank 0",
        ),
        (lambda h: ops.multitier_write_save_group(ops.multitier_save_group(), ["p"]), "rank 0"),
        (lambda h: ops.multitier_set_score(h, [1]), "rank 0"),
        (lambda h: ops.multitier_reserve(h, [1]), "rank 0"),
        (lambda h: ops.multitier_partition_keys(keys64([[1]]), num_partitions=2), "rank 1"),
        (lambda h: ops.multitier_fill_empty_rows(keys64([[1]]), 2), "rank 1"),
        (lambda h: ops.multitier_fill_empty_rows(keys64([1]), [2]), "rank 0"),
        (lambda h: ops.multitier_gather_strings(keys64(1), np.zeros(1, np.uint8), [0]), "rank 1"),
        (lambda h: ops.multitier_gather_strings(keys64([0, 1]), np.uint8(1), [0]), "rank 1"),
        (
            lambda h: ops.multitier_check_side_by_side([[2, 3], [2, 4]], names=["a"]),
            "names: expected 2 entries.*found 1",
        ),
        (lambda h: ops.multitier_check_side_by_side([2, 2], names=["a", "b"]), "rank 1"),
        (
            lambda h: ops.multitier_add_slots(
                h, slot_names=["a"], slot_dims=[], slot_initial_values=[1.0]
            ),
            "slot_dims: expected 1 entries.*found 0",
        ),
    ],
)
def test_graphs_that_cannot_work_are_refused_when_built(build, message):
    with tf.Graph().as_default():
        with pytest.raises((ValueError, TypeError), match=message):
            build(handle())


@pytest.mark.parametrize(
    "build",
    [
        lambda h: ops.multitier_lookup(h, tf.constant([1.0]), []),
        lambda h: ops.multitier_lookup(h, tf.constant(["a"]), []),
        lambda h: ops.multitier_lookup(h, keys64([1]), [], dtype=tf.float64),
        lambda h: ops.multitier_embedding_variable_handle(shape=[0, DIM], dtype=tf.float64),
        lambda h: ops.multitier_embedding_variable_handle(shape=[0, DIM], key_dtype=tf.string),
        lambda h: ops.multitier_frequency(h, tf.constant([1.0])),
        lambda h: ops.multitier_lookup(tf.constant(1.0), keys64([1]), []),
    ],
)
def test_dtypes_that_are_not_supported_are_refused_when_built(build):
    with tf.Graph().as_default():
        with pytest.raises((ValueError, TypeError)):
            build(handle())
