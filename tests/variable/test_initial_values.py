"""What a key without a row reads: cut-offs, debug values, values for evaluation, and values of keys that are not admitted."""

import math

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf
from storage_util import option
from variable_util import make
from variable_util import sparse

import tf_multitier
from tf_multitier import engine
from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier import TruncatedNormal

v1 = tf.compat.v1
KEYS = np.arange(-500, 500)
TYPES = [
    "DRAM",
    "PMEM",
    "LEVELDB",
    "SSDHASH",
    "DRAM_PMEM",
    "DRAM_LEVELDB",
    "DRAM_PMEM_SSDHASH",
    "HBM_DRAM",
    "HBM_DRAM_SSDHASH",
]


def init(**arguments):
    return tf_multitier.EmbeddingVariableOption(
        init_option=tf_multitier.InitializerOption(**arguments)
    )


def between(keys=KEYS, dim=4, lower=2.5, upper=3.0, seed=7):
    """What the engine computes for TruncatedNormal(1, 0.5, 2.5, 3.0, seed=7): the reference of the variables' tests."""
    table = engine.Table(dim, "normal_between", a=1.0, b=0.5, lower=lower, upper=upper, seed=seed)
    return table.lookup(keys)


def tail(z):
    return 0.5 * math.erfc(z / math.sqrt(2))


# ---- truncated normal with cut-offs, debug


@pytest.mark.parametrize(
    "lower, upper", [(-1, 2), (2.5, 3.0), (9, None), (None, -7.5), (-1e-6, 1e-6), (0, 12)]
)
def test_values_have_the_distribution_between_the_cut_offs(lower, upper):
    values = engine.Table(16, "normal_between", a=1, b=0.5, lower=lower, upper=upper, seed=3)
    values = np.sort(values.lookup(KEYS).ravel().astype(np.float64))
    low, high = (-math.inf if lower is None else lower), (math.inf if upper is None else upper)
    assert np.float32(low) <= values[0] and values[-1] <= np.float32(high)
    sign = -1 if high < 1 else 1  # the smaller tail, so that nothing cancels
    below = [tail(sign * (x - 1) / 0.5) for x in (low, high)]
    expected = np.array(
        [(tail(sign * (x - 1) / 0.5) - below[0]) / (below[1] - below[0]) for x in values]
    )
    rank = np.arange(len(values)) / len(values)
    assert np.abs(expected - rank).max() * math.sqrt(len(values)) < 1.95  # Kolmogorov and Smirnov
    assert len(np.unique(values)) > 0.5 * len(values)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_variable_has_the_values_of_the_engine(world, parts):
    ev = make(parts=parts, initializer=TruncatedNormal(1, 0.5, 2.5, 3.0, seed=7))
    values = world.run(lambda ids: tf.nn.embedding_lookup(ev, ids), KEYS)
    np.testing.assert_array_equal(values, between())


def test_no_cut_offs_are_those_of_tensorflow(world):
    ours = make("a", initializer=TruncatedNormal(1, 0.5, seed=7))
    stock = make("b", initializer=v1.truncated_normal_initializer(1, 0.5, seed=7))
    read = lambda ids: [tf.nn.embedding_lookup(ev, ids) for ev in (ours, stock)]
    np.testing.assert_array_equal(*world.run(read, KEYS))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.usefixtures("emulated_device")
def test_rows_begin_with_these_values_in_every_tier(world, kind, tmp_path):
    storage = option(kind, tmp_path)
    ev = make(
        initializer=TruncatedNormal(1, 0.5, 2.5, 3.0, seed=7),
        ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
    )
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "sgd", 1.0)
    step(KEYS[:20])
    values = world.run(lambda ids: tf.nn.embedding_lookup(ev, ids), KEYS[:30])
    np.testing.assert_array_equal(values[20:], between(KEYS[20:30]))
    np.testing.assert_array_equal(values[:20], between(KEYS[:20]) - np.float32(1))


