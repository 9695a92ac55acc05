"""What an embedding variable promises, through TensorFlow: contracts 1, 2, 3, 8 and 11, scopes, initial values."""

import threading

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf
from variable_util import initialized_session
from variable_util import make
from variable_util import sparse

import tf_multitier
import worlds

v1 = tf.compat.v1
KEYS = np.array([-7, -1, 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max, 1, 2**40], np.int64)


@pytest.mark.parametrize("parts", [1, 3])
def test_an_unseen_key_reads_the_same_everywhere_and_trains_from_that_value(world, parts):
    ev = make(parts=parts)
    again = make("again", parts=4 - parts)  # same initializer and seed, other tables
    dense = lambda: tf.nn.embedding_lookup(ev, KEYS)
    rows = sparse(np.arange(len(KEYS)), KEYS, [len(KEYS), 1])
    first = world.run(dense)
    assert len(np.unique(first, axis=0)) == len(KEYS)
    in_batch, *others = world.run(
        lambda: [
            tf.nn.embedding_lookup(ev, tf.constant(np.tile(KEYS, (3, 1)))),
            tf.nn.embedding_lookup(again, KEYS),
            tf.nn.embedding_lookup_sparse(ev, rows, None, combiner="sum"),
        ]
    )
    for same in (in_batch[0], in_batch[2], *others):
        np.testing.assert_array_equal(same, first)
    assert world.run(ev.total_count) == 0
    world.step(lambda: tf.reduce_sum(dense()), [ev], "sgd", 1.0)()
    np.testing.assert_array_equal(world.run(dense), first - np.float32(1))
    assert world.run(ev.total_count) == len(KEYS)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_repeated_key_is_updated_once_with_the_sum_of_its_gradients(world, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    loss = lambda: tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant([1, 1, 1], tf.int64)))
    world.step(loss, [ev], "sgd", 1.0)()
    values = world.run(lambda: tf.nn.embedding_lookup(ev, [1]))
    np.testing.assert_array_equal(values, np.full((1, 4), -3, np.float32))
    assert world.run(lambda: ev.get_frequency([1, 2])).tolist() == [3, 0]


@pytest.mark.parametrize("parts", [1, 2])
def test_several_lookups_in_a_step_are_one_update(world, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    twice, once = sparse([0, 0, 1], [5, 5, 6], [2, 2]), sparse([0], [5], [1, 1])

    def loss():
        return (
            tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant([5, 6], tf.int64)))
            + tf.reduce_sum(tf.nn.embedding_lookup_sparse(ev, twice, None, combiner="sum"))
            + tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(ev, once, combiner="mean"))
        )

    # A second update of the same key in the step would apply its momentum twice. Of Nesterov's step: 1 + 0.9.
    world.step(loss, [ev], "momentum", 1.0)()
    values = world.run(lambda: tf.nn.embedding_lookup(ev, [5, 6]))
    np.testing.assert_allclose(values, np.array([[-4] * 4, [-2] * 4]) * 1.9, rtol=1e-6)
    assert world.run(lambda: ev.get_frequency([5, 6])).tolist() == [4, 2]
    assert world.run(lambda: ev.get_version([5, 6])).tolist() == [0, 0]


def test_without_a_global_step_the_table_counts_its_applies(graph):
    ev = make(initializer=v1.zeros_initializer())
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, [5, 6]))
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with initialized_session() as session:
        session.run(train)
        assert session.run(ev.get_version([5, 6])).tolist() == [1, 1]


@pairwise(world=WORLDS, key_dtype=[tf.int64, tf.int32], parts=[1, 3])
def test_every_integer_is_a_key(world, key_dtype, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer(), key_dtype=key_dtype)
    limits = np.iinfo(key_dtype.as_numpy_dtype)
    keys = np.array([-7, -1, 0, limits.min, limits.max], key_dtype.as_numpy_dtype)
    ids = tf.SparseTensor([[i, 0] for i in range(5)], keys, [5, 1])
    factors = np.arange(1, 6, dtype=np.float32)[:, None]
    look_up = lambda: tf.nn.embedding_lookup_sparse(ev, ids, None)
    world.step(lambda: tf.reduce_sum(look_up() * factors), [ev], "sgd", 1.0)()
    exported, values, versions, frequencies = world.run(ev.export)
    assert exported.tolist() == sorted(keys.tolist())
    assert frequencies.tolist() == [1] * 5 and (versions >= 0).all()
    order = np.argsort(keys)
    np.testing.assert_array_equal(values[:, 0], -(order + 1).astype(np.float32))


