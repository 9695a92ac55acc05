"""Dynamic-dimension variables, and the arguments that DeepRec's lookups have beyond TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import dynamic_dimension
from tf_multitier.deeprec import lookup_arguments

v1 = tf.compat.v1
LOOKUP, SPARSE = (
    lookup_arguments.LOOKUPS[name] for name in ("embedding_lookup", "embedding_lookup_sparse")
)


def make(name="t", **kwargs):
    return dynamic_dimension.get_dynamic_dimension_embedding_variable(
        name,
        embedding_block_dimension=2,
        embedding_block_num=3,
        initializer=v1.random_normal_initializer(seed=1),
        **kwargs,
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_blocks_beyond_an_ids_number_are_zeros_and_are_not_trained(graph, parts):
    del graph
    table = make(partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None)
    assert table.embedding_dim == 6 and [b.variable_name for b in table.blocks] == [
        f"t/block_{i}" for i in range(3)
    ]
    ids, blocknums = tf.constant([[4, 5], [4, -6]], tf.int64), tf.constant([[1, 3], [0, 9]])
    rows = LOOKUP(table, ids, blocknums=blocknums)
    assert rows.shape.as_list() == [2, 2, 6]
    whole = tf.concat([tf.nn.embedding_lookup(block, ids) for block in table.blocks], -1)
    step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(rows))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found, all_blocks = session.run([rows, whole])
        mask = np.arange(6) // 2 < np.array([1, 3, 0, 9]).reshape(2, 2, 1)
        np.testing.assert_array_equal(found, np.where(mask, all_blocks, 0))
        session.run(step)
        assert session.run([block.total_count() for block in table.blocks]) == [3, 2, 2]
        np.testing.assert_allclose(session.run(rows), np.where(mask, found - 1, 0), rtol=1e-6)


def test_pooled_lookups_pool_what_single_ones_give(graph):
    del graph
    table = make()
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 2, 1], tf.int64), [3, 2])
    weights = tf.SparseTensor(ids.indices, tf.constant([0.5, 1.5, 2.0]), ids.dense_shape)
    blocknums = [1, 2, 3]
    pooled = [
        SPARSE(table, ids, weights, combiner="mean", blocknums=blocknums),
        SPARSE(params=table, sp_ids=ids, sp_weights=None, combiner="sum", blocknums=blocknums),
    ]
    rows = LOOKUP(table, ids.values, blocknums=blocknums)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        (mean, total), (a, b, c) = session.run([pooled, rows])
    np.testing.assert_allclose(mean, [(a * 0.5 + b * 1.5) / 2, 0 * a, c], rtol=1e-6)
    np.testing.assert_allclose(total, [a + b, 0 * a, c], rtol=1e-6)


def test_other_variables_are_looked_up_as_ever(graph):
    del graph
    table = tf_multitier.get_embedding_variable("t", 2)
    static = v1.get_variable("s", [3, 2])
    for variable in (table, static):
        found = [
            LOOKUP(variable, [1, 2], counts=None, ev_init_value=None),
            v1.nn.embedding_lookup(variable, [1, 2]),
        ]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            np.testing.assert_array_equal(*session.run(found))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda t: LOOKUP(t, [1]),
            ValueError,
            "variable 't': blocknums: expected the number of blocks of each id, found None",
        ),
        (
            lambda t: LOOKUP(t, [1], blocknums=[1, 2]),
            ValueError,
            "blocknums: expected shape .*, that of ids",
        ),
        (
            lambda t: LOOKUP(t.blocks[0], [1], blocknums=[1]),
            ValueError,
            "params: expected a dynamic-dimension variable with blocknums",
        ),
        (
            lambda t: LOOKUP(t.blocks[0], [1], counts=[1]),
            NotImplementedError,
            "counts is not supported",
        ),
        (
            lambda t: make("u", storage_type="HBM"),
            ValueError,
            "'u': storage_type: expected None, found 'HBM': give ev_option",
        ),
        (
            lambda t: dynamic_dimension.get_dynamic_dimension_embedding_variable("u", 2, 0),
            ValueError,
            "embedding_block_num: expected",
        ),
    ],
)
def test_what_is_refused(graph, call, error, message):
    del graph
    table = make()
    with pytest.raises(error, match=message):
        call(table)
