"""Bad input never ends the process: docs/operations.md promises it."""

import os

import forks
import numpy as np
import pytest
import tensorflow as tf
from paths import environment
from variable_util import make

import tf_multitier

v1 = tf.compat.v1
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bad_input.py")


@pytest.mark.parametrize("kind", ["whole", "parts", "devices", "multihash"])
def test_no_sparse_or_ragged_ids_end_the_process(kind):
    run = forks.run([_PROGRAM, kind], environment())
    assert run.returncode == 0 and run.stdout.endswith("done\n"), (
        run.stdout[-300:] + run.stderr[-1500:]
    )


def empty_rows(n):
    return tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [n, 1])


@pytest.mark.parametrize("default_id", [1.7, True, "a", np.uint64(1)])
def test_a_default_id_that_is_no_key(world, default_id):
    ev, safe = make(), tf.nn.safe_embedding_lookup_sparse
    with pytest.raises(
        TypeError,
        match="embedding variable 'ev': default_id: expected int64(, the key_dtype)?, found",
    ):
        world.run(lambda: safe(ev, empty_rows(2), default_id=default_id))


@pytest.mark.parametrize("default_id", [1.7, True, "a", np.uint64(1)])
def test_a_default_id_that_is_no_integer_of_a_multihash_variable(graph, default_id):
    hashed = tf_multitier.get_multihash_variable("mh", [[3, 4], [3, 4]])
    with pytest.raises(
        TypeError, match="multihash variable 'mh': default_id: expected integers, found"
    ):
        tf.nn.safe_embedding_lookup_sparse(hashed, empty_rows(2), default_id=default_id)


def test_a_default_id_of_several_keys(world):
    ev, safe = make(), tf.nn.safe_embedding_lookup_sparse
    with pytest.raises(ValueError, match=r"'ev': default_id: expected one key, found shape \(2,\)"):
        world.run(lambda: safe(ev, empty_rows(2), default_id=[1, 2]))


@pytest.mark.parametrize("default_id", [2**40, -1, np.int64(7), tf.int8.max])
def test_a_default_id_that_is_a_key_is_looked_up_and_trained(world, default_id):
    ev = make()
    out = lambda: tf.nn.safe_embedding_lookup_sparse(ev, empty_rows(2), default_id=default_id)
    plain = lambda: tf.nn.embedding_lookup(ev, [default_id, default_id])
    np.testing.assert_array_equal(*world.run(lambda: [out(), plain()]))
    world.step(lambda: tf.reduce_sum(out()), [ev])()
    assert world.run(lambda: ev.get_frequency([default_id])).tolist() == [2]


def test_the_gradient_of_weights_passes_filled_rows(world):
    ev, indices = make(initializer=v1.ones_initializer()), [[0, 0], [2, 0]]

    def look_up(weights):
        return tf.nn.safe_embedding_lookup_sparse(
            ev,
            tf.SparseTensor(indices, tf.constant([5, 6], tf.int64), [4, 1]),
            tf.SparseTensor(indices, weights, [4, 1]),
            combiner="sum",
            default_id=9,
        )

    def both(weights):
        def values_and_loss():
            out = look_up(weights)
            return out, tf.reduce_sum(out * [[1.0], [10.0], [100.0], [1000.0]])

        values, [slope] = world.with_gradients(values_and_loss, [weights])
        return values, tf.convert_to_tensor(slope)

    values, found = world.run(both, np.array([2.0, 3.0], np.float32))
    assert values[:, 0].tolist() == [2.0, 1.0, 3.0, 1.0] and found.tolist() == [4.0, 400.0]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_of_expiry_that_is_no_integer(world, parts):
    ev = make(parts=parts)
    with pytest.raises(ValueError, match="'ev': expire: expected an option by which rows expire"):
        world.run(lambda: ev.expire(3))
    light = tf_multitier.EmbeddingVariableOption(evict_option=tf_multitier.L2WeightEvict(0.1))
    ev = make("other", parts=parts, ev_option=light)
    with pytest.raises(TypeError, match="'other': step: expected an integer, found float32"):
        world.run(lambda: ev.expire(1.7))
    assert world.run(lambda: [ev.expire(3), ev.expire(np.int64(2**40))]) == [0, 0]