@pytest.mark.parametrize("parts", [1, 2])
def test_four_threads_lose_no_update(graph, parts):
    ev = make(dim=2, parts=parts, initializer=v1.zeros_initializer())
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.GradientDescentOptimizer(1.0).minimize(
        -tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
    )
    read = tf.nn.embedding_lookup(ev, np.arange(50))
    with initialized_session() as session:
        rng = np.random.default_rng(7)
        batches = rng.integers(0, 50, (4, 500, 8))
        step = session.make_callable(train, [ids])

        def run(mine):
            for batch in mine:
                step(batch)

        threads = [threading.Thread(target=run, args=(batches[i],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = np.bincount(batches.ravel(), minlength=50)
        np.testing.assert_array_equal(session.run(read)[:, 0], expected.astype(np.float32))
        np.testing.assert_array_equal(session.run(ev.get_frequency(np.arange(50))), expected)


def test_sessions_of_one_server_share_the_table_and_lose_no_update(graph):
    server = tf.distribute.Server.create_local_server()
    ev = make(dim=2, initializer=v1.zeros_initializer())
    train = v1.train.GradientDescentOptimizer(1.0).minimize(
        -tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2, 2]))
    )
    sessions = [v1.Session(server.target) for _ in range(2)]
    sessions[0].run(ev.initializer)
    threads = [
        threading.Thread(target=lambda s=s: [s.run(train) for _ in range(200)]) for s in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        assert session.run(tf.nn.embedding_lookup(ev, [1, 2])[:, 0]).tolist() == [400, 800]
        session.close()


@pytest.mark.parametrize("parts", [1, 2])
def test_evaluation_changes_nothing(world, parts):
    ev, ids = make(parts=parts), sparse([0, 0], [9, 1], [1, 2])
    look_up = lambda ids: tf.nn.embedding_lookup(ev, ids)
    pool = lambda: tf.nn.embedding_lookup_sparse(ev, ids, None)
    world.step(lambda ids: tf.reduce_sum(look_up(ids)), [ev], "adagrad")([1, 2, 3])
    before = world.run(ev.export)
    for _ in range(3):
        world.run(look_up, [2, 3, 4, 5, -9])
        world.run(pool)
    worlds.same_bits(before, world.run(ev.export))


def test_a_refused_apply_changes_nothing(graph):
    ev = make(parts=1)
    lr = v1.placeholder(tf.float32, [])
    train = v1.train.GradientDescentOptimizer(lr).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2]))
    )
    with initialized_session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="learning_rate"):
            session.run(train, {lr: np.inf})
        assert session.run(ev.total_count()) == 0


# ---- scopes, seeds, initializers


def test_scopes_reuse_and_partitioners(graph):
    with v1.variable_scope("outer", partitioner=v1.fixed_size_partitioner(2)):
        ev = tf_multitier.get_embedding_variable("ev", 4)
        assert isinstance(ev, tf_multitier.PartitionedEmbeddingVariable) and ev.name == "outer/ev"
        assert [p.name for p in ev] == ["outer/ev/part_0:0", "outer/ev/part_1:0"]
    with v1.variable_scope("outer", reuse=True):
        assert tf_multitier.get_embedding_variable("ev", 4) is ev
    with v1.variable_scope("outer", reuse=v1.AUTO_REUSE):
        assert tf_multitier.get_embedding_variable("ev", 4) is ev
        assert tf_multitier.get_embedding_variable("new", 4).name == "outer/new:0"
    template = v1.make_template("template", lambda: tf_multitier.get_embedding_variable("t", 2))
    assert template() is template() and template().name == "template/t:0"
    assert v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES) == v1.global_variables()
    frozen = make("frozen", trainable=False, collections=["mine"])
    assert frozen not in v1.trainable_variables() and v1.get_collection("mine") == [frozen]


