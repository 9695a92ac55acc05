"""Which form of a gradient reaches the table, and gradients that must be refused."""

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1


def make(name="ev", parts=1):
    return tf_multitier.get_embedding_variable(
        name,
        2,
        initializer=v1.zeros_initializer(),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
    )


def pooled(ev, rows, ids):
    return tf.nn.embedding_lookup_sparse(
        ev,
        tf.SparseTensor(
            np.stack([rows, np.arange(len(ids))], 1),
            np.array(ids, np.int64),
            [max(rows) + 1, len(ids)],
        ),
        None,
        combiner="sum",
    )


def gradient(ev, loss):
    """The one gradient of a variable in one part."""
    [(g, _)] = v1.train.GradientDescentOptimizer(1.0).compute_gradients(loss, [ev])
    return g


def content(exported):
    """{key: (first element, frequency)}"""
    keys, values, _, frequencies = exported
    return {
        k: (v, f) for k, v, f in zip(keys.tolist(), values[:, 0].tolist(), frequencies.tolist())
    }


def applied(ev, *gradients):
    """The content after one step of learning rate 1 from zero, in a v1 graph."""
    optimizer = v1.train.GradientDescentOptimizer(1.0)
    train = [optimizer.apply_gradients([(g, ev)]) for g in gradients]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        return content(session.run(ev.export()))


def trained(world, change, ev=None, to=None):
    """The content after one step, in which `change` makes a gradient of that of a pooled lookup. `to`: another variable."""
    ev = make() if ev is None else ev
    to = ev if to is None else to
    loss = lambda: tf.reduce_sum(pooled(ev, [0, 0, 1], [1, 2, 1]))
    world.step(loss, [ev], "sgd", 1.0, change=lambda pairs: [(change(pairs[0][0]), to)])()
    return content(world.run(to.export))


def test_an_unchanged_gradient_counts_occurrences(world):
    gated = lambda g: tf.IndexedSlices(
        tf.identity(g.values), tf.identity(tf.identity(g.indices)), g.dense_shape
    )
    assert trained(world, gated) == {1: (-2.0, 2), 2: (-1.0, 1)}


def test_remapped_indices_train_the_new_keys(world):
    moved = lambda g: tf.IndexedSlices(g.values, g.indices + 100, g.dense_shape)
    found = trained(world, moved)
    # Eagerly a gradient has an entry for each occurrence, in functions and graphs for each key.
    assert {k: v for k, (v, _) in found.items()} == {101: -2.0, 102: -1.0}
    if world.is_graph:
        assert [n for _, n in found.values()] == [1, 1]


def test_values_under_other_keys_train_those(world):
    other = make("other")
    under = lambda g: tf.IndexedSlices(g.values, tf.range(tf.size(g.indices, tf.int64)) + 7)
    found = trained(world, under, to=other)
    # Eagerly and in functions a key's second entry is zeros.
    assert {k: v for k, (v, _) in found.items() if v} == {7: -2.0, 8: -1.0}
    assert len(found) == (2 if world.is_graph else 3)


def test_a_gradient_of_another_variable_trains_its_keys(world):
    ev, other = make(), make("other")
    found = trained(world, lambda g: g, ev, other)
    assert {k: v for k, (v, _) in found.items()} == {1: -2.0, 2: -1.0}
    assert world.run(ev.total_count) == 0


def join(values, indices):
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0))


def test_gradients_that_are_concatenated_in_pairs_count_occurrences(world):
    ones, ids = np.ones([2, 2], np.float32), np.array([50, 51])
    found = trained(world, lambda g: join([g.values, ones], [g.indices, ids]))
    assert {k: v for k, (v, _) in found.items()} == {1: -2.0, 2: -1.0, 50: -1.0, 51: -1.0}
    assert found[50][1] == found[2][1] == 1 and found[1][1] == 2


