"""tf_multitier.data: the rows of the next batch are loaded while the current batch trains; nothing else changes."""

import numpy as np
import pytest
import tensorflow as tf
from storage_util import option

import tf_multitier
import tf_multitier.v1 as facade
from tf_multitier import data

v1 = tf.compat.v1

STEPS, BATCH, ROWS = 30, 8, 64


class Pipeline:
    """A variable trained on the ids of a dataset, with a prefetching stage or without."""

    def __init__(self, storage, stage, parts=1, kind="dense"):
        initializer = v1.random_uniform_initializer(-1, 1, seed=5)
        self.ev = tf_multitier.get_embedding_variable(
            "staged" if stage else "plain",
            4,
            initializer=initializer,
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
        )
        rng = np.random.default_rng(1)
        self.batches = rng.integers(0, 400, (STEPS, BATCH))
        dataset = v1.data.Dataset.from_tensor_slices(
            {"ids": self.batches, "label": np.arange(STEPS, dtype=np.float32)}
        )
        as_kind = {
            "dense": lambda x: x,
            "sparse": lambda x: tf.sparse.from_dense(x[None, :] + 1),
            "ragged": lambda x: tf.RaggedTensor.from_row_lengths(x, [3, 0, 5]),
        }[kind]
        dataset = dataset.map(lambda x: (dict(x, ids=as_kind(x["ids"])), x["label"]))
        if stage:
            dataset = dataset.apply(
                data.prefetch_embeddings(
                    lambda features, label: {self.ev: features["ids"]}, timeout=1000
                )
            )
        self.iterator = v1.data.make_initializable_iterator(dataset)
        features, self.label = self.iterator.get_next()
        ids = features["ids"]
        if kind == "dense":
            self.values = tf.nn.embedding_lookup(self.ev, ids)
        else:
            self.values = tf.nn.embedding_lookup_sparse(self.ev, ids, None, combiner="sum")
        self.train = v1.train.AdagradOptimizer(0.5).minimize(
            tf.reduce_sum(self.values) * (self.label - 10.0), var_list=self.ev.parts
        )


def prefetched(session, ev):
    return session.run(ev.stats())["prefetched"]


@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_stage_changes_no_value_and_no_order(graph, kind, parts, tmp_path):
    pipelines = [
        Pipeline(None, False, kind=kind),
        Pipeline(option("DRAM_SSDHASH", tmp_path, 32, ROWS), True, parts, kind),
    ]
    with v1.Session() as session:
        session.run(
            [v1.global_variables_initializer()] + [p.iterator.initializer for p in pipelines]
        )
        for number in range(STEPS):
            plain, staged = session.run([[p.values, p.label, p.train] for p in pipelines])
            np.testing.assert_array_equal(staged[0], plain[0])
            assert staged[1] == plain[1] == number
        for pipeline in pipelines:
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(pipeline.label)
        for plain, staged in zip(*[session.run(p.ev.export()) for p in pipelines]):
            np.testing.assert_array_equal(staged, plain)


def trained_cold(storage, timeout, selected=None):
    """(variable, iterator of batches 0-3, 4-7, ... with a stage, train op of fed ids) with 100 trained keys, 16 of them in DRAM."""
    ev = tf_multitier.get_embedding_variable(
        "ev", 4, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage)
    )
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.GradientDescentOptimizer(1.0).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
    )
    dataset = (
        v1.data.Dataset.range(100)
        .batch(4)
        .apply(data.prefetch_embeddings(selected or (lambda x: [(ev, x)]), timeout=timeout))
    )
    return ev, v1.data.make_initializable_iterator(dataset), ids, train


def test_the_stage_keeps_rows_of_the_next_batch_in_dram_until_they_are_used(graph, tmp_path):
    ev, iterator, ids, train = trained_cold(
        option("DRAM_SSDHASH", tmp_path, rows=16, cache_strategy="LRU"), 1000
    )
    following = iterator.get_next()
    values = tf.nn.embedding_lookup(ev, ids)
    with v1.Session() as session:
        session.run([ev.initializer, iterator.initializer])
        session.run(train, {ids: np.arange(100)})
        for number in range(5):
            batch = session.run(following)
            # Batch 0 is pinned. The stage continues with the next batches, up to a quarter of DRAM.
            assert batch.tolist() == list(range(4 * number, 4 * number + 4))
            for key in range(60, 90):
                session.run(train, {ids: [key]})
            kept = session.run(ev.lookup_tier(batch))
            if number == 0:
                assert kept.tolist() == [0] * 4 and prefetched(session, ev) == 4
            session.run(values, {ids: batch})
        session.run(ev.release_prefetched())
        assert prefetched(session, ev) == 0