def test_initial_values_follow_seed_and_name_in_every_process_and_partitioning():
    def read(name, graph_seed, op_seed, parts):
        with tf.Graph().as_default():
            v1.set_random_seed(graph_seed)
            ev = make(
                name, parts=parts, initializer=v1.random_normal_initializer(0, 1, seed=op_seed)
            )
            with initialized_session() as session:
                return session.run(tf.nn.embedding_lookup(ev, KEYS))

    base = read("a", 1, None, 1)
    np.testing.assert_array_equal(base, read("a", 1, None, 3))
    assert not np.array_equal(base, read("b", 1, None, 1))
    assert not np.array_equal(base, read("a", 2, None, 1))
    np.testing.assert_array_equal(read("a", 1, 5, 1), read("b", 2, 5, 2))


@pytest.mark.parametrize("parts", [1, 2])
def test_other_initializers_draw_a_matrix_once(world, parts):
    ev = make(
        "m",
        parts=parts,
        initializer=v1.variance_scaling_initializer(),
        ev_option=tf_multitier.EmbeddingVariableOption(
            init_option=tf_multitier.InitializerOption(default_value_dim=5)
        ),
    )
    given = make("given", dim=2, initializer=np.array([[1, 2], [3, 4]], np.float32))
    values = world.run(lambda: tf.nn.embedding_lookup(ev, [0, 5, -5, 4, -1, 1]))
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])
    np.testing.assert_array_equal(values[3], values[4])  # -1 mod 5 is 4
    assert not np.array_equal(values[0], values[5])
    rows = world.run(lambda: tf.nn.embedding_lookup(given, [-1, 2]))
    np.testing.assert_array_equal(rows, [[3, 4], [1, 2]])


@pytest.mark.parametrize(
    "initializer, low, high, mean, deviation",
    [
        (v1.random_uniform_initializer(-2, 2), -2, 2, 0, 4 / 12**0.5),
        (v1.random_normal_initializer(1, 2), -12, 14, 1, 2),
        (v1.truncated_normal_initializer(0, 1), -2, 2, 0, 0.88),
        (tf.random_normal_initializer(1, 2), -12, 14, 1, 2),
        (None, -2, 2, 0, 0.88),
        (v1.zeros_initializer, 0, 0, 0, 0),
        (tf.ones_initializer(), 1, 1, 1, 0),
        (v1.constant_initializer(3), 3, 3, 3, 0),
        (2.5, 2.5, 2.5, 2.5, 0),
    ],
)
def test_initializers_have_their_distribution(world, initializer, low, high, mean, deviation):
    ev = make(dim=16, initializer=initializer)
    values = world.run(lambda: tf.nn.embedding_lookup(ev, np.arange(4000)))
    assert low <= values.min() and values.max() <= high
    assert abs(values.mean() - mean) < 0.05 and abs(values.std() - deviation) < 0.05
    assert deviation == 0 or len(np.unique(values, axis=0)) == 4000


def test_hundreds_of_variables_in_one_graph(graph):
    evs = [make(f"ev{i}", dim=2, initializer=v1.zeros_initializer()) for i in range(300)]
    total = tf.add_n([e.total_count() for e in evs])
    with initialized_session() as session:
        assert session.run(total) == 0


def test_facade_adds_our_names_to_v1():
    import tf_multitier.v1 as facade

    assert facade.get_embedding_variable is tf_multitier.get_embedding_variable
    assert (
        facade.placeholder is v1.placeholder
        and facade.train.AdamOptimizer is v1.train.AdamOptimizer
    )
    assert facade.train.AdagradDecayOptimizer is tf_multitier.train.AdagradDecayOptimizer
    assert facade.nn.embedding_lookup is v1.nn.embedding_lookup
    assert "get_embedding_variable" in dir(facade) and "placeholder" in dir(facade)
    assert facade.EmbeddingVariableOption is tf_multitier.EmbeddingVariableOption