@pytest.mark.parametrize("how", ["in pairs", "crossed", "one key early"])
def test_concatenations_are_taken_apart_only_in_pairs(world, how):
    ones, ids = np.ones([2, 2], np.float32), np.array([50, 51])

    def joined(g):
        # As many entries in every world: eagerly, a gradient has one for each occurrence.
        values, keys = g.values[:2], tf.constant([1, 2], tf.int64)
        if how == "in pairs":
            return join([values, ones], [keys, ids])
        if how == "crossed":
            return join([values, ones], [ids, keys])
        return join([ones[:1], values, ones[:1]], [ids, keys, ids[:0]])

    ev = make()
    loss = lambda: tf.reduce_sum(pooled(ev, [0, 0, 1, 1], [1, 2, 1, 2]) * [[1.0], [0.0]])
    change = lambda pairs: [(joined(pairs[0][0]), ev)]
    world.step(loss, [ev], "sgd", 1.0, change=change)()
    found = {k: v for k, (v, _) in content(world.run(ev.export)).items()}
    assert found == {1: -1.0, 2: -1.0, 50: -1.0, 51: -1.0}


def test_the_unchanged_parts_of_a_concatenation_count_occurrences(graph):
    ev = make()
    g = gradient(ev, tf.reduce_sum(pooled(ev, [0, 0, 1], [1, 2, 1])))
    ones, ids = tf.ones([2, 2]), tf.constant([50, 51], tf.int64)
    paired = join([g.values, ones], [g.indices, ids])
    assert applied(ev, paired) == {1: (-2.0, 2), 2: (-1.0, 1), 50: (-1.0, 1), 51: (-1.0, 1)}
    crossed = join([g.values, ones], [ids, g.indices])
    assert {k: v for k, (v, _) in applied(ev, crossed).items()} == {
        50: -2.0,
        51: -1.0,
        1: -1.0,
        2: -1.0,
    }
    one_key_early = join([ones[:1], g.values, ones[:1]], [ids, g.indices, ids[:0]])
    assert {k: v for k, (v, _) in applied(ev, one_key_early).items()} == {
        50: -1.0,
        51: -2.0,
        1: -1.0,
        2: -1.0,
    }


def test_a_part_of_unknown_length_leaves_the_gradient_as_it_is(world):
    def change(g):
        n = tf.shape(tf.where(g.values[:1, 0] > 0))[0]  # 1, which is not known beforehand
        values = tf.concat([tf.ones([n, 2]), g.values, tf.ones([1, 2])], 0)
        last = tf.range(tf.size(g.indices, tf.int64)) + 1
        keys = tf.concat([tf.range(tf.cast(n + 1, tf.int64)) + 50, last], 0)
        return tf.IndexedSlices(values, keys)

    found = {k: v for k, (v, _) in trained(world, change).items()}
    expected = {50: -1.0, 51: -2.0, 1: -1.0, 2: -1.0}
    assert found == (expected if world.is_graph else expected | {2: -0.0, 3: -1.0})


def test_values_joined_along_another_dimension_are_taken_as_they_are(world):
    def change(unused_gradient):
        values = tf.concat([tf.ones([2, 1]), 3 * tf.ones([2, 1])], 1)
        keys = tf.concat([tf.constant([1], tf.int64), tf.constant([2], tf.int64)], 0)
        return tf.IndexedSlices(values, keys)

    assert trained(world, change) == {1: (-1.0, 1), 2: (-1.0, 1)}


