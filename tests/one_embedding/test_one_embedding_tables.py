"""Ids, tables and padding of one_embedding, and what OneEmbedding is known to get wrong."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_embedding_util import F
from one_embedding_util import device_store
from one_embedding_util import embedding
from one_embedding_util import ssd_store
from one_embedding_util import table_rows
from one_embedding_util import tables_of
from worlds import needs_eager

import tf_multitier
from tf_multitier import one_embedding as oe

pytestmark = needs_eager
IDS = np.array([[488, 333, 220], [18, 568, 508]])


def constants(count):
    """Tables whose rows begin with their number."""
    return [oe.make_table_options(oe.make_constant_initializer(t)) for t in range(count)]


def step(call, optimizer, *ids, made=None):
    """Trains an embedding, `call` or `made`, on the sum of the rows of each of `ids`, which are arguments of a call."""
    made = call if made is None else made
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(call(*its)) for its in ids)
    gradients = tape.gradient(loss, made.parameters())
    optimizer.apply_gradients(zip(gradients, made.parameters()))


def sgd(made, rate=1.0):
    return oe.Optimizer(keras.optimizers.SGD(rate), [made])


def test_both_forms_ask_the_same_rows_within_the_bounds_of_their_tables(tmp_path):
    bounds = (0.1, 0.05, 0.15)
    tables = [oe.make_table_options(oe.make_uniform_initializer(-s, s)) for s in bounds]
    made = embedding(tmp_path, tables, 64)
    by_column = made(IDS).numpy()
    flat = made(IDS.ravel(), np.array([0, 1, 2, 0, 1, 2])).numpy()
    np.testing.assert_array_equal(by_column.reshape(6, -1), flat)
    np.testing.assert_array_equal(made(IDS.tolist()), by_column)
    np.testing.assert_array_equal(made(IDS, [0, 1, 2]), by_column)  # trailing dimensions
    # As in a table of its own.
    for t, table in enumerate(tables):
        alone = embedding(tmp_path / str(t), [table], 64, name=f"alone{t}")
        np.testing.assert_array_equal(alone(IDS[:, t]), by_column[:, t])
        assert 0.9 * bounds[t] < np.abs(by_column[:, t]).max() <= bounds[t]


def test_columns_begin_at_their_own_initial_values(tmp_path):
    table = lambda *values: oe.make_table_options(
        [oe.make_column_options(oe.make_constant_initializer(v)) for v in values]
    )
    made = embedding(tmp_path, [table(1, 2), table(3, 4)], [2, 1])
    expected = [[[1, 1, 2], [3, 3, 4]]]
    np.testing.assert_array_equal(made([[7, 8]]), expected)
    step(made, sgd(made), ([[7, 8]],))
    np.testing.assert_array_equal(made([[7, 8]]), np.array(expected) - 1)


@pytest.mark.parametrize("function", [False, True])
def test_table_ids_of_trailing_dimensions_hold_in_training(function, tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    optimizer = sgd(made)
    ids = np.arange(12).reshape(2, 2, 3)
    run = lambda ids: step(made, optimizer, (ids, [2, 0, 1]))
    (tf.function(run) if function else run)(tf.constant(ids))
    np.testing.assert_array_equal(made(ids, [0, 0, 0])[..., 0], np.tile([1, -1, 0], (2, 2, 1)))


def test_defect_silent_repeats(tmp_path):
    share = embedding(tmp_path / "a", constants(3), 1, name="share")
    np.testing.assert_array_equal(share([[7, 7, 7]])[0, :, 0], [0, 0, 0])
    step(share, sgd(share), ([7, 7], [2, 1]))
    assert table_rows(share) == {
        7: (np.array([0], F), 2)
    }  # 2 - 1 - 1: the first table of the batch
    made = embedding(tmp_path / "b", constants(3), 1, padding_idx=0, on_repeated_id="error")
    made([[0, 0, 0], [1, 2, 3], [1, 2, 3]])  # padding and repeats within a table are none
    for call in (made, tf.function(made.forward)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"id .*7.* in tables .*1.* and .*2"
        ):
            call(tf.constant([[1, 7, 8], [2, 9, 7]], tf.int64))
    assert not table_rows(made)


def test_defect_overflow_is_an_error_that_names_embedding_and_capacity(tmp_path):
    made = embedding(tmp_path, tables_of(26), store=device_store(tmp_path, capacity=1000))
    optimizer = sgd(made)
    ids = np.arange(38 * 26).reshape(38, 26)
    step(made, optimizer, (ids,))
    with pytest.raises(
        tf.errors.ResourceExhaustedError, match="'e'.* of 1000 rows.* use a larger .*capacity"
    ):
        step(made, optimizer, (ids + 10_000,))
    assert len(table_rows(made)) == 988
    step(made, optimizer, (ids,))


def test_an_ssd_store_grows_beyond_its_capacity_and_reserves_nothing(tmp_path):
    store = oe.make_cached_ssd_store_options(0.01, str(tmp_path), capacity=10)
    made = embedding(tmp_path, tables_of(3), store=store)
    step(made, sgd(made), (np.arange(3000).reshape(1000, 3),))
    assert len(table_rows(made)) == 3000
    store["kv_store"]["persistent_table"]["capacity_hint"] = 40_000_000
    store["kv_store"]["persistent_table"]["path"] = str(tmp_path / "large")
    large = embedding(tmp_path, tables_of(3), store=store, name="large")
    assert large.variable.table_options["initial_rows"] == 0


def test_defect_evaluation_inserts(tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    for training in (True, False):
        np.testing.assert_array_equal(made(IDS, training=training)[..., 0], [[0, 1, 2]] * 2)
    for call in (made, tf.function(made.forward)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(tf.constant(IDS), training=False))
        gradients = tape.gradient(loss, made.parameters())
        with pytest.raises(ValueError, match="expected a gradient, found none"):
            sgd(made).apply_gradients(zip(gradients, made.parameters()))
    assert not table_rows(made)


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize("store", ["device", "ssd"])
def test_defect_eager_trains_padding(store, tables, tmp_path):
    given = ssd_store(tmp_path, 16, 4) if store == "ssd" else device_store(tmp_path)
    made = embedding(tmp_path, constants(tables), store=given, padding_idx=-1)
    optimizer = sgd(made)
    ids = np.array([[-1] * tables, list(range(tables)), [-1] * tables])
    for run in (step, tf.function(step, autograph=False)):
        run(made, optimizer, (ids,), (ids[:1],))
        assert not made(ids)[0].numpy().any() and not made(ids)[2].numpy().any()
    rows = table_rows(made)
    assert {key: count for key, (_, count) in rows.items()} == dict.fromkeys(range(tables), 2)
    for key, (row, _) in rows.items():
        np.testing.assert_array_equal(row, np.full(4, key - 2))
    step(made, optimizer, (ids[:1],))  # nothing but padding
    assert table_rows(made).keys() == rows.keys()


def test_defect_300_tables_and_initializers_do_not_wrap(tmp_path):
    made = embedding(tmp_path, constants(300), 1)
    ids = np.arange(600).reshape(2, 300)
    np.testing.assert_array_equal(made(ids)[..., 0], [range(300)] * 2)
    np.testing.assert_array_equal(made([5, 6], np.array([299, 256], np.uint16))[:, 0], [299, 256])
    step(made, sgd(made), (ids,))
    np.testing.assert_array_equal(made(ids)[..., 0], [np.arange(300) - 1] * 2)


def test_defect_one_call_a_step(tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    optimizer = oe.Optimizer(keras.optimizers.Adagrad(1.0), [made])
    calls = ([7, 8], [1, 2]), ([[1, 2, 7]],), ([7], [0])
    step(made, optimizer, *calls)
    # Key 7 is asked in tables 1, 2 and 0, and has one update with the sum, 3.
    root = np.sqrt(F(0.1) + F(9))
    assert np.isclose(made([7], [0]).numpy()[0] + 3 / root, [0, 1, 2]).any()
    assert {key: count for key, (_, count) in table_rows(made).items()} == {1: 1, 2: 1, 7: 3, 8: 1}


def test_a_gradient_that_was_not_applied_gives_no_table(tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made([7], [2]))
    tape.gradient(loss, made.parameters())
    step(made, sgd(made, 0.0), ([7], [1]), ([8], [1]))
    np.testing.assert_array_equal(made([7, 8], [0, 0])[:, 0], [1, 1])


def test_threads_train_several_calls_eagerly(tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    optimizer = sgd(made, 0.0)
    ids = np.arange(90).reshape(3, 10, 1, 3)  # of each thread and step, for two calls
    run = lambda steps: [step(made, optimizer, (each,), (each + 900,)) for each in steps]
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        list(threads.map(run, ids))
    expected = {key: key % 3 for first in (0, 900) for key in range(first, first + 90)}
    assert {key: row[0] for key, (row, _) in table_rows(made).items()} == expected


def test_a_gradient_with_other_indices_needs_a_row(tmp_path):
    made = embedding(tmp_path, constants(2), 1)
    optimizer = sgd(made)
    step(made, optimizer, ([[1, 2]],))
    rebuilt = lambda key: tf.IndexedSlices(tf.ones([1, 1]), tf.constant([key], tf.int64))
    optimizer.apply_gradients([(rebuilt(2), made.parameters()[0])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="3"):
        optimizer.apply_gradients([(rebuilt(3), made.parameters()[0])])
    assert {key: float(row[0]) for key, (row, _) in table_rows(made).items()} == {1: -1, 2: -1}


@pytest.mark.parametrize("store", ["device", "ssd", "hbm"])
def test_tables_of_equal_initializers_train_lookups_of_other_functions(
    store, tmp_path, emulated_device
):
    equal = [oe.make_table_options(oe.make_normal_initializer(0, 1e-4)) for _ in range(3)]
    given = ssd_store(tmp_path, 16, 4) if store == "ssd" else device_store(tmp_path)
    made = embedding(tmp_path, equal, store=given).to("cuda" if store == "hbm" else "cpu")
    start = made(IDS).numpy()
    for function in (made.forward, tf.function(made.forward)):
        step(lambda *ids: function(*map(tf.constant, ids)), sgd(made), (IDS,), made=made)
    np.testing.assert_array_equal(made(IDS), start - F(1) - F(1))
    other = embedding(tmp_path / "b", constants(3), name="other")
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected the table number of key"):
        step(tf.function(other.forward), sgd(other), (tf.constant(IDS),), made=other)
    assert not table_rows(other)


@pytest.mark.parametrize(
    ("ids", "table_ids", "error", "message"),
    [
        (np.zeros((2, 4), np.int64), None, ValueError, r"ids of shape \[batch, 3\].*\(2, 4\)"),
        (np.zeros(3, np.int64), None, ValueError, r"or table_ids; found ids of shape \(3,\)"),
        (IDS, np.zeros((2, 1), np.int64), ValueError, r"found \(2, 1\) for ids of shape \(2, 3\)"),
        (IDS, [0, 1], ValueError, r"found \(2,\) for ids of shape \(2, 3\)"),
        (IDS[0], IDS, ValueError, r"found \(2, 3\) for ids of shape \(3,\)"),
        (IDS, [[0, 1, 2], [0, 3, 4]], tf.errors.InvalidArgumentError, "expected 0 to 2, found .*3"),
        (IDS, [0, 1, -1], tf.errors.InvalidArgumentError, "expected 0 to 2, found .*-1"),
        (IDS, [0.0, 1.0, 2.0], TypeError, "table_ids: expected integers, found float32"),
        (IDS.astype(np.int32), None, TypeError, "ids: expected int64, the key_type, found int32"),
        (IDS.astype(F), None, TypeError, "found float32"),
        ([[1.5, 2, 3]], None, TypeError, "ids: expected integers, found float64"),
        ([[1, 2, 2**63]], None, ValueError, "ids: expected int64, found 9223372036854775808"),
        (tf.sparse.from_dense(IDS), None, TypeError, "found a SparseTensor"),
        (None, None, ValueError, "ids: expected int64, found None"),
        ([[1, None, 2]], None, TypeError, "ids: expected integers, found .*None"),
        ([[1, True, 2]], None, TypeError, "ids: expected integers, found bool"),
        ([[1], [2, 3]], None, ValueError, r"ids: expected lists of one length, found \[\[1\], "),
        (keras.Input([3]), None, ValueError, "ids: .*found .*: call a layer of Keras with it"),
        (IDS, [[0], [1, 2]], ValueError, "table_ids: expected integers, found .*: Can't convert"),
        (IDS, tf.ragged.constant([[0], [1]]), TypeError, "table_ids: .*found a RaggedTensor"),
    ],
)
def test_bad_ids_are_refused(ids, table_ids, error, message, tmp_path):
    made = embedding(tmp_path, constants(3))
    with pytest.raises(error, match=message):
        made(ids, table_ids)


def test_shapes_that_a_function_does_not_know_are_checked_when_it_runs(tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    call = tf.function(
        made.forward,
        input_signature=[
            tf.TensorSpec([None, None], tf.int64),
            tf.TensorSpec([None], tf.int64),
        ],
    )
    np.testing.assert_array_equal(call(IDS, [0, 1, 2])[..., 0], [[0, 1, 2]] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="trailing dimensions"):
        call(IDS, [0, 1])
    columns = tf.function(
        lambda ids: made(ids), input_signature=[tf.TensorSpec([None, None], tf.int64)]
    )
    np.testing.assert_array_equal(columns(IDS)[..., 0], [[0, 1, 2]] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[batch, 3\]"):
        columns(IDS[:, :2])


@pytest.mark.parametrize("key_type", [tf.int32, tf.uint32, tf.uint64])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_every_type_of_keys_and_values(key_type, dtype, tmp_path):
    made = embedding(tmp_path, constants(3), key_type=key_type, dtype=dtype, padding_idx=3)
    ids = np.array([[key_type.max, 3, key_type.min]], key_type.as_numpy_dtype)
    expected = np.repeat([[[0.0], [0.0], [2.0]]], 4, axis=2)
    assert made(ids).dtype == dtype
    np.testing.assert_array_equal(tf.cast(made(ids), tf.float32), expected)
    step(made, sgd(made), (ids,))
    expected[0, [0, 2]] -= 1
    np.testing.assert_array_equal(tf.cast(made(ids), tf.float32), expected)
    assert sorted(table_rows(made)) == sorted([key_type.min, key_type.max])


def test_the_output_type_is_chosen(tmp_path):
    made = embedding(tmp_path, constants(3), output_dtype=tf.bfloat16, padding_idx=488)
    assert made(IDS).dtype == tf.bfloat16 and made.variable.dtype == tf.float32


def test_row_optimizers_train_parameters(tmp_path):
    made = embedding(tmp_path, constants(3), 1)
    step(made, tf_multitier.optimizers.RowwiseAdagrad(0.1), (IDS,))
    assert sorted(table_rows(made)) == sorted(IDS.ravel())


def test_a_layer_takes_ids_or_a_list_of_ids_and_table_ids(tmp_path):
    layer = embedding(tmp_path, constants(3)).keras_layer()
    np.testing.assert_array_equal(layer([IDS, np.array([2, 1, 0])])[0, :, 0], [2, 1, 0])
    for more in (IDS, keras.Input([3], dtype="int64")):
        with pytest.raises(
            ValueError, match="inputs: expected ids, or a list .* found a list of 3"
        ):
            layer([more] * 3)


def test_keras_trains_by_fit(tmp_path):
    from tf_multitier.keras import with_rows

    made = embedding(tmp_path, tables_of(3), 4, padding_idx=0)
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(made.keras_layer()(ids)))
    model = keras.Model(ids, outputs)
    model.compile(with_rows(keras.optimizers.Adagrad(0.1)), "mse")
    rng = np.random.default_rng(1)
    x = rng.integers(0, 30, (256, 3)) + [[0, 100, 200]]
    y = rng.normal(size=(256, 1))
    losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert set(table_rows(made)) == set(x.ravel().tolist()) - {0}
    before = model.predict(x, verbose=0)
    model.save_weights(tmp_path / "w.weights.h5")
    model.fit(x, y, verbose=0)
    model.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)
    # While the embedding lives, another has its own name and folder.
    model.save(tmp_path / "m.keras")
    layer = model.layers[1]
    copies = [keras.models.load_model(tmp_path / "m.keras"), keras.models.clone_model(model)]
    for number, copy in enumerate(copies, 1):
        its = copy.layers[1].embedding
        assert its.get_config() == {
            **layer.embedding.get_config(),
            "name": f"e_{number}",
            "store_options": device_store(tmp_path / f"e_{number}"),
        }
    np.testing.assert_array_equal(copies[0].predict(x, verbose=0), before)
    assert not table_rows(copies[1].layers[1].embedding)
    copies[0].fit(x, y, verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)
    its = layer = model = made = outputs = ids = None
    keras.backend.clear_session()
    assert keras.models.load_model(tmp_path / "m.keras").layers[1].embedding.name == "e"


def test_layers_of_one_embedding_train_and_save_its_rows_once(tmp_path):
    from tf_multitier.keras import with_rows

    made = embedding(tmp_path, constants(3), 1)
    layers = [made.keras_layer(name=name) for name in "ab"]
    ids = keras.Input((3,), dtype="int64")
    model = keras.Model(ids, layers[0](ids) + layers[1](ids))
    model.compile(with_rows(keras.optimizers.SGD(0.5)), lambda y, rows: tf.reduce_sum(rows - y))
    model.fit(np.array([[7, 8, 9]]), np.zeros((1, 3, 1)), verbose=0)
    # One update, with the sum of both gradients.
    expected = {7: (-1, 2), 8: (0, 2), 9: (1, 2)}
    assert {key: (row[0], count) for key, (row, count) in table_rows(made).items()} == expected
    with pytest.raises(NotImplementedError, match="layer 'a': embedding 'e' has more layers, b"):
        model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="optimizer: expected None, .* found Adagrad"):
        made.keras_layer(tf_multitier.optimizers.Adagrad(0.1))(ids)
