"""Helpers for the tests of feature columns: make columns, read and train them."""

import numpy as np
import tensorflow as tf

import tf_multitier
from tf_multitier import feature_column as fc

v1 = tf.compat.v1
v1.logging.set_verbosity(v1.logging.ERROR)  # feature columns are deprecated, we know

NORMAL = v1.random_normal_initializer(stddev=1.0, seed=7)  # its own seed: names do not matter


def ints(key, **kwargs):
    return fc.categorical_column_with_embedding(key, dtype=tf.int64, **kwargs)


def embedded(column, dimension=3, **kwargs):
    return fc.embedding_column(column, dimension, initializer=NORMAL, **kwargs)


def sequence(key, **kwargs):
    return fc.sequence_categorical_column_with_embedding(key, dtype=tf.int64, **kwargs)


def only_variable():
    [variable] = tf_multitier.embedding_variables()
    return variable


def run(session, fetch):
    session.run(v1.global_variables_initializer())
    return session.run(fetch)


def rows_by_hand(session, variable, ids):
    """Looked-up rows of a flat list of ids: float32 [n, dim]."""
    return session.run(tf.nn.embedding_lookup(variable, np.array(ids, np.int64)))


def train(session, loss, steps=1, learning_rate=1.0):
    """Stock SGD on `loss`; the variables must be initialized."""
    step = v1.train.GradientDescentOptimizer(learning_rate).minimize(loss)
    for _ in range(steps):
        session.run(step)


def count(session, variable):
    return session.run(variable.total_count())