@pytest.mark.parametrize("constant", [v1.constant_initializer, tf.constant_initializer])
def test_a_constant_of_a_row_or_of_rows_is_that_of_each_key(world, constant):
    one, row = (
        make("one", initializer=constant([0.5])),
        make("row", initializer=constant([1, 2, 3, 4])),
    )
    rows = make("rows", 2, initializer=constant([[1.0, 2.0], [3.0, 4.0]]))
    flat = make("flat", 2, initializer=constant([1.0, 2.0, 3.0, 4.0]))
    assert world.run(one.peek, np.array([7])).tolist() == [[0.5] * 4]
    assert world.run(row.peek, np.array([0, 7])).tolist() == [[1, 2, 3, 4]] * 2
    for ev in rows, flat:
        assert world.run(ev.peek, np.array([0, 7])).tolist() == [[1, 2], [3, 4]]


def test_debug_values_say_the_key(world):
    ev = make(initializer=tf_multitier.DebugInitializer())
    ids = [0, 5, 123456, -1, 2**63 - 1]
    values = world.run(lambda ids: tf.nn.embedding_lookup(ev, ids), ids)
    np.testing.assert_array_equal(values, [[x % 100000] * 4 for x in ids])


# ---- evaluation


def readers(ev, training):
    """Functions of ids, each of which looks them up in another way and gives [n, dim]."""
    rows = lambda ids: tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids))
    weights = lambda ids: rows(ids).with_flat_values(tf.ones_like(ids, tf.float32))
    arguments = dict(training=training)
    return {
        "dense": lambda ids: lookup.embedding_lookup(ev, ids, **arguments),
        "clipped": lambda ids: lookup.embedding_lookup(ev, ids, max_norm=1e9, **arguments),
        "sparse": lambda ids: lookup.embedding_lookup_sparse(ev, rows(ids), **arguments),
        "weighted": lambda ids: lookup.embedding_lookup_sparse(
            ev, rows(ids), weights(ids), **arguments
        ),
        "safe": lambda ids: lookup.safe_embedding_lookup_sparse(ev, rows(ids), **arguments),
        "group": lambda ids: nn.group_embedding_lookup([ev, ev], [ids, ids], **arguments)[1],
        "pooled": lambda ids: nn.group_embedding_lookup_sparse(
            [ev], [rows(ids)], "sum", **arguments
        )[0],
    }


@pairwise(world=WORLDS, parts=[1, 3], how=list(readers(None, True)))
def test_evaluation_reads_its_own_value_of_absent_keys(world, how, parts):
    ev = make(parts=parts, initializer=v1.ones_initializer(), ev_option=init(eval_initializer=0.0))
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "sgd", 0.5)
    step([1, 2, 3])
    evaluation = world.run(readers(ev, False)[how], [3, 4, 1])
    training = world.run(readers(ev, True)[how], [3, 4, 1])
    np.testing.assert_array_equal(evaluation[:, 0], [0.5, 0, 0.5])
    np.testing.assert_array_equal(training[:, 0], [0.5, 1, 0.5])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.usefixtures("emulated_device")
def test_evaluation_in_every_tier_and_rows_begin_as_ever(world, kind, tmp_path):
    ev = make(
        initializer=v1.ones_initializer(),
        ev_option=tf_multitier.EmbeddingVariableOption(
            storage_option=option(kind, tmp_path),
            init_option=tf_multitier.InitializerOption(
                eval_initializer=TruncatedNormal(1, 0.5, 2.5, 3.0, seed=7)
            ),
        ),
    )
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "sgd", 0.5)
    read = readers(ev, False)["dense"]
    np.testing.assert_array_equal(world.run(read, KEYS[:20]), between(KEYS[:20]))
    step(KEYS[:10])
    values = world.run(read, KEYS[:20])
    np.testing.assert_array_equal(values[:10], np.full((10, 4), 0.5))
    np.testing.assert_array_equal(values[10:], between(KEYS[10:20]))


