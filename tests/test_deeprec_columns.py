"""The column that only DeepRec has, and its arguments of TensorFlow's columns."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import columns

v1 = tf.compat.v1


def _run(tensors):
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return session.run(tensors)


def _ids(values, dtype=tf.int64):
    n = len(values)
    return tf.SparseTensor([[i, 0] for i in range(n)], tf.cast(values, dtype), [n, 1])


def _adaptive(**kwargs):
    ids = columns.categorical_column_with_adaptive_embedding("a", hash_bucket_size=4, dtype=tf.int64, **kwargs)
    return columns.embedding_column(ids, dimension=2, initializer=v1.ones_initializer())


@pytest.mark.parametrize("partition_num", [None, 2])
def test_an_adaptive_column_trains_hot_ids_apart_and_cold_ids_together(graph, partition_num):
    features = {"a": _ids([1, 5, 9, -3])}  # all of bucket 1
    net = columns.input_layer(features, [_adaptive(partition_num=partition_num)],
                              adaptive_mask_tensors={"a": tf.constant([1, 0, 0, 1])})
    step = v1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(net))
    table, = tf_multitier.embedding_variables()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert (session.run(net) == 1).all()
        session.run(step)
        np.testing.assert_array_equal(session.run(net)[:, 0], [0.5, 0.0, 0.0, 0.5])
        assert session.run(table.get_frequency([1, 5, 9, -3])).tolist() == [1, 0, 0, 1]


def test_an_adaptive_column_pools_and_takes_empty_rows_and_strings(graph):
    ids = columns.categorical_column_with_adaptive_embedding("a", hash_bucket_size=4)
    column = columns.embedding_column(ids, 2, "sum", v1.ones_initializer())
    features = {"a": tf.SparseTensor([[0, 0], [0, 1], [2, 0]], ["x", "y", "x"], [4, 2])}
    for mask in ([1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]):
        with v1.variable_scope("net", reuse=v1.AUTO_REUSE):
            net = columns.input_layer(features, column, adaptive_mask_tensors={"a": tf.constant(mask)})
        assert _run(net).tolist() == [[2, 2], [0, 0], [1, 1], [0, 0]]


def test_an_adaptive_column_without_its_mask_says_so(graph):
    with pytest.raises(ValueError, match=r"column 'a' needs a mask .*adaptive_mask_tensors=\{'a': mask\}"):
        columns.input_layer({"a": _ids([1])}, [_adaptive()], adaptive_mask_tensors={"b": tf.constant([1])})


def test_columns_of_tensorflow_take_deeprecs_arguments(graph):
    a = tf_multitier.feature_column.categorical_column_with_embedding("a", tf.int64)
    b = tf_multitier.feature_column.categorical_column_with_embedding("b", tf.int64)
    c = tf_multitier.feature_column.categorical_column_with_embedding("c", tf.int64)
    net = columns.input_layer({key: _ids([1, 2]) for key in "abc"}, [
        columns.embedding_column(a, 2, combiner="mean", do_fusion="v2"),
        *columns.shared_embedding_columns([b, c], 3, do_fusion=True)])
    assert _run(net).shape == (2, 8)
    with pytest.raises(ValueError, match="coalesced_scope is not supported"):
        columns.embedding_column(a, 2, coalesced_scope=object())


@pytest.mark.parametrize("make, message", [
    (lambda: columns.categorical_column_with_adaptive_embedding("a", 0), "hash_bucket_size must be at least 1"),
    (lambda: columns.embedding_column(columns.categorical_column_with_adaptive_embedding("a", 2), 0), "dimension must be an integer"),
    (lambda: columns.embedding_column(columns.categorical_column_with_adaptive_embedding("a", 2), 2, ckpt_to_load_from="c",
                                      tensor_name_in_ckpt="t"), "ckpt_to_load_from and tensor_name_in_ckpt are not supported"),
])
def test_columns_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tensorflows_own_embedding_column_over_an_adaptive_column_says_what_to_use(graph):
    column = tf.feature_column.embedding_column(columns.categorical_column_with_adaptive_embedding("a", 2, tf.int64), 4)
    with pytest.raises(NotImplementedError, match=r"use it under tf_multitier\.deeprec\.columns\.embedding_column"):
        v1.feature_column.input_layer({"a": _ids([1])}, [column])
