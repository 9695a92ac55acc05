"""Bad input never ends the process: docs/errors.md promises it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from variable_util import initialized_session
from variable_util import make

import tf_multitier

v1 = tf.compat.v1
_HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.parametrize("kind", ["whole", "parts", "devices", "multihash"])
def test_no_sparse_or_ragged_ids_end_the_process(kind):
    environ = dict(os.environ, PYTHONPATH=os.path.dirname(_HERE))
    run = subprocess.run(
        [sys.executable, os.path.join(_HERE, "bad_input.py"), kind],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    assert run.returncode == 0 and run.stdout.endswith("done\n"), (
        run.stdout[-300:] + run.stderr[-1500:]
    )


def empty_ids(rows):
    return v1.SparseTensorValue(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), [rows, 1])


@pytest.mark.parametrize("default_id", [1.7, True, "a", np.uint64(1)])
def test_a_default_id_that_is_no_key(graph, default_id):
    ids = v1.sparse_placeholder(tf.int64)
    with pytest.raises(
        TypeError, match="embedding variable 'ev': default_id: expected int64, found"
    ):
        tf.nn.safe_embedding_lookup_sparse(make(), ids, default_id=default_id)
    with pytest.raises(
        TypeError, match="multihash variable 'mh': default_id: expected integers, found"
    ):
        tf.nn.safe_embedding_lookup_sparse(
            tf_multitier.get_multihash_variable("mh", [[3, 4], [3, 4]]), ids, default_id=default_id
        )


def test_a_default_id_of_several_keys(graph):
    with pytest.raises(ValueError, match=r"'ev': default_id: expected one key, found shape \(2,\)"):
        tf.nn.safe_embedding_lookup_sparse(
            make(), v1.sparse_placeholder(tf.int64), default_id=[1, 2]
        )


@pytest.mark.parametrize("default_id", [2**40, -1, np.int64(7), tf.int8.max])
def test_a_default_id_that_is_a_key_is_looked_up_and_trained(graph, default_id):
    ev, ids = make(), v1.sparse_placeholder(tf.int64)
    out = tf.nn.safe_embedding_lookup_sparse(ev, ids, default_id=default_id)
    step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(out))
    expected = tf.nn.embedding_lookup(ev, [default_id, default_id])
    with initialized_session() as session:
        np.testing.assert_array_equal(*session.run([out, expected], {ids: empty_ids(2)}))
        session.run(step, {ids: empty_ids(2)})
        assert session.run(ev.get_frequency([default_id])).tolist() == [2]


def test_the_gradient_of_weights_passes_filled_rows(graph):
    ev, weights = (
        make(initializer=v1.ones_initializer()),
        v1.get_variable("w", initializer=[2.0, 3.0], use_resource=True),
    )
    indices = [[0, 0], [2, 0]]
    out = tf.nn.safe_embedding_lookup_sparse(
        ev,
        tf.SparseTensor(indices, tf.constant([5, 6], tf.int64), [4, 1]),
        tf.SparseTensor(indices, tf.convert_to_tensor(weights), [4, 1]),
        combiner="sum",
        default_id=9,
    )
    [gradient] = tf.gradients(tf.reduce_sum(out * [[1.0], [10.0], [100.0], [1000.0]]), [weights])
    with initialized_session() as session:
        values, found = session.run([out, tf.convert_to_tensor(gradient)])
    assert values[:, 0].tolist() == [2.0, 1.0, 3.0, 1.0] and found.tolist() == [4.0, 400.0]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_of_expiry_that_is_no_integer(graph, parts):
    ev = make(parts=parts)
    with pytest.raises(TypeError, match="'ev': step: expected an integer, found float32"):
        ev.expire(1.7)
    with initialized_session() as session:
        assert session.run([ev.expire(3), ev.expire(np.int64(2**40))]) == [0, 0]
