"""What DeepRec's grouped lookups are known to get wrong, a test each."""

import numpy as np
import tensorflow as tf
from group_util import VOCABULARY
from group_util import initialized
from group_util import matrix
from group_util import sparse
from group_util import static
from group_util import table

import tf_multitier
from tf_multitier import feature_column as fc
from tf_multitier import nn

v1 = tf.compat.v1


def test_defect_1_members_of_one_dim_keep_their_own_combiners(session):
    a, b = static("a", 4), static("b", 4)
    ids = sparse([[1, 2]])
    out = nn.group_embedding_lookup_sparse([a, b], [ids, ids], ["sum", "mean"])
    initialized(session)
    total, mean = session.run(out)
    np.testing.assert_array_equal(total, 2 * mean)


def test_defect_2_a_variable_may_be_there_twice(session):
    ev = table("ev", 4)
    out = nn.group_embedding_lookup([ev, ev], [[1], [2]])
    train = v1.train.GradientDescentOptimizer(1.0).minimize(
        tf.add_n([tf.reduce_sum(o) for o in out])
    )
    initialized(session)
    before = session.run(out)
    assert not np.array_equal(*before)
    session.run(train)
    for was, now in zip(before, session.run(out)):
        np.testing.assert_array_equal(was - 1.0, now)


def test_defect_3_ragged_ids_work_in_every_place(session):
    ev, other = table("ev", 4), table("other", 4, seed=1)
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2, 1], tf.int64), [2, 0, 1])
    out = nn.group_embedding_lookup_sparse(
        [ev, other, ev], [ragged, sparse([[1, 2], [], [1]]), ragged], "mean"
    )
    initialized(session)
    a, b, c = session.run(out)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
    assert a.shape == (3, 4) and not a[1].any()


def test_defect_4_gradients_use_the_weights(session):
    ev = table("ev", 1)
    [out] = nn.group_embedding_lookup_sparse(
        [ev], [sparse([[1, 2]])], ["sum"], [sparse([[3.0, 0.5]], np.float32)]
    )
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
    values = tf.nn.embedding_lookup(ev, [1, 2])
    initialized(session)
    before = session.run(values)
    session.run(train)
    np.testing.assert_allclose(before - session.run(values), [[3.0], [0.5]], rtol=1e-6)


def test_defect_5_repeated_ids_train_their_own_rows(session):
    ev = table("ev", 1)
    [out] = nn.group_embedding_lookup_sparse([ev], [sparse([[7, 7, 9], [9], [7]])], ["sum"])
    train = v1.train.GradientDescentOptimizer(1.0).minimize(
        tf.reduce_sum(out * [[1.0], [10.0], [100.0]])
    )
    values = tf.nn.embedding_lookup(ev, [7, 9])
    initialized(session)
    before = session.run(values)
    session.run(train)
    np.testing.assert_allclose(before - session.run(values), [[102.0], [11.0]], rtol=1e-5)
    assert session.run(ev.get_frequency([7, 9])).tolist() == [3, 2]


def test_defect_6_dense_lookups_of_static_variables_have_gradients(session):
    variable = static("var", 2)
    [out] = nn.group_embedding_lookup([variable], [[[3], [3]]])
    [g] = tf.gradients(tf.reduce_sum(out), [variable])
    initialized(session)
    dense = session.run(tf.convert_to_tensor(g))
    assert dense.shape == (VOCABULARY, 2) and dense[3].tolist() == [2, 2] and dense.sum() == 4


def test_defect_7_empty_rows_and_batches_are_zeros(session):
    ev, parts, variable = table("ev", 3), table("parts", 3, parts=2), static("var", 3)
    empty = sparse([[], [5], []])
    none = tf.SparseTensor(np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [0, 1])
    for combiner in ("sum", "mean", "sqrtn"):
        out = nn.group_embedding_lookup_sparse(
            [ev, parts, variable] * 2, [empty] * 3 + [none] * 3, combiner
        )
        gradients = tf.gradients(tf.add_n([tf.reduce_sum(o) for o in out]), [ev.handle, variable])
        initialized(session)
        results, found = session.run([out, gradients])
        for got in results[:3]:
            assert not got[[0, 2]].any() and got[1].any() and np.isfinite(got).all()
        assert all(got.shape == (0, 3) for got in results[3:])
        assert all(np.isfinite(g.values).all() for g in found)


def test_defect_8_an_absent_key_reads_its_own_initial_value(session):
    initial = matrix(2, rows=4)
    ev = tf_multitier.get_embedding_variable(
        "ev",
        2,
        ev_option=tf_multitier.EmbeddingVariableOption(
            init_option=tf_multitier.InitializerOption(
                initializer=v1.constant_initializer(initial), default_value_dim=4
            )
        ),
    )
    filtered = tf_multitier.get_embedding_variable(
        "filtered",
        2,
        ev_option=tf_multitier.EmbeddingVariableOption(
            filter_option=tf_multitier.CounterFilter(filter_freq=3),
            init_option=tf_multitier.InitializerOption(default_value_no_permission=0.25),
        ),
    )
    out = nn.group_embedding_lookup([table("first", 2), ev, filtered], [[1], [5, 2, -1], [8]])
    initialized(session)
    _, values, refused = session.run(out)
    np.testing.assert_array_equal(values, initial[[1, 2, 3]])
    np.testing.assert_array_equal(refused, [[0.25, 0.25]])


def test_defect_9_partitioned_variables_are_members(session):
    ids = sparse([[1, 2, 3, 2**50], [-7, 1]])
    whole, parts = table("whole", 4), table("parts", 4, parts=4)
    out = nn.group_embedding_lookup_sparse([whole, parts], [ids, ids], "sqrtn")
    train = v1.train.AdagradOptimizer(0.1).minimize(
        tf.add_n([tf.reduce_sum(tf.square(o)) for o in out])
    )
    initialized(session)
    for _ in range(5):
        a, b = session.run(out)
        np.testing.assert_array_equal(a, b)
        session.run(train)
    assert session.run([whole.total_count(), parts.total_count()]) == [5, 5]


def test_defect_10_columns_belong_to_the_graph_they_are_used_in():
    def build():
        with tf.Graph().as_default() as graph, v1.Session() as session:
            out = v1.feature_column.input_layer({"a": sparse([[1]])}, columns)
            assert out.graph is graph
            initialized(session)
            return session.run(out)

    with fc.group_embedding_column_scope("once"):
        columns = [
            fc.embedding_column(
                fc.categorical_column_with_embedding("a", tf.int64),
                3,
                initializer=v1.random_normal_initializer(seed=1),
            )
        ]
    np.testing.assert_array_equal(build(), build())
