"""Helpers for the tests of the ops: the ops with the attributes that most tests use."""

import json

import tensorflow as tf

import tf_multitier
from tf_multitier import engine

ops = tf.load_op_library(tf_multitier.get_library_path())

DIM = 4
UNIFORM = dict(initializer=dict(kind="uniform", a=-1.0, b=1.0, seed=5))
_ATTRS = ("dtype", "key_dtype", "partition_index", "num_partitions")


def attrs_of(dim=DIM, **options):
    """The attributes of an op for a variable with these options."""
    attrs = {name: options.pop(name) for name in _ATTRS if name in options}
    return dict(shape=[0, dim], options=json.dumps({"version": 1, **options}), **attrs)


def handle(name="ev", dim=DIM, **options):
    return ops.multitier_embedding_variable_handle(
        shared_name=name, **attrs_of(dim, **(UNIFORM | options))
    )


def initialize(h, dim=DIM, matrix=None, **options):
    matrix = tf.zeros([0, dim]) if matrix is None else matrix
    return ops.multitier_initialize(h, matrix, **attrs_of(dim, **(UNIFORM | options)))


def keys64(values):
    return tf.constant(values, tf.int64)


def sgd(h, keys, grads, counts=(), step=-1, lr=1.0, dtype=tf.int64):
    return ops.multitier_apply(
        h,
        tf.constant(keys, dtype),
        tf.constant(grads, tf.float32),
        tf.constant(counts, tf.int64, [len(counts)]),
        tf.constant(step, tf.int64),
        [tf.constant(lr)],
        [],
        rule="sgd",
        slot_names=[],
        slot_initial_values=[],
    )


def adagrad(h, keys, grads, slot="ev/Adagrad"):
    rule = engine.update_rules()["adagrad"]
    hyper = [tf.constant(0.1) for _ in rule.hyperparameters]
    return ops.multitier_apply(
        h,
        keys64(keys),
        tf.constant(grads, tf.float32),
        keys64([]),
        tf.constant(-1, tf.int64),
        hyper,
        [],
        rule="adagrad",
        slot_names=[slot],
        slot_initial_values=[0.25],
    )


def sparse(h, keys, rows, batch, weights=(), combiner="sum", dim=DIM, **kwargs):
    handles = h if isinstance(h, list) else [h]
    return ops.multitier_lookup_sparse(
        handles,
        keys64(keys),
        keys64(rows),
        tf.constant(weights, tf.float32, [len(weights)]),
        tf.constant(batch, tf.int64),
        combiner=combiner,
        dim=dim,
        has_weights=len(weights) > 0,
        **kwargs,
    )


def sparse_grad(h, keys, rows, grad, weights=(), combiner="sum", dim=DIM, **kwargs):
    """(entry_grads, weight_grads)"""
    handles = h if isinstance(h, list) else [h]
    return ops.multitier_lookup_sparse_grad(
        handles,
        keys64(keys),
        keys64(rows),
        tf.constant(weights, tf.float32, [len(weights)]),
        tf.constant(grad, tf.float32),
        combiner=combiner,
        dim=dim,
        has_weights=len(weights) > 0,
        **kwargs,
    )


def initialized(session, **options):
    """The handle of a new variable."""
    h = handle(**options)
    session.run(initialize(h, **options))
    return h


def unknown(dtype=tf.int64, shape=None):
    return tf.compat.v1.placeholder(dtype, shape)
