"""Our optimizers over partitioned ordinary variables: a restore returns what was saved."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
MAKE = {
    "adagrad_decay": lambda: tf_multitier.train.AdagradDecayOptimizer(
        0.1, v1.train.get_or_create_global_step(), 0.1, 1, 0.5
    ),
    "adagrad_decay_v2": lambda: tf_multitier.train.AdagradDecayOptimizerV2(
        0.1, v1.train.get_or_create_global_step(), 0.1, 1, 0.5
    ),
    "rowwise_adagrad": lambda: tf_multitier.train.RowwiseAdagradOptimizer(0.1),
    "adam_async": lambda: tf_multitier.train.AdamAsyncOptimizer(0.1),
    "adamw": lambda: tf_multitier.train.AdamWOptimizer(0.1, 0.1),
}


def _build(name, parts, axis):
    """(saver, train op, {kind: tensor of the whole}) of a variable [8, 6] in parts."""
    sizes = [1, 1]
    sizes[axis] = parts
    table = v1.get_variable(
        "t", [8, 6], initializer=v1.random_normal_initializer(seed=1), partitioner=lambda **_: sizes
    )
    optimizer = MAKE[name]()
    rows = tf.gather(tf.convert_to_tensor(table), [0, 1, 5, 7])
    train = optimizer.minimize(tf.reduce_sum(tf.square(rows)), v1.train.get_or_create_global_step())
    slots = {
        slot: tf.concat(
            [tf.convert_to_tensor(optimizer.get_slot(part, slot)) for part in table], axis
        )
        for slot in optimizer.get_slot_names()
    }
    return v1.train.Saver(), train, {"value": tf.convert_to_tensor(table), **slots}


def _saved_and_restored(directory, name, axis, parts, restored_parts):
    with tf.Graph().as_default(), v1.Session() as session:
        saver, train, whole = _build(name, parts, axis)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        path, saved = saver.save(session, str(directory / "model")), session.run(whole)
    with tf.Graph().as_default(), v1.Session() as session:
        saver, train, whole = _build(name, restored_parts, axis)
        session.run(v1.global_variables_initializer())
        saver.restore(session, path)
        return saved, session.run(whole)


@pytest.mark.parametrize("name", sorted(MAKE))
@pytest.mark.parametrize(
    "axis, parts, restored_parts", [(0, 1, 1), (0, 3, 3), (1, 2, 2), (1, 1, 1)]
)
def test_parts_are_restored(tmp_path, name, axis, parts, restored_parts):
    saved, restored = _saved_and_restored(tmp_path, name, axis, parts, restored_parts)
    assert saved.keys() == restored.keys() and len(saved) > 1
    for kind, value in saved.items():
        np.testing.assert_array_equal(restored[kind], value, kind)


@pytest.mark.parametrize("name", ["adagrad_decay", "adagrad_decay_v2", "rowwise_adagrad", "adamw"])
def test_parts_of_rows_are_restored_into_another_number_of_parts(tmp_path, name):
    saved, restored = _saved_and_restored(tmp_path, name, 0, 3, 2)
    for kind, value in saved.items():
        np.testing.assert_array_equal(restored[kind], value, kind)


@pytest.mark.parametrize("name", ["adagrad_decay", "rowwise_adagrad"])
def test_a_slot_of_one_number_a_row_has_that_shape_in_the_checkpoint(tmp_path, name):
    with tf.Graph().as_default(), v1.Session() as session:
        saver, _, _ = _build(name, 3, 0)
        session.run(v1.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "model"))
    assert [8, 1] in [shape for _, shape in v1.train.list_variables(path)]
