"""The columns that only DeepRec has, and its arguments of TensorFlow's columns."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import columns
from tf_multitier.deeprec import contrib

v1 = tf.compat.v1


def _run(tensors):
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return session.run(tensors)


def _ids(values, dtype=tf.int64):
    n = len(values)
    return tf.SparseTensor([[i, 0] for i in range(n)], tf.cast(values, dtype), [n, 1])


@pytest.mark.parametrize(
    "operation, dimension", [("concat", (2, 3)), ("add", (2, 2)), ("mul", (2, 2))]
)
@pytest.mark.parametrize("partition_num", [None, 2])
def test_a_multihash_column_pools_the_rows_of_both_tables(
    graph, operation, dimension, partition_num
):
    ids = columns.categorical_column_with_multihash(
        "a", dims=(3, 4), operation=operation, partition_num=partition_num
    )
    column = columns.embedding_column(ids, dimension, "sum")
    features = {
        "a": tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([5, 11, 7], tf.int32), [3, 2])
    }
    owned = {}
    net = columns.input_layer(features, column, cols_to_vars=owned)
    assert net.shape.as_list()[1] == (5 if operation == "concat" else 2)
    step = v1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(net))
    names = [
        f"input_layer/a_embedding/embedding_weights/{part}" for part in ("quotient", "remainder")
    ]
    tables = [[v for v in v1.trainable_variables() if v.op.name.startswith(name)] for name in names]
    assert sorted(v.name for v in owned[column]) == sorted(
        v.name for table in tables for v in table
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        quotients, remainders = (np.concatenate(session.run(table)) for table in tables)
        assert (len(quotients), len(remainders)) == (3, 4)
        joined = {
            "add": np.add,
            "mul": np.multiply,
            "concat": lambda a, b: np.concatenate([a, b], -1),
        }[operation]
        rows = joined(quotients[[1, 2, 1]], remainders[[1, 3, 3]])
        np.testing.assert_allclose(
            session.run(net), [rows[0] + rows[1], 0 * rows[0], rows[2]], rtol=1e-6, atol=1e-6
        )
        session.run(step)
        changed = (np.concatenate(session.run(tables[0])) != quotients).any(axis=1)
        assert changed.tolist() == [False, True, True]


def test_a_multihash_column_drops_padding_of_dense_features(graph):
    column = columns.embedding_column(
        columns.categorical_column_with_multihash("a", (2, 2)),
        (1, 1),
        initializer=v1.ones_initializer(),
    )
    assert _run(columns.input_layer({"a": np.array([[3, -1], [-1, -1]])}, [column])).tolist() == [
        [1, 1],
        [0, 0],
    ]


def _adaptive(**kwargs):
    ids = columns.categorical_column_with_adaptive_embedding(
        "a", hash_bucket_size=4, dtype=tf.int64, **kwargs
    )
    return columns.embedding_column(ids, dimension=2, initializer=v1.ones_initializer())


@pytest.mark.parametrize("partition_num", [None, 2])
def test_an_adaptive_column_trains_hot_ids_apart_and_cold_ids_together(graph, partition_num):
    features = {"a": _ids([1, 5, 9, -3])}  # all of bucket 1
    net = columns.input_layer(
        features,
        [_adaptive(partition_num=partition_num)],
        adaptive_mask_tensors={"a": tf.constant([1, 0, 0, 1])},
    )
    step = v1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(net))
    (table,) = tf_multitier.embedding_variables()
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
            net = columns.input_layer(
                features, column, adaptive_mask_tensors={"a": tf.constant(mask)}
            )
        assert _run(net).tolist() == [[2, 2], [0, 0], [1, 1], [0, 0]]


def test_an_adaptive_column_without_its_mask_says_so(graph):
    with pytest.raises(
        ValueError,
        match=r"column 'a': mask: expected a tensor .*adaptive_mask_tensors=\{'a': mask\}",
    ):
        columns.input_layer(
            {"a": _ids([1])}, [_adaptive()], adaptive_mask_tensors={"b": tf.constant([1])}
        )


def test_columns_of_tensorflow_take_deeprecs_arguments(graph):
    a = tf_multitier.feature_column.categorical_column_with_embedding("a", tf.int64)
    b = tf_multitier.feature_column.categorical_column_with_embedding("b", tf.int64)
    c = tf_multitier.feature_column.categorical_column_with_embedding("c", tf.int64)
    net = columns.input_layer(
        {key: _ids([1, 2]) for key in "abc"},
        [
            columns.embedding_column(a, 2, combiner="mean", do_fusion="v2"),
            *columns.shared_embedding_columns([b, c], 3, do_fusion=True),
        ],
    )
    assert _run(net).shape == (2, 8)
    with pytest.raises(ValueError, match="coalesced_scope: expected None"):
        columns.embedding_column(a, 2, coalesced_scope=object())


_MULTIHASH = columns.categorical_column_with_multihash("a", (2, 2))


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: columns.categorical_column_with_multihash("a", (2,)),
            "column 'a': dims: expected two numbers",
        ),
        (
            lambda: columns.categorical_column_with_multihash("a", (2, 0)),
            "dims: expected two numbers of rows, each at least 1",
        ),
        (
            lambda: columns.categorical_column_with_multihash("a", (2, 2), dtype=tf.string),
            "dtype: expected an integer type",
        ),
        (
            lambda: columns.categorical_column_with_multihash("a", (2, 2), "hash"),
            "column 'a': complementary_strategy: expected 'Q-R'",
        ),
        (lambda: columns.embedding_column(_MULTIHASH, 4), "dimension: expected two integers"),
        (
            lambda: columns.embedding_column(
                columns.categorical_column_with_multihash("a", (2, 2), operation="add"), (2, 3)
            ),
            "dimension: expected equal ones for operation 'add'",
        ),
        (
            lambda: columns.embedding_column(_MULTIHASH, (2, 2), tensor_name_in_ckpt="t"),
            "tensor_name_in_ckpt: expected None, found 't'",
        ),
        (
            lambda: columns.categorical_column_with_adaptive_embedding("a", 0),
            "hash_bucket_size: expected at least 1",
        ),
        (
            lambda: columns.embedding_column(
                columns.categorical_column_with_adaptive_embedding("a", 2), 0
            ),
            "dimension: expected an integer",
        ),
        (
            lambda: columns.embedding_column(
                columns.categorical_column_with_adaptive_embedding("a", 2),
                2,
                ckpt_to_load_from="c",
                tensor_name_in_ckpt="t",
            ),
            "ckpt_to_load_from: expected None, found 'c'",
        ),
    ],
)
def test_columns_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tensorflows_own_embedding_column_over_an_adaptive_column_says_what_to_use(graph):
    column = tf.feature_column.embedding_column(
        columns.categorical_column_with_adaptive_embedding("a", 2, tf.int64), 4
    )
    with pytest.raises(
        NotImplementedError, match=r"use it under tf_multitier\.deeprec\.columns\.embedding_column"
    ):
        v1.feature_column.input_layer({"a": _ids([1])}, [column])


def test_do_fusion_changes_no_shape_in_linear_models_and_contrib(graph):
    features = {"a": tf.constant([[3], [5]], tf.int64)}
    ids = tf_multitier.feature_column.categorical_column_with_embedding("a", tf.int64)
    wide = [
        columns.linear_model(features, [ids], units=2, sparse_combiner="sum", do_fusion=fused)
        for fused in (False, True)
    ]
    deep = contrib.input_from_feature_columns(
        features, [contrib.embedding_column(ids, 4, do_fusion=True)]
    )
    shared = contrib.shared_embedding_columns([ids], 4, do_fusion=True)
    assert [x.shape.as_list() for x in (*wide, deep)] == [[2, 2], [2, 2], [2, 4]] and len(
        shared
    ) == 1
