"""What the tests of embedding variables share: variables, sessions, ids."""

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1


def make(name="ev", dim=4, parts=1, **kwargs):
    kwargs.setdefault("initializer", v1.random_uniform_initializer(-1, 1, seed=3))
    return tf_multitier.get_embedding_variable(
        name, dim, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None, **kwargs
    )


def initialized_session():
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return session


def sparse(rows, ids, shape):
    """SparseTensor of ids, each in its row, in order of occurrence."""
    columns = [sum(r == row for r in rows[:i]) for i, row in enumerate(rows)]
    return tf.SparseTensor(
        np.stack([rows, columns], axis=1).astype(np.int64), np.asarray(ids, np.int64), shape
    )
