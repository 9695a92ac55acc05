"""A variable that is trained and saved in one graph, and restored in another. For tests of checkpoints as files."""

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1


def trained(tmp_path, parts=1, optimizer=None, keys=range(-20, 30), name="scope/user", **options):
    """Trains a variable and a dense one, and saves them. Returns (prefix, {key: value})."""
    prefix = str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        variable = tf_multitier.get_embedding_variable(
            name,
            4,
            initializer=v1.random_uniform_initializer(-1, 1, seed=3),
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            **options,
        )
        dense = v1.get_variable("dense", initializer=[1.0, 2.0])
        keys = np.asarray(list(keys), np.int64)
        step = v1.train.get_or_create_global_step()
        rows = tf.nn.embedding_lookup(variable, tf.constant(keys))
        train = (optimizer or v1.train.AdagradOptimizer(0.1)).minimize(
            tf.reduce_sum(rows**2) + tf.reduce_sum(dense), global_step=step
        )
        session.run(v1.global_variables_initializer())
        session.run(train)
        session.run(train)
        v1.train.Saver().save(session, prefix)
        return prefix + "", dict(zip(keys.tolist(), session.run(rows)))


def restored(prefix, keys, parts=1, name="scope/user", optimizer=None, **options):
    """Restores the variable in a new graph. Returns values, frequencies, and all rows by key after one more update."""
    with tf.Graph().as_default(), v1.Session() as session:
        variable = tf_multitier.get_embedding_variable(
            name,
            4,
            initializer=v1.random_uniform_initializer(-1, 1, seed=8),
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            **options,
        )
        rows = tf.nn.embedding_lookup(variable, tf.constant(keys, tf.int64))
        train = (optimizer or v1.train.AdagradOptimizer(0.1)).minimize(tf.reduce_sum(rows**2))
        saver = v1.train.Saver(tf_multitier.embedding_variables())
        session.run(v1.global_variables_initializer())
        saver.restore(session, prefix)
        values, frequencies = session.run([rows, variable.get_frequency(keys)])
        session.run(train)
        return values, frequencies, session.run(rows)