def test_without_an_eval_initializer_evaluation_reads_initial_values(world):
    ev = make(initializer=v1.ones_initializer())
    for read in readers(ev, False).values():
        np.testing.assert_array_equal(world.run(read, [1, 2]), np.ones((2, 4)))


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_gradients_of_weights_see_what_the_lookup_saw(max_norm):
    ev = make(initializer=v1.ones_initializer(), ev_option=init(eval_initializer=0.25))
    weights = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        ids = sparse([0, 0], [1, 2], [1, 2])
        given = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
        values = lookup.embedding_lookup_sparse(
            ev, ids, given, combiner="sum", max_norm=max_norm, training=False
        )
    np.testing.assert_allclose(tape.gradient(values, weights), [1.0, 1.0])  # 4 elements of 0.25


def test_a_keras_model_evaluates_with_it_and_trains_without():
    import keras

    layer = tf_multitier.keras.Embedding(
        2,
        embeddings_initializer="ones",
        combiner="sum",
        ev_option=init(eval_initializer=7.0),
        optimizer=tf_multitier.optimizers.SGD(0.0),
    )
    group = tf_multitier.keras.GroupEmbedding(
        {
            "a": {
                "output_dim": 2,
                "embeddings_initializer": "ones",
                "ev_option": init(eval_initializer=7.0),
            }
        }
    )
    ids = np.array([[1], [2]])
    for call in (layer, lambda x, **k: group({"a": x}, **k)["a"]):
        np.testing.assert_array_equal(call(ids), np.ones((2, 2)))
        np.testing.assert_array_equal(call(ids, training=True), np.ones((2, 2)))
        np.testing.assert_array_equal(call(ids, training=False), np.full((2, 2), 7.0))
    model = keras.Sequential([layer])
    np.testing.assert_array_equal(model.predict(ids, verbose=0), np.full((2, 2), 7.0))
    restored = tf_multitier.keras.Embedding.from_config(layer.get_config())
    assert restored.ev_option.init_option.eval_initializer == 7.0


# ---- keys that are not admitted


@pairwise(world=WORLDS, parts=[1, 2], kind=["DRAM", "DRAM_SSDHASH", "LEVELDB", "HBM_DRAM"])
@pytest.mark.usefixtures("emulated_device")
def test_a_key_that_is_not_admitted_may_read_what_its_row_will_begin_with(
    world, kind, parts, tmp_path
):
    initializer = v1.random_uniform_initializer(-1, 1)  # no seed: the variable's
    ev = make(
        parts=parts,
        initializer=initializer,
        ev_option=tf_multitier.EmbeddingVariableOption(
            storage_option=option(kind, tmp_path),
            filter_option=tf_multitier.CounterFilter(2),
            init_option=tf_multitier.InitializerOption(
                default_value_no_permission=initializer, eval_initializer=9.0
            ),
        ),
    )
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "sgd", 0.5)
    read = lambda ids: tf.nn.embedding_lookup(ev, ids)
    first = world.run(read, [1, 2])
    assert len(np.unique(first)) == 8
    step([1])
    np.testing.assert_array_equal(world.run(read, [1, 2]), first)
    step([1])
    np.testing.assert_array_equal(world.run(read, [1]), first[:1] - np.float32(0.5))
    evaluation = world.run(readers(ev, False)["dense"], [1, 2])
    np.testing.assert_array_equal(evaluation[0], first[0] - np.float32(0.5))
    np.testing.assert_array_equal(evaluation[1], np.full(4, 9.0))


def test_the_engine_takes_both():
    table = engine.Table(
        2,
        filter="counter",
        filter_freq=3,
        default_value_no_permission={"kind": "debug"},
        eval_initializer=5.0,
    )
    np.testing.assert_array_equal(table.lookup([7, 100001]), [[7, 7], [1, 1]])
    np.testing.assert_array_equal(table.lookup([7], training=False), [[5, 5]])


# ---- saved


