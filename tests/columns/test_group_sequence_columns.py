"""Sequence columns in a group: the values, variables and training of the columns alone, by one op."""

import numpy as np
import pytest
import tensorflow as tf
from group_util import features
from group_util import NoScope
from group_util import normal
from group_util import sparse

from tf_multitier import feature_column as fc
from tf_multitier._src.columns import column_groups

v1 = tf.compat.v1
stock = v1.feature_column


def sequence_columns(scope):
    with scope("g"):
        ours = lambda key: fc.sequence_categorical_column_with_embedding(key, tf.int64)
        hashed = stock.sequence_categorical_column_with_hash_bucket("words", 20)
        made = [
            fc.embedding_column(ours("a"), 2, initializer=normal(1)),
            tf.feature_column.embedding_column(hashed, 3, "sum", initializer=normal(2)),
            *fc.shared_embedding_columns([ours("c"), ours("d")], 4, "sqrtn", initializer=normal(4)),
        ]
    return made + [fc.sequence_numeric_column("price")]


def sequence_features():
    deep = lambda values, dtype: (
        tf.SparseTensor(  # [3, 2, 2]: two ids in the first step, one in the second; none; one
            np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [2, 0, 0]]),
            np.array(values, dtype),
            [3, 2, 2],
        )
    )
    return {
        "a": deep([1, 2, 3, -7], np.int64),
        "words": deep(["x", "y", "z", "x"], str),
        "c": deep([5, 5, 6, 7], np.int64),
        "d": sparse([[5, 1], [], [2]]),
        "price": sparse([[1.0, 2.0], [], [3.0]], np.float32),
    }


def built_sequences(scope):
    with tf.Graph().as_default() as graph, v1.Session() as session:
        out, lengths = fc.sequence_input_layer(sequence_features(), sequence_columns(scope))
        assert out.shape.as_list()[2] == 14
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out - 0.5)))
        session.run(v1.global_variables_initializer())
        before, found = session.run([out, lengths])
        for _ in range(20):
            session.run(train)
        assert found.tolist() == [2, 0, 1]
        return (
            before,
            session.run(out),
            [v.name for v in v1.global_variables()],
            [op.type for op in graph.get_operations()],
        )


@pytest.mark.parametrize("scope", [NoScope, fc.group_embedding_column_scope])
def test_sequence_columns_are_looked_up_by_one_op(monkeypatch, scope):
    grouped = built_sequences(scope)
    with monkeypatch.context() as patch:
        patch.setattr(column_groups, "_GROUPABLE", ())
        alone = built_sequences(NoScope)
    assert grouped[3].count("MultitierGroupLookup") == 1 and "MultitierGroupLookup" not in alone[3]
    np.testing.assert_array_equal(grouped[0], alone[0])
    np.testing.assert_array_equal(grouped[1], alone[1])
    assert grouped[2] == alone[2]
    assert grouped[0].shape == (3, 2, 14) and not grouped[0][1].any() and not grouped[0][2, 1].any()


def test_a_sequence_column_in_an_input_layer_is_refused_as_ever(graph):
    del graph
    column = fc.embedding_column(fc.sequence_categorical_column_with_embedding("a", tf.int64), 2)
    with pytest.raises(ValueError, match="sequence_input_layer|SequenceFeatures"):
        fc.input_layer(features(), [column])


def test_sequence_columns_are_named_where_their_batch_sizes_or_steps_differ(graph):
    ids = {key: v1.sparse_placeholder(tf.int64, [None, None]) for key in "ab"}
    column = lambda key: fc.embedding_column(
        fc.sequence_categorical_column_with_embedding(key, tf.int64), 2
    )
    net, _ = fc.sequence_input_layer(ids, [column("a"), column("b")])
    value = lambda rows, steps: v1.SparseTensorValue([[0, 0]], [5], [rows, steps])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(net, {ids["a"]: value(2, 3), ids["b"]: value(2, 3)}).shape == (2, 3, 4)
        for b in ((3, 3), (2, 4)):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=rf"column 'b_embedding': expected shape \[2,3,...\] to match column 'a_embedding', .* found "
                rf"shape \[{b[0]},{b[1]},...\]",
            ):
                session.run(net, {ids["a"]: value(2, 3), ids["b"]: value(*b)})
    two_and_three = {"a": sparse([[1, 2], [3]]), "b": sparse([[1, 2], [3], [4]])}
    with pytest.raises(
        ValueError,
        match=r"column 'b_embedding': expected values of shape \(2, 2, None\) to match column 'a_embedding', "
        r".* found \(3, 2, None\)",
    ):
        fc.sequence_input_layer(two_and_three, [column("a"), column("b")])