def test_an_iterator_that_is_given_up_leaves_no_pins_behind(graph, tmp_path):
    ev, iterator, ids, train = trained_cold(
        option("DRAM_SSDHASH", tmp_path, rows=16, cache_strategy="LRU"), 1e-6
    )
    following = iterator.get_next()
    with v1.Session() as session:
        session.run([ev.initializer, iterator.initializer])
        session.run(train, {ids: np.arange(100)})
        session.run(following)
        session.run(iterator.initializer)  # the first one was destroyed
        session.run(ev.drain())
        for key in range(60, 90):
            session.run(train, {ids: [key]})
        assert prefetched(session, ev) == 0
        assert session.run(ev.lookup_tier(np.arange(8))).tolist() == [1] * 8


def test_ids_of_several_variables_and_features(graph, tmp_path):
    make = lambda name: tf_multitier.get_embedding_variable(
        name,
        4,
        ev_option=tf_multitier.EmbeddingVariableOption(
            storage_option=option("DRAM_SSDHASH", tmp_path, rows=64)
        ),
    )
    users, items = make("users"), make("items")
    ids_of = lambda x: {users: x, items: [x + 100, tf.RaggedTensor.from_row_lengths(x + 200, [4])]}
    iterator = v1.data.make_initializable_iterator(
        v1.data.Dataset.from_tensors(np.arange(4)).apply(
            data.prefetch_embeddings(ids_of, timeout=1000)
        )
    )
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.GradientDescentOptimizer(1.0).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(users, ids) + tf.nn.embedding_lookup(items, ids))
    )
    following = iterator.get_next()
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), iterator.initializer])
        session.run(train, {ids: np.arange(300)})
        assert session.run(following).tolist() == [0, 1, 2, 3]
        assert session.run(users.lookup_tier(np.arange(4))).tolist() == [0] * 4
        assert session.run(items.lookup_tier([100, 103, 200, 203])).tolist() == [0] * 4
        assert prefetched(session, users) == 4 and prefetched(session, items) == 8


def test_a_variable_without_a_table_costs_the_stage_nothing_but_the_hint(graph):
    ev = tf_multitier.get_embedding_variable("ev", 4)
    dataset = v1.data.Dataset.range(3).batch(1).apply(data.prefetch_embeddings(lambda x: {ev: x}))
    following = v1.data.make_initializable_iterator(dataset)
    element = following.get_next()
    with v1.Session() as session:
        session.run(following.initializer)
        assert [session.run(element).tolist() for _ in range(3)] == [[0], [1], [2]]


def test_the_stage_stands_in_tf_data_of_the_facade():
    assert facade.data.prefetch_embeddings is data.prefetch_embeddings
    assert (
        facade.data.Dataset is v1.data.Dataset and facade.data.experimental is v1.data.experimental
    )


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda ev: data.prefetch_embeddings(ev),
            TypeError,
            "ids_of: expected a function of an element, found ",
        ),
        (
            lambda ev: data.prefetch_embeddings(len, buffer_size=0),
            ValueError,
            "buffer_size: expected at least 1, found 0",
        ),
        (
            lambda ev: data.prefetch_embeddings(len, buffer_size=1.5),
            TypeError,
            "buffer_size: expected an integer, found 1.5",
        ),
        (
            lambda ev: data.prefetch_embeddings(lambda x: x),
            TypeError,
            "ids_of: expected a dict from embedding variable to ids",
        ),
        (lambda ev: data.prefetch_embeddings(lambda x: [x]), TypeError, "ids_of: expected a dict"),
        (
            lambda ev: data.prefetch_embeddings(lambda x: {"ev": x}),
            TypeError,
            "found 'ev' as a variable",
        ),
        (
            lambda ev: data.prefetch_embeddings(lambda x: {ev: tf.cast(x, tf.float32)}),
            TypeError,
            "'ev': ids: expected int64, found float32",
        ),
    ],
)
def test_a_bad_stage_is_refused_when_the_graph_is_built(graph, make, error, message):
    ev = tf_multitier.get_embedding_variable("ev", 4)
    with pytest.raises(error, match=message):
        v1.data.Dataset.range(3).batch(1).apply(make(ev))


def test_a_part_of_a_variable_is_refused_by_name(graph):
    ev = tf_multitier.get_embedding_variable("ev", 4, partitioner=v1.fixed_size_partitioner(2))
    with pytest.raises(
        ValueError,
        match="ids_of: expected the embedding variable 'ev', found only parts of it: pass the object",
    ):
        v1.data.Dataset.range(3).batch(1).apply(data.prefetch_embeddings(lambda x: {ev[1]: x}))


def test_a_variable_of_a_parameter_server_is_refused_with_what_to_do(graph):
    with tf.device("/job:ps/task:0"):
        ev = tf_multitier.get_embedding_variable("ev", 4)
    with tf.device("/job:worker/task:0"):
        with pytest.raises(
            ValueError, match=r"'ev' is on /job:ps.*and the input pipeline is not: .*ev.prefetch"
        ):
            v1.data.Dataset.range(3).batch(1).apply(data.prefetch_embeddings(lambda x: {ev: x}))