def test_a_checkpoint_has_the_cut_offs(tmp_path):
    saved = make("ev", initializer=TruncatedNormal(1, 0.5, 2.5, 3.0, seed=7))
    half = make("half", initializer=TruncatedNormal(1, 0.5, lower=2.5, seed=7))
    path = tf.train.Checkpoint(ev=saved, half=half).write(str(tmp_path / "model"))
    other = init(eval_initializer=4.0)
    ev = make("ev", initializer=v1.zeros_initializer(), ev_option=other)
    restored = make("half", initializer=v1.zeros_initializer())
    tf.train.Checkpoint(ev=ev, half=restored).read(path).assert_consumed()
    np.testing.assert_array_equal(tf.nn.embedding_lookup(ev, KEYS), between())
    np.testing.assert_array_equal(tf.nn.embedding_lookup(restored, KEYS), between(upper=None))
    evaluation = lookup.embedding_lookup(ev, [1], training=False)  # an option of the variable
    np.testing.assert_array_equal(evaluation, np.full((1, 4), 4.0))


def test_a_saved_model_evaluates_as_its_program_did(tmp_path):
    ev = make(initializer=v1.ones_initializer(), ev_option=init(eval_initializer=0.5))
    model = tf.Module()
    model.ev = ev
    model.serve = tf.function(
        lambda ids: lookup.embedding_lookup(ev, ids, training=False),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.serve(tf.constant([1], tf.int64)), np.full((1, 4), 0.5))


def test_a_kept_table_opens_with_its_options(tmp_path):
    made = engine.Table(
        4,
        "normal_between",
        a=1.0,
        b=0.5,
        lower=2.5,
        upper=3.0,
        seed=7,
        eval_initializer="debug",
        storage_type="SSDHASH",
        storage_path=str(tmp_path),
        keep=True,
    )
    path = made.path
    made.close()
    opened = engine.Table.open(path)
    np.testing.assert_array_equal(opened.lookup(KEYS), between())
    np.testing.assert_array_equal(opened.lookup([3], training=False), np.full((1, 4), 3))


# ---- a counter filter of bounded memory


def counting(max_keys, freq=100, **options):
    return engine.Table(2, filter="counter", filter_freq=freq, max_keys=max_keys, **options)


def count(table, keys, step, times=1):
    keys = np.repeat(keys, times)
    table.apply(
        "sgd", keys, np.zeros((len(keys), 2)), hyper={"learning_rate": 0.1}, global_step=step
    )


@pytest.mark.parametrize("shards", [1, 8])
def test_counts_are_exact_below_the_bound_and_the_least_counted_leave(shards):
    table = counting(80, num_shards=shards)
    for step, times in enumerate([5, 1, 3]):
        count(table, np.arange(step * 25, step * 25 + 25), step, times)
    expected = np.repeat([5, 1, 3], 25)
    np.testing.assert_array_equal(table.frequency(np.arange(75)), expected)
    count(table, np.arange(75, 85), 3, 2)  # 85: more than 80, so that 70 stay
    assert table.stats()["counted_keys"] == 70
    found = table.frequency(np.arange(85))
    np.testing.assert_array_equal(found[:25], expected[:25])
    np.testing.assert_array_equal(found[50:], [3] * 25 + [2] * 10)
    assert np.count_nonzero(found[25:50]) == 10


def test_of_equal_counts_the_oldest_leave_and_shards_do_not_matter():
    found = []
    for shards in (1, 4):
        table = counting(16, num_shards=shards)
        for step in range(40):
            count(table, [step], step)
        found.append(table.frequency(np.arange(40)).tolist())
    assert found[0] == found[1]
    kept = np.flatnonzero(found[0])
    np.testing.assert_array_equal(kept, np.arange(40 - len(kept), 40))
    assert 14 <= len(kept) <= 16


