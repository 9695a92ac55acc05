"""Questions about keys that processes of a world own, such as `get_frequency(ids)` and `remove(ids)`.

Each process sends its keys to their owners, which answer. All processes ask at the same time, each with keys of its own, or with none.
What training looks up goes through exchange.py, with one exchange for all tables.
"""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier._src.processes import world as worlds
from tf_multitier._src.tensorflow.library import ops


def no_world(variable, what, cure):
    """NotImplementedError if a variable is divided among processes. what: cannot be done then. cure: what to do in its place."""
    if variable.world is not None:
        raise NotImplementedError(
            f"embedding variable '{variable.variable_name}': {what}: expected a variable of one process, found one that is divided among "
            f"the processes of a CollectiveStrategy: {cure}"
        )


def no_save_alone(name: str, world: typing.Any) -> None:
    """NotImplementedError if the variable of this name is divided among the processes of a world: one of them saves its part alone."""
    if world is not None:
        raise NotImplementedError(
            f"embedding variable '{name}' is divided among processes: expected a save by all of them, found one of this process: save by "
            "tf_multitier.distribute.CheckpointManager or strategy.checkpoints(directory, every)"
        )


class _Question:
    """Keys that are with their owners, which answer with `width` numbers a key. tables: no or one tensor [n] of their table numbers."""

    def __init__(self, variable, keys, answer, tables=(), width=1):
        self._width = width
        world = self._world = variable.world
        self._exchange = world.new_exchange()
        self.positions, mine = ops.multitier_partition_keys(keys, num_partitions=world.size)
        self._numbers = [tf.size(its) for its in mine]
        requests = [
            tf.concat([[tf.cast(number, tf.int64)], its, *(tf.gather(t, at) for t in tables)], 0)
            for number, its, at in zip(self._numbers, mine, self.positions)
        ]
        # The function's name tells one question from another.
        what = f"'{variable.variable_name}' by {answer.__qualname__.removesuffix('.<locals>.<lambda>')}"
        words = [tf.size(request, tf.int64) for request in requests]
        elements = [each * width for each in words]
        self._largest, _ = world.agreed(words, elements, what, what, self._exchange)
        found = world.swap(requests, self._largest, worlds.REQUESTS, self._exchange)
        # Of each process: its keys, and their tables.
        self.asked = [
            [request[1 + i * request[0] : 1 + (i + 1) * request[0]] for i in range(1 + len(tables))]
            for request in found
        ]

    def answered(self, answers):
        """What the owners of this process' keys answer, with padding. answers: 1-D, for each process at most `width` a key and one."""
        largest = self._largest * self._width
        return self._world.swap(answers, largest, worlds.ANSWERS, self._exchange)

    def of_keys(self, answers):
        """[keys of it, width] of each owner. answers: [keys asked, width] for each process."""
        found = self.answered([tf.reshape(answer, [-1]) for answer in answers])
        width = self._width
        return [
            tf.reshape(each[: number * width], [-1, width])
            for each, number in zip(found, self._numbers)
        ]


def ask(
    variable: typing.Any,
    keys: tf.Tensor,
    read: collections.abc.Callable,
    tail_shape: tuple = (),
    tables: typing.Any = (),
) -> tf.Tensor:
    """What the owners of keys answer: keys.shape + tail_shape.

    Args:
      variable: a variable of a world.
      keys: int64 of any shape.
      read: function of a part and int64 keys [n]: int32, int64 or float32 [n] + tail_shape.
      tail_shape: the static shape of an answer, of rank 0 or 1.
      tables: no or one tensor shaped as `keys`. read gets its elements after those of the keys.
    """
    tables = [_in_range(variable, tf.reshape(each, [-1])) for each in tables]
    width = tail_shape[0] if tail_shape else 1
    question = _Question(variable, tf.reshape(keys, [-1]), read, tables, width)
    (part,) = variable.parts
    answers = [read(part, *asked) for asked in question.asked]
    its_type = answers[0].dtype
    if its_type == tf.int32:
        answers = [tf.cast(answer, tf.int64) for answer in answers]
    merged = stitched(question.positions, question.of_keys(answers), keys, tail_shape)
    return tf.cast(merged, its_type)


def _in_range(variable, tables):
    """Table numbers, checked before they are sent: an error of their owner would let the other ranks wait."""
    most = variable.num_tables - 1
    message = f"embedding variable '{variable.variable_name}': tables: expected 0 to {most}, found"
    is_known = tf.reduce_all((tables >= 0) & (tables <= most))
    check = tf.debugging.Assert(is_known, [message, tables])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(tables)


def stitched(positions: list, answers: list, keys: tf.Tensor, tail_shape: tuple) -> tf.Tensor:
    """Answers for the keys at each list of positions, in the order of `keys`: keys.shape + tail_shape."""
    merged = tf.dynamic_stitch(positions, answers)
    merged = tf.reshape(
        merged, tf.concat([tf.shape(keys), tf.constant(tail_shape, tf.int32, [len(tail_shape)])], 0)
    )
    merged.set_shape(keys.shape.concatenate(tail_shape))
    return merged


def sum_of(variable: typing.Any, keys: tf.Tensor, act: collections.abc.Callable) -> tf.Tensor:
    """The sum of what the owners of keys answer for all of them: an int64 scalar.

    Args:
      variable: a variable of a world.
      keys: int64 [n].
      act: function of a part and int64 keys: an int64 scalar. It is called for each process, in order of rank.
    """
    question = _Question(variable, keys, act)
    (part,) = variable.parts
    answers: list = []
    for asked in question.asked:
        with tf.control_dependencies(answers[-1:]):
            answers.append(act(part, *asked))
    found = question.answered([tf.reshape(answer, [1]) for answer in answers])
    return tf.add_n([each[0] for each in found])
