"""Feeds bad sparse and ragged ids to every lookup. A test runs it as a process: python3 bad_input.py KIND.

Prints the name of each case before it runs and what it gave after; "done" at the end. A case may give values or an error of
TensorFlow. test_bad_input.py runs it, because what it looks for is the end of the process.
"""

import sys

import numpy as np
import tensorflow as tf

import tf_multitier
from tf_multitier import nn

v1 = tf.compat.v1
NONE = np.zeros((0, 2), np.int64)
HUGE = (2**40, 2**62, 2**63 - 1, -1, -(2**63))

# (indices, values, dense shape)
SPARSE = [
    (indices, values, shape)
    for indices, values in (([[0, 0]], [1]), (NONE, []))
    for shape in [[n, 1] for n in HUGE]
    + [[2, n] for n in HUGE]
    + [[0, 0], [2**33, 2**33], [2**62, 4]]
] + [
    ([[-5, 0]], [1], [2, 1]),
    ([[2**62, 0]], [1], [2, 1]),
    ([[0, 2**62]], [1], [2, 1]),
    ([[1, 0], [0, 0]], [1, 2], [2, 1]),
    ([[0]], [1], [2, 1]),
    (np.zeros((1, 0)), [1], [2, 1]),
    ([[0, 0, 0]], [1], [2, 1]),
    ([0], [1], [2, 1]),
    (0, [1], [2, 1]),
    ([[0, 0]], [1], []),
    ([[0, 0]], [1], [2]),
    ([[0, 0]], [1], [2, 1, 1]),
    ([[0, 0]], [1], 2),
    ([[0, 0]], [[1]], [2, 1]),
    ([[0, 0]], 1, [2, 1]),
    ([[0, 0]], [1, 2, 3], [2, 1]),
    ([[0, 0], [0, 1], [1, 0]], [1], [2, 2]),
]
CUBES = [
    (indices, values, shape)
    for indices, values in (([[0, 0, 0]], [1]), (np.zeros((0, 3)), []))
    for shape in (
        [2**40, 2**40, 1],
        [2**62, 4, 1],
        [2**32, 2**32, 1],
        [-1, -1, 1],
        [0, 0, 1],
        [2, 2**62, 2**62],
        [2**21, 2**21, 2**21],
        [3, -1, 2],
        [2**63 - 1, 2, 1],
        [2, 0, 0],
    )
]
SPLITS = [
    [0, 2, 1],
    [0, 2**62],
    [0, -1],
    [],
    [0],
    [5, 6],
    [[0, 1]],
    [0, -(2**63)],
    [0, 5],
    [0, 2**63 - 1],
    [0, 2**40, 1],
]


def variable(kind):
    if kind == "multihash":
        return tf_multitier.get_multihash_variable("mh", [[10, 4], [10, 4]])
    devices = iter(["/cpu:0", "/cpu:1"])
    place = lambda op: next(devices) if op.type == "MultitierEmbeddingVariableHandle" else "/cpu:0"
    with v1.device(place if kind == "devices" else None):
        return tf_multitier.get_embedding_variable(
            "ev", 4, partitioner=None if kind == "whole" else v1.fixed_size_partitioner(2)
        )


def lookups(ev, ids, weights, kind):
    """{name: pooled values}."""
    made = {
        "sparse": tf.nn.embedding_lookup_sparse(ev, ids, weights, combiner="mean"),
        "safe": tf.nn.safe_embedding_lookup_sparse(ev, ids, weights, combiner="mean"),
        "safe with default_id": tf.nn.safe_embedding_lookup_sparse(
            ev, ids, weights, combiner="sqrtn", default_id=3, max_norm=1.0
        ),
    }
    if kind != "multihash":
        group = lambda **kwargs: nn.group_embedding_lookup_sparse(
            [ev], [ids], ["mean"], [weights], **kwargs
        )[0]
        made.update({"group": group(), "group sequence": group(is_sequence=True)})
    return made


def cases(kind):
    """(name, fetch, feeds) of one graph."""
    ev = variable(kind)
    train = v1.train.GradientDescentOptimizer(0.1)
    # rank: of the dense shape, where the graph knows it. Each two of rank, weights and training meet.
    for rank, weighted, trained in (
        (2, False, False),
        (2, True, True),
        (None, False, True),
        (None, True, False),
    ):
        fed = tf.SparseTensor(
            v1.placeholder(tf.int64),
            v1.placeholder(tf.int64, [None]),
            v1.placeholder(tf.int64, rank and [rank]),
        )
        ones = tf.SparseTensor(
            fed.indices, v1.placeholder_with_default(tf.ones([1]), [None]), fed.dense_shape
        )
        for name, out in lookups(ev, fed, ones if weighted else None, kind).items():
            fetch = train.minimize(tf.reduce_sum(out)) if trained else out
            for case in SPARSE:
                feeds = {
                    t: np.asarray(value, np.int64)
                    for t, value in zip((fed.indices, fed.values, fed.dense_shape), case)
                }
                yield f"{name}, {rank=}, {weighted=}, {trained=}: {case}", fetch, feeds
    if kind != "multihash":
        cube = tf.SparseTensor(
            v1.placeholder(tf.int64), v1.placeholder(tf.int64), v1.placeholder(tf.int64, [3])
        )
        for default_id in (None, 3):
            out = tf.nn.safe_embedding_lookup_sparse(ev, cube, default_id=default_id)
            for case in CUBES:
                yield (
                    f"cube {default_id}: {case}",
                    out,
                    {
                        t: np.asarray(value, np.int64)
                        for t, value in zip((cube.indices, cube.values, cube.dense_shape), case)
                    },
                )
    splits = v1.placeholder(tf.int64, [None])
    ragged = tf.RaggedTensor.from_row_splits(tf.constant([1, 2], tf.int64), splits, validate=False)
    for name, out in lookups(ev, ragged, None, kind).items():
        for case in SPLITS:
            yield f"ragged {name}: {case}", out, {splits: np.asarray(case, np.int64)}


def main(kind):
    with tf.Graph().as_default():
        todo = list(cases(kind))
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v1.global_variables_initializer())
            for name, fetch, feeds in todo:
                print(name, end=" -> ", flush=True)
                try:
                    session.run(fetch, feeds)
                    print("values", flush=True)
                except (
                    tf.errors.OpError,
                    ValueError,
                ) as error:  # ValueError: a feed of a shape that the graph knows to be wrong
                    print(type(error).__name__, flush=True)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
