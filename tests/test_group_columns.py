"""Columns in a group: the values, variables and training of the columns alone, by one op a group."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import feature_column as fc

v1 = tf.compat.v1
stock = v1.feature_column


def normal(seed):
    return v1.random_normal_initializer(stddev=1.0, seed=seed)


def sparse(rows, dtype=np.int64):
    indices = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    return tf.SparseTensor(np.array(indices, np.int64).reshape(-1, 2), np.array([x for row in rows for x in row], dtype),
                           [len(rows), max([1] + [len(row) for row in rows])])


def features():
    return {
        "a": sparse([[1, 2], [], [-7]]), "b": sparse([["x"], ["y", "x"], []], str), "c": sparse([[5], [5], [6]]),
        "d": sparse([[5, 5], [1], []]), "w": sparse([[1, 1], [], [3]]), "weights": sparse([[2.0, -1.0], [], [0.5]], np.float32),
        "price": np.array([[1.0], [2.0], [3.0]], np.float32), "stock": sparse([[1], [2], [3]]),
    }


def columns(scope):
    """Every kind of dense column; those over embedding variables made in `scope()`, a context manager's maker."""
    ints = lambda key, **kwargs: fc.categorical_column_with_embedding(key, tf.int64, **kwargs)
    with scope("one"):
        made = [fc.embedding_column(ints("a"), 3, combiner="sqrtn", initializer=normal(1)),
                stock.embedding_column(fc.categorical_column_with_embedding("b"), 4, combiner="sum", initializer=normal(2)),
                fc.embedding_column(fc.weighted_categorical_column(ints("w"), "weights"), 3, initializer=normal(3)),
                stock.embedding_column(stock.categorical_column_with_identity("stock", 10), 2, initializer=normal(4)),
                fc.numeric_column("price")]
    with scope("two"):
        made += fc.shared_embedding_columns([ints("c", partition_num=2), ints("d", partition_num=2)], 5, initializer=normal(5))
    return made


class NoScope:
    def __init__(self, name):
        del name

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        return None


def built(scope, layer):
    """(values before, values after 20 Adagrad steps, {variable: shape}, op types) of a graph of its own."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.logging.set_verbosity(v1.logging.ERROR)
        by_column, variables = {}, {}
        out = layer(features(), columns(scope), cols_to_vars=variables, cols_to_output_tensors=by_column)
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out - 0.5)))
        session.run(v1.global_variables_initializer())
        before = session.run([out, list(by_column.values())])
        np.testing.assert_array_equal(before[0], np.concatenate(before[1], 1))
        for _ in range(20):
            session.run(train)
        names = {v.name: v.shape.as_list() for v in v1.global_variables()}
        owned = {column.name: sorted(v.name for v in its) for column, its in variables.items()}
        return before[0], session.run(out), names, owned, [op.type for op in graph.get_operations()]


@pytest.mark.parametrize("layer, scope, groups", [
    (stock.input_layer, fc.group_embedding_column_scope, 2),
    (fc.input_layer, fc.group_embedding_column_scope, 2),
    (fc.input_layer, NoScope, 1),
    (stock.input_layer, lambda name: fc.group_embedding_column_scope("the same" if name else name), 1),
])
def test_groups_have_the_bits_and_names_of_columns_alone(layer, scope, groups):
    before, after, names, owned, types = built(scope, layer)
    expected = built(NoScope, stock.input_layer)
    assert types.count("MultitierGroupLookup") == groups and expected[4].count("MultitierGroupLookup") == 0
    np.testing.assert_array_equal(before, expected[0])
    np.testing.assert_array_equal(after, expected[1])
    assert names == expected[2]
    assert owned == expected[3]


def test_max_norm_clips_in_a_group_as_alone():
    """Forward to the bit; the gradient of clipping is the op's own, equal to TensorFlow's up to rounding."""
    results = []
    for layer in (fc.input_layer, stock.input_layer):
        with tf.Graph().as_default(), v1.Session() as session:
            made = [fc.embedding_column(fc.categorical_column_with_embedding("a", tf.int64), 3, initializer=normal(1), max_norm=0.8),
                    fc.embedding_column(fc.categorical_column_with_embedding("c", tf.int64), 3, initializer=normal(2))]
            out = layer(features(), made)
            train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out - 0.5)))
            session.run(v1.global_variables_initializer())
            before = session.run(out)
            for _ in range(5):
                session.run(train)
            results.append((before, session.run(out)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)


def test_a_scope_without_a_name_is_a_group_of_its_own_and_limits_cut_it(graph):
    made = []
    for limit in (10, 2):
        with fc.group_embedding_column_scope(params_num_per_group=limit):
            made += [fc.embedding_column(fc.categorical_column_with_embedding(f"f{limit}{i}", tf.int64), 2) for i in range(4)]
    fed = {column.categorical_column.key: sparse([[1]]) for column in made}
    assert stock.input_layer(fed, iter(made)).shape.as_list() == [1, 16]
    sizes = sorted(op.get_attr("N") for op in graph.get_operations() if op.type == "MultitierGroupLookup")
    assert sizes == [2, 2, 4]


def test_the_input_layer_object_and_dense_columns_alone_work(graph):
    with fc.group_embedding_column_scope("g"):
        made = [fc.embedding_column(fc.categorical_column_with_embedding(key, tf.int64), 2, initializer=normal(1)) for key in "cd"]
    from tensorflow.python.feature_column import feature_column as v1_columns

    layer = v1_columns.InputLayer(made)
    first, second = layer(features()), layer(features())  # the template's second call takes the same variables
    assert len(tf_multitier.embedding_variables()) == 2
    assert fc.input_layer(features(), fc.numeric_column("price")).shape.as_list() == [3, 1]
    with pytest.raises(ValueError, match="dense columns"):
        fc.input_layer(features(), [made[0], fc.categorical_column_with_embedding("a", tf.int64)])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(*session.run([first, second]))


def test_sequence_columns_made_in_a_scope_are_looked_up_as_ever(graph):
    del graph
    with fc.group_embedding_column_scope("g"):
        column = fc.embedding_column(fc.sequence_categorical_column_with_embedding("a", tf.int64), 2, initializer=normal(1))
    out, lengths = fc.sequence_input_layer(features(), [column])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        values, found = session.run([out, lengths])
    assert values.shape == (3, 2, 2) and found.tolist() == [2, 0, 1]