@pytest.mark.parametrize("parts", [1, 3])
def test_dense_and_pooled_lookups_together_still_count_occurrences(world, parts):
    ev = make(parts=parts)

    def loss():
        dense = tf.nn.embedding_lookup(ev, [[1, 3]])
        return tf.reduce_sum(pooled(ev, [0, 0, 1], [1, 2, 1])) + tf.reduce_sum(dense)

    world.step(loss, [ev], "sgd", 1.0)()
    assert content(world.run(ev.export)) == {1: (-3.0, 3), 2: (-1.0, 1), 3: (-1.0, 1)}


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_second_derivative_of_a_pooled_lookup_is_refused(graph, max_norm):
    ev = make()
    out = tf.nn.embedding_lookup_sparse(
        ev, tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1]), None, max_norm=max_norm
    )
    [first] = tf.gradients(tf.reduce_sum(out**3), ev)
    with pytest.raises(
        LookupError, match="gradient of a pooled lookup .* has no gradient of its own"
    ):
        tf.gradients(tf.reduce_sum(first.values**2), ev)


@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_the_second_derivative_of_a_dense_lookup_equals_stock(graph, max_norm):
    table = v1.get_variable("table", initializer=2 * tf.ones([3, 2]), use_resource=True)
    ev = tf_multitier.get_embedding_variable("twos", 2, initializer=tf.constant_initializer(2.0))
    seconds = []
    for variable in (table, ev):
        [first] = tf.gradients(
            tf.reduce_sum(
                tf.nn.embedding_lookup(variable, [1, 2], max_norm=max_norm) ** 3 * [1.0, 3.0]
            ),
            variable,
        )
        [second] = tf.gradients(tf.reduce_sum(first.values**2), variable)
        seconds.append(second.values)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found, expected = session.run(seconds)
        assert expected.any(axis=1).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5 if max_norm else 0)


# ---- weights


@pairwise(
    world=WORLDS,
    combiner=["sum", "mean"],
    lookup=[tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse],
    parts=[1, 2],
)
def test_weights_of_another_number_than_the_ids_are_refused_when_run(
    world, lookup, combiner, parts
):
    ev = make(parts=parts)

    def look_up(weights):
        ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([1, 2, 3], tf.int64), [2, 2])
        return lookup(ev, ids, tf.SparseTensor(ids.indices, weights, [2, 2]), combiner=combiner)

    train = world.step(lambda weights: tf.reduce_sum(look_up(weights)), [ev])
    for weights in ([], [1.0], [1.0, 1.0, 1.0, 1.0]):
        for run in (lambda w: world.run(look_up, w), train):
            # Eagerly, TensorFlow's SparseTensor may refuse them first.
            with pytest.raises(
                (tf.errors.InvalidArgumentError, ValueError),
                match="sparse lookup: expected.*weights|not compatible|must be equal|incompatible",
            ):
                run(np.array(weights, np.float32))
    assert world.run(ev.total_count) == 0
    train(np.array([1.0, 2.0, 3.0], np.float32))
    assert world.run(ev.total_count) == 3


def test_no_ids_and_no_weights_are_fine(world):
    ev = make()
    for look_up in (tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse):

        def pool(indices, ids, weights, look_up=look_up):
            as_sparse = lambda values: tf.SparseTensor(indices, values, [2, 2])
            return look_up(ev, as_sparse(ids), as_sparse(weights))

        nothing = np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
        np.testing.assert_array_equal(world.run(pool, *nothing), np.zeros((2, 2)))


# ---- ragged ids


RAGGED = [[1, 1, 2], [], [-3]]