def test_memory_is_bounded_and_hot_keys_are_admitted():
    table = counting(1000, freq=20, num_shards=1)
    rng = np.random.default_rng(1)
    for step in range(100):
        count(table, np.concatenate([np.arange(10), rng.integers(100, 2**62, 500)]), step)
        assert table.stats()["counted_keys"] <= 1000
    assert len(table) == 10
    assert (
        table.stats()["filter_bytes"] <= 2 * 24 * 1024
    )  # 1,500 entries of 24 bytes, in chunks of 24 KiB
    restored = counting(100, freq=20)
    restored.import_rows(table.export())
    assert restored.stats()["counted_keys"] <= 100


@pytest.mark.parametrize("parts", [1, 2])
def test_a_variable_counts_within_its_bound(world, parts):
    ev = make(
        parts=parts,
        ev_option=tf_multitier.EmbeddingVariableOption(
            filter_option=tf_multitier.CounterFilter(3, max_keys=8)
        ),
    )
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "sgd", 1.0)
    step([1, 1])
    for key in range(100, 200, 2):
        step([key, key + 1])
    step([1])
    frequency = world.run(lambda ids: ev.get_frequency(ids), np.arange(300))
    assert frequency[1] == 3
    assert world.run(ev.total_count) == 1
    assert np.count_nonzero(frequency) <= 8 * parts + 1


# ---- what is refused


@pytest.mark.parametrize(
    "make_it, error, message",
    [
        (lambda: TruncatedNormal(stddev=0), ValueError, "stddev: expected more than 0, found 0"),
        (lambda: TruncatedNormal(lower=1, upper=1), ValueError, "lower: expected less than upper"),
        (lambda: TruncatedNormal(lower="x"), TypeError, "TruncatedNormal.lower: expected a finite"),
        (lambda: TruncatedNormal()([2, 2]), NotImplementedError, "cannot fill a tensor of shape"),
        (lambda: init(eval_initializer="zeros"), TypeError, "eval_initializer: expected a finite"),
        (
            lambda: make(ev_option=init(eval_initializer=v1.glorot_uniform_initializer())),
            ValueError,
            "eval_initializer: expected a number or a uniform",
        ),
        (
            lambda: make(
                ev_option=init(default_value_no_permission=v1.glorot_uniform_initializer())
            ),
            ValueError,
            "default_value_no_permission: expected a number or a uniform",
        ),
        (
            lambda: make(initializer=TruncatedNormal(0, 1e-30, lower=10, upper=11)),
            Exception,
            "at most 1e30 deviations from the mean",
        ),
        (
            lambda: tf_multitier.CounterFilter(2, max_keys=0),
            ValueError,
            "max_keys: expected at least 1",
        ),
        (
            lambda: engine.Table(2, eval_initializer={"kind": "matrix"}),
            ValueError,
            "eval_initializer: expected an initializer other than matrix",
        ),
        (
            lambda: engine.Table(2, default_value_no_permission={"mean": 1}),
            ValueError,
            "default_value_no_permission.mean: expected a member of an initializer, found none",
        ),
        (
            lambda: engine.Table(
                2, default_value_no_permission={"kind": "uniform", "a": 1.0, "b": 0.0}
            ),
            ValueError,
            "value of keys that are not admitted: initializer: uniform: expected minimum < maximum",
        ),
        (
            lambda: engine.Table(2, "normal_between", b=1.0, lower=2.0, upper=1.0),
            ValueError,
            "expected lower < upper, found 2 and 1",
        ),
        (lambda: engine.Table(2, filter="counter", max_keys=-1), ValueError, "max_keys"),
        (lambda: engine.Table(2).lookup([1], training=None), ValueError, "training: expected True"),
        (
            lambda: lookup.embedding_lookup(make(), [1], training="no"),
            TypeError,
            "training: expected True or False, found 'no'",
        ),
        (
            lambda: nn.group_embedding_lookup([make()], [tf.constant([1])], training=2),
            TypeError,
            "training: expected True or False, found 2",
        ),
    ],
)
def test_what_is_refused(make_it, error, message):
    with pytest.raises(error, match=message):
        make_it()
