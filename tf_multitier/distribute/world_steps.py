"""The number of steps that each rank of a world has trained in a v1 graph.

Rank 0 saves the parts of all ranks. It has ended its step then, and the others begin none without it. But one may still update its part.
So each rank counts the steps it has ended, in a variable in its process, and a save waits for those of the others.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier.distribute import world as worlds


def _handle(world, rank):
    number = world.number_of_graph(_outermost())
    with tf.device(world.devices[rank]):
        name = f"tf_multitier/steps_of_graph_{number}"
        return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)


def _outermost():
    with tf.init_scope():
        return tf.compat.v1.get_default_graph()


def steps(world: worlds.World, rank: int) -> tf.Tensor:
    """The number of steps that a rank has ended: an int64 scalar."""
    handle = _handle(world, rank)
    with tf.device(world.devices[rank]):
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
            lambda: tf.constant(0, tf.int64),
        )


def count(world: worlds.World) -> tf.Operation:
    """An op that says that this rank has ended a step."""
    now = steps(world, world.rank) + 1
    return tf.raw_ops.AssignVariableOp(resource=_handle(world, world.rank), value=now)


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
