"""Multihash variables: an id's embedding is made of its quotient's and its remainder's."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import names

v1 = tf.compat.v1


def make(operation, parts=1, dims=((3, 2), (4, 2))):
    return tf_multitier.get_multihash_variable(
        "mh",
        dims,
        operation=operation,
        initializer=v1.random_uniform_initializer(0.5, 1.5, seed=3),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
    )


def by_hand(operation, quotients, remainders, ids):
    q, r = quotients[np.floor_divide(ids, 4) % 3], remainders[np.mod(ids, 4)]
    return {
        "concat": lambda: np.concatenate([q, r], -1),
        "add": lambda: q + r,
        "mul": lambda: q * r,
    }[operation]()


@pytest.mark.parametrize("operation", ["concat", "add", "mul"])
@pytest.mark.parametrize("parts", [1, 2])
def test_lookups_pool_and_train_both_tables(graph, operation, parts):
    del graph
    table = make(operation, parts)
    ids = np.array([[0, 5, 11], [12, -1, 7]])
    dense = tf.nn.embedding_lookup(table, ids)
    sparse = tf.SparseTensor(
        np.array([[0, 0], [0, 1], [2, 0]], np.int64), np.array([5, 11, 7], np.int64), [3, 2]
    )
    weights = tf.SparseTensor(sparse.indices, np.array([0.5, 2.0, 3.0], np.float32), [3, 2])
    pooled = v1.nn.embedding_lookup_sparse(table, sparse, weights, combiner="mean")
    assert dense.shape.as_list() == [2, 3, table.embedding_dim]
    train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(pooled))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        tables = lambda: [
            np.concatenate(session.run(list(p) if parts > 1 else [p])) for p in table.parts
        ]
        before = tables()
        values = by_hand(operation, *before, np.array([5, 11, 7]))
        np.testing.assert_allclose(session.run(dense), by_hand(operation, *before, ids), rtol=1e-6)
        np.testing.assert_allclose(
            session.run(pooled),
            [(values[0] * 0.5 + values[1] * 2) / 2.5, np.zeros(table.embedding_dim), values[2]],
            rtol=1e-5,
        )
        session.run(train)
        quotients, remainders = (np.any(a != b, axis=1).tolist() for a, b in zip(before, tables()))
    assert quotients == [False, True, True] and remainders == [False, True, False, True]


def test_safe_lookups_drop_weights_below_zero_and_fill_empty_rows(graph):
    del graph
    table = make("add")
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([5, -1, 7], tf.int64), [4, 2])
    weights = tf.SparseTensor(ids.indices, tf.constant([0.5, -2.0, 3.0]), [4, 2])
    found = [
        v1.nn.safe_embedding_lookup_sparse(table, ids, weights, "mean", default_id=9),
        tf.nn.safe_embedding_lookup_sparse(table, ids, weights, "mean"),
        tf.nn.safe_embedding_lookup_sparse(table, ids, None, "sum"),
    ]
    rows = tf.nn.embedding_lookup(table, [5, -1, 7, 9])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        (filled, weighted, plain), (five, below, seven, nine) = session.run([found, rows])
    np.testing.assert_allclose(filled, [five, nine, seven, nine], rtol=1e-6)
    np.testing.assert_allclose(weighted, [five, 0 * five, seven, 0 * five], rtol=1e-6)
    np.testing.assert_allclose(plain, [five + below, 0 * five, seven, 0 * five], rtol=1e-6)


def test_deeprecs_function_has_its_order_and_defaults(graph):
    del graph
    table = names.get_multihash_variable("a", [[3, 2], [3, 2]])
    assert table.operation == "add" and v1.trainable_variables() == table.parts
    frozen = names.get_multihash_variable(
        "b",
        [[3, 2], [3, 2]],
        "Q-R",
        "mult",
        float,
        tf.ones_initializer,
        None,
        False,
        num_of_partitions=2,
    )
    assert frozen.operation == "mul" and len(v1.trainable_variables()) == 2
    values = tf.nn.embedding_lookup(frozen, list(range(9)))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert (session.run(values) == 1).all()
    for argument in (dict(num_of_partitions=3), dict(constraint=abs), dict(operation="max")):
        with pytest.raises(ValueError, match=f"multihash variable 'c': {next(iter(argument))}"):
            names.get_multihash_variable("c", [[3, 2], [3, 2]], **argument)


def test_a_reusing_scope_finds_both_tables_and_ids_have_embeddings_of_their_own(graph):
    del graph
    first = make("concat")
    with v1.variable_scope("", reuse=True):
        assert make("concat").parts[0] is first.parts[0]
    values = tf.nn.embedding_lookup(first, list(range(12)))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert len(np.unique(session.run(values), axis=0)) == 12


def test_bad_arguments_are_named(graph):
    del graph
    for message, kwargs in (
        ("operation: expected one of concat, add, mul, found 'max'", dict(operation="max")),
        ("dims: expected", dict(operation="add", dims=[[3, 2]])),
        (
            "dims: expected equal dims for operation 'mul', found 2 and 3",
            dict(operation="mul", dims=[[3, 2], [4, 3]]),
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make(**kwargs)
    with pytest.raises(ValueError, match="complementary_strategy: expected 'Q-R'"):
        tf_multitier.get_multihash_variable("mh", [[1, 1], [1, 1]], complementary_strategy="x")
    with pytest.raises(TypeError, match="ids: expected integers"):
        tf.nn.embedding_lookup(make("add"), [0.5])


@pytest.mark.parametrize("operation", ["add", "mul"])
def test_a_safe_lookup_of_ids_of_rank_3_pools_the_last_dimension(graph, operation):
    table = tf_multitier.get_multihash_variable(
        "m", [[5, 2], [5, 2]], operation=operation, initializer=v1.random_normal_initializer(seed=1)
    )
    deep = tf.SparseTensor(
        [[0, 0, 0], [0, 0, 1], [1, 2, 0]], tf.constant([3, 7, 9], tf.int64), [2, 3, 2]
    )
    flat = tf.sparse.reshape(deep, [6, 2])
    weights = tf.SparseTensor(deep.indices, [1.0, 3.0, 2.0], deep.dense_shape)
    found = v1.nn.safe_embedding_lookup_sparse(table, deep, weights)
    assert found.shape.as_list()[-1] == 2
    expected = v1.nn.safe_embedding_lookup_sparse(table, flat, tf.sparse.reshape(weights, [6, 2]))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found, expected = session.run([found, expected])
    assert found.shape == (2, 3, 2) and np.abs(found[1, 2]).sum() > 0 and (found[0, 1] == 0).all()
    np.testing.assert_array_equal(found.reshape(6, 2), expected)
