"""The number of steps that each rank of a world has trained in a v1 graph.

Rank 0 saves the parts of all ranks. It has ended its step then, and the others begin none without it. But one may still update its part.
So each rank counts the steps it has ended, in a variable in its process, and a save waits for those of the others.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.processes import world as worlds


def _handle(world, rank, name="steps"):
    number = world.number_of_graph(worlds.outermost_graph())
    with tf.device(world.devices[rank]):
        shared_name = f"tf_multitier/{name}_of_graph_{number}"
        return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=shared_name)


def steps(world: worlds.World, rank: int) -> tf.Tensor:
    """The number of steps that a rank has ended: an int64 scalar."""
    handle = _handle(world, rank)
    with tf.device(world.devices[rank]):
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
            lambda: tf.constant(0, tf.int64),
        )


def counted(world: worlds.World, train: tf.Operation) -> tf.Operation:
    """An op that runs `train`, the updates of an optimizer, and counts it as a step of this rank."""
    with tf.init_scope():
        begin = graph_state.shared(("steps", world.rank), lambda: _begin(world))
    with tf.control_dependencies([train, begin]), tf.device(world.device):
        one = tf.constant(1, tf.int64)
        done = tf.raw_ops.AssignAddVariableOp(resource=_handle(world, world.rank), value=one)
    train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    if train in train_ops:
        train_ops[train_ops.index(train)] = done
    return done


def _begin(world):
    """An op that gives the number of steps its first value. All counts of a graph share it: a step may have several optimizers."""
    handle = _handle(world, world.rank)
    return _unless_done(handle, lambda: tf.no_op())


def _unless_done(handle, act):
    """An op that calls `act`, and then initializes a variable, unless that is done."""

    def run():
        with tf.control_dependencies([act()]):
            zero = tf.constant(0, tf.int64)
            with tf.control_dependencies(
                [tf.raw_ops.AssignVariableOp(resource=handle, value=zero)]
            ):
                return tf.constant(True)

    with tf.device(handle.device):
        is_done = tf.raw_ops.VarIsInitializedOp(resource=handle)
        return tf.cond(is_done, lambda: tf.constant(True), run).op


def once(world: worlds.World, number: int, act: typing.Any) -> tf.Operation:
    """An op that runs what `act` makes, until that has succeeded once. number: its own one in the graph."""
    return _unless_done(_handle(world, world.rank, f"done_{number}"), act)


def ended(world: worlds.World, rank: int) -> tf.Operation:
    """An op of rank 0 that waits until another rank has ended as many steps."""
    mine = steps(world, 0)
    with tf.device(world.devices[rank]):
        begin = tf.timestamp()

        def waits(theirs: typing.Any) -> tf.Tensor:
            return tf.logical_and(theirs < mine, tf.timestamp() - begin < world.timeout)

        theirs = tf.while_loop(waits, lambda unused: [steps(world, rank)], [steps(world, rank)])
        message = f"a save: rank {rank} has not ended its step within {world.timeout:g} s"
        return tf.debugging.Assert(theirs >= mine, [message, theirs, mine])
