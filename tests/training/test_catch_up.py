"""Adam(catch_up=True): rows that return are those of keras.optimizers.Adam on a dense table, given the same gradients."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
keras = pytest.importorskip("keras")
Adam = tf_multitier.optimizers.Adam
GAPS, DIM = [1, 2, 3, 10, 50, 200, 1000, 10000], 5
ALWAYS = len(GAPS)  # a row that each step trains


def make(name="ev", storage=None, **options):
    ev_option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(**(storage or {})), **options
    )
    return tf_multitier.get_embedding_variable(
        name, DIM, initializer=tf.ones_initializer(), ev_option=ev_option
    )


def on_ssd(path):
    kind = tf_multitier.StorageType.DRAM_SSDHASH
    return dict(storage_type=kind, storage_path=str(path), storage_size=[128])


def rows_of(ev, keys):
    return tf.nn.embedding_lookup(ev, keys).numpy()


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.02, 400, 0.9)


@pytest.mark.parametrize("rate, is_on_ssd", [(lambda: 0.01, False), (schedule, True)])
def test_rows_that_return_are_those_of_a_dense_table(rate, is_on_ssd, tmp_path):
    rng = np.random.default_rng(2)
    first = rng.normal(size=(ALWAYS + 1, DIM)) * 10.0 ** rng.integers(-7, 1, (ALWAYS + 1, 1))
    first = tf.constant(first, tf.float32)
    ev = make(storage=on_ssd(tmp_path) if is_on_ssd else None)
    dense = tf.Variable(tf.ones([ALWAYS + 1, DIM]))
    ours, theirs = Adam(rate(), catch_up=True), keras.optimizers.Adam(rate())
    of_dense = keras.Variable(dense)
    theirs.build([of_dense])

    @tf.function(reduce_retracing=True)
    def step(keys):
        gradient = tf.gather(first, keys)
        ours.apply_gradients([(tf.IndexedSlices(gradient, keys), ev)])
        dense_gradient = tf.scatter_nd(keys[:, None], gradient, [ALWAYS + 1, DIM])
        theirs.apply([dense_gradient], [of_dense])

    always = tf.constant([ALWAYS], tf.int64)
    step(tf.range(ALWAYS + 1, dtype=tf.int64))
    moved = []
    for number in range(1, max(GAPS) + 2):
        if number - 1 not in GAPS:
            step(always)
            continue
        key = GAPS.index(number - 1)
        before = rows_of(ev, [key])[0]
        step(tf.constant([key, ALWAYS], tf.int64))
        found, expected = rows_of(ev, [key]), of_dense.numpy()[[key]]
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"gap {number - 1}")
        moved.append(np.abs(before - found[0]).max())
    assert max(moved) > 0.05  # most of it was missed


def train(optimizer, ev, batches):
    for seed in batches:
        rng = np.random.default_rng(seed)
        gradient = tf.constant(rng.normal(size=(3, DIM)), tf.float32)
        keys = tf.constant(rng.integers(0, 40, 3), tf.int64)
        optimizer.apply_gradients([(tf.IndexedSlices(gradient, keys), ev)])


@pytest.mark.parametrize("is_on_ssd", [False, True])
def test_restored_rows_catch_up_as_if_nothing_had_happened(is_on_ssd, tmp_path):
    made = []
    for name in ("whole", "saved", "restored"):
        ev = make(storage=on_ssd(tmp_path / name) if is_on_ssd else None)
        made.append((Adam(schedule(), catch_up=True), ev))
    train(*made[0], range(60))
    train(*made[1], range(30))
    optimizer, ev = made[1]
    path = tf.train.Checkpoint(ev=ev, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    optimizer, ev = made[2]
    tf.train.Checkpoint(ev=ev, optimizer=optimizer).restore(path).assert_consumed()
    train(*made[2], range(30, 60))
    same_bits(rows_of(made[2][1], range(40)), rows_of(made[0][1], range(40)))
    lazy = make("lazy")
    train(Adam(schedule()), lazy, range(60))
    assert np.abs(rows_of(lazy, range(40)) - rows_of(made[0][1], range(40))).max() > 1e-3


def test_rates_are_kept_up_to_the_last_change():
    ev, optimizer = make(), Adam(0.01, catch_up=True)
    optimizer.iterations.assign(7)  # as of a checkpoint that was saved without catch_up
    train(optimizer, ev, range(2))
    rates = optimizer.past_rates.numpy()
    assert len(rates) == 9 and set(rates[:7]) == {rates[7]} != {rates[8]}
    for power in (optimizer.beta_1_power, optimizer.beta_2_power):
        power.assign(0.0)  # as after many steps
    train(optimizer, ev, range(3))
    np.testing.assert_allclose(optimizer.past_rates.numpy()[9:], [0.01])
    optimizer.learning_rate = 0.02
    train(optimizer, ev, range(1))
    np.testing.assert_allclose(optimizer.past_rates.numpy()[9:], [0.01, 0.01, 0.01, 0.02])


def test_what_cannot_catch_up_is_refused(emulated_device):
    gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))
    on_hbm = make("on_hbm", storage=dict(storage_type=tf_multitier.StorageType.HBM))
    with pytest.raises(tf.errors.UnimplementedError, match="adam_catch_up does not run on tables"):
        Adam(catch_up=True).apply_gradients([(gradient, on_hbm)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected score 'step' or 'freq"):
        Adam(catch_up=True).apply_gradients([(gradient, make("timed", score="time"))])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a beta_2 nearer to 1"):
        Adam(beta_2=0.9, catch_up=True).apply_gradients([(gradient, make("beta"))])
    with pytest.raises(ValueError, match="catch_up without it, found a weight_decay"):
        Adam(weight_decay=0.1, catch_up=True).apply_gradients([(gradient, make("decayed"))])
    with pytest.raises(ValueError, match="catch_up without it, found amsgrad=True"):
        Adam(amsgrad=True, catch_up=True)