@pairwise(
    world=WORLDS,
    dtype=[tf.int64, tf.int32],
    weighted=[False, True],
    combiner=["sum", "mean", "sqrtn"],
    parts=[1, 3],
)
def test_ragged_ids_are_pooled_as_sparse_ids_are(world, parts, combiner, weighted, dtype):
    ev = tf_multitier.get_embedding_variable("ev", 5, partitioner=v1.fixed_size_partitioner(parts))
    ragged = lambda rows, dtype: tf.ragged.constant(rows, dtype=dtype, row_splits_dtype=splits)
    splits = dtype

    def pool(lookup, as_sparse, **options):
        ids, weights = ragged(RAGGED, dtype), ragged([[1.0, 2.0, -3.0], [], [0.5]], tf.float32)
        if as_sparse:
            ids, weights = ids.to_sparse(), weights.to_sparse()
        out = lookup(ev, ids, weights if weighted else None, combiner=combiner, **options)
        assert not world.is_graph or out.op.type == "MultitierLookupSparse"
        return out

    both = lambda *a, **k: [pool(*a, as_sparse, **k) for as_sparse in (False, True)]
    safe = tf.nn.safe_embedding_lookup_sparse
    for function in (
        lambda: both(tf.nn.embedding_lookup_sparse),
        lambda: both(tf.nn.embedding_lookup_sparse, max_norm=0.5),
        lambda: both(safe),
        lambda: both(safe, max_norm=0.5),
    ):
        found, expected = world.run(function)
        np.testing.assert_array_equal(found, expected)
        assert found.shape == (3, 5) and not found[1].any() and found[2].any()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_safe_ragged_lookup_keeps_negative_keys_and_trains_none_for_empty_rows(world, parts):
    ev = make(parts=parts)
    ids = tf.ragged.constant(RAGGED, dtype=tf.int64)
    look_up = lambda: tf.nn.safe_embedding_lookup_sparse(ev, ids, combiner="sum")
    world.step(lambda: tf.reduce_sum(look_up()), [ev], "sgd", 1.0)()
    assert content(world.run(ev.export)) == {-3: (-1.0, 1), 1: (-2.0, 2), 2: (-1.0, 1)}


@pytest.mark.parametrize("parts", [1, 3])
def test_ragged_ids_where_they_cannot_be_looked_up(graph, parts):
    ev, ids = make(parts=parts), tf.ragged.constant(RAGGED, dtype=tf.int64)
    with pytest.raises(
        ValueError,
        match="takes no RaggedTensor for an embedding variable, use tf.nn.safe_embedding_lookup_sparse",
    ):
        v1.nn.safe_embedding_lookup_sparse(ev, ids)
    with pytest.raises(
        TypeError,
        match="weights: expected a RaggedTensor as the ids are, or None, found SparseTensor",
    ):
        tf.nn.safe_embedding_lookup_sparse(ev, ids, ids.to_sparse())
    with pytest.raises(ValueError, match=r"ragged ids: expected shape \[batch, \(any\)\]"):
        tf.nn.safe_embedding_lookup_sparse(ev, tf.ragged.constant([[[1], []]], dtype=tf.int64))
    both = [
        v1.nn.embedding_lookup_sparse(
            ev, ids, None, combiner="sum"
        ),  # TensorFlow's code, on our reads
        tf.nn.embedding_lookup_sparse(ev, ids, None, combiner="sum"),
    ]
    dense = tf.nn.embedding_lookup(ev, ids)
    with v1.Session() as session:
        session.run(ev.initializer)
        np.testing.assert_array_equal(*session.run(both))
        assert session.run(dense).to_list() == [[[0.0, 0.0]] * len(row) for row in RAGGED]


def test_ragged_ids_of_a_stock_variable_are_looked_up_as_ever(graph):
    table = v1.get_variable(
        "table", initializer=tf.reshape(tf.range(8.0), [4, 2]), use_resource=True
    )
    ids = tf.ragged.constant(RAGGED, dtype=tf.int64)
    outs = [
        f(table, ids, combiner="sum")
        for f in (tf.nn.safe_embedding_lookup_sparse, v1.nn.safe_embedding_lookup_sparse)
    ]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for out in session.run(outs):
            assert out.tolist() == [[8.0, 11.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("fed", [4, [4, 5], [[4], [5]]], ids=["scalar", "vector", "matrix"])
def test_ids_of_unknown_rank_train(graph, parts, fed):
    ev, ids = make(parts=parts), v1.placeholder(tf.int64)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
    step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step, {ids: fed})
        keys, values, _, _ = session.run(ev.export())
    assert sorted(keys.tolist()) == np.ravel(fed).tolist() and (values == -1).all()
