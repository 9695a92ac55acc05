"""Moving averages of rows: `use_ema` of Keras' optimizers, and keras.callbacks.SwapEMAWeights.

    a step                   moves the averages of the rows that it trains: the rule "<rule>+ema" (cc/optimizer/ema_rule.h)
    SwapEMAWeights           exchanges value and average of each row, as of each dense weight
    ema_overwrite_frequency  value = average, as at the end of `fit` (finalize_variable_values)

A column of the rows has average - value. A change of all rows reads and writes them in pieces of a few megabytes. It leaves their
frequencies and versions as they are, and leaves out rows that equal their averages.
"""

from __future__ import annotations

import functools
import math
import typing

import tensorflow as tf

from tf_multitier.keras import keras_internals

_ELEMENTS = 1 << 20  # values of a piece


def follow(row_optimizer: typing.Any, optimizer: typing.Any) -> None:
    """Makes an optimizer of rows average them as an optimizer of Keras averages weights."""
    is_averaged = getattr(optimizer, "use_ema", False)
    row_optimizer.ema_momentum = optimizer.ema_momentum if is_averaged else None


def check(owner: str, table: typing.Any, optimizer: typing.Any) -> None:
    """Prepares an optimizer of Keras that averages weights for the rows of a table.

    Raises:
      NotImplementedError: there is ema_overwrite_frequency, and Keras' own optimizer, which then forgets it, trains rows alone.
    """
    name = type(optimizer).__name__
    is_forgotten = optimizer.ema_overwrite_frequency and not hasattr(optimizer, "row_optimizer")
    if is_forgotten and keras_internals.trains_rows_alone(optimizer):
        raise NotImplementedError(
            f"{owner}: ema_overwrite_frequency of {name}: expected a model with dense weights, found rows alone: compile the model with "
            f"tf_multitier.keras.with_rows(keras.optimizers.{name}(...))"
        )
    keras_internals.make_overwrite_take_rows(optimizer, _overwrite)


def overwrite_if_due(optimizer: typing.Any, variables: list) -> None:
    """Does what ema_overwrite_frequency says at the end of a step that trains rows alone. At the end of others Keras does it."""
    steps = optimizer.ema_overwrite_frequency if optimizer.use_ema else None
    if steps:
        overwrite = lambda: optimizer.finalize_variable_values(variables)
        tf.cond(tf.equal((optimizer.iterations + 1) % steps, 0), overwrite, lambda: None)


def _change(optimizer, weights, changed, done, most_pieces=math.inf):
    """Replaces (values, offsets) of all rows of some Rows by changed(values, offsets).

    done: a list. Eagerly, it gets an entry for each piece that is replaced. most_pieces: how many to replace.
    """
    for rows in weights:
        row_optimizer = rows.row_optimizer or optimizer.row_optimizer
        follow(row_optimizer, optimizer)
        table = rows.embedding_variable
        row_optimizer.build([table])
        names = ["value", row_optimizer.average_column(table)]
        most = max(1, _ELEMENTS // table.embedding_dim)

        def change_piece(cursor, unused_is_first, table=table, names=names, most=most):
            piece = table.scan(cursor, most, names)
            its = [piece.columns[name] for name in names]
            moved = tf.where(tf.reduce_any(tf.not_equal(its[1], 0), 1))[:, 0]
            values, offsets = changed(*(tf.gather(column, moved) for column in its))
            table.upsert(tf.gather(piece.keys, moved), values, slots={names[1]: offsets})
            done.append(True)
            return piece.next_cursor, False

        def is_left(cursor, is_first):
            is_more = tf.logical_or(is_first, tf.not_equal(cursor, 0))
            return tf.logical_and(is_more, len(done) < most_pieces)

        tf.while_loop(is_left, change_piece, (tf.constant(0, tf.int64), True))


def _float(values):
    return tf.cast(values, tf.float32)


def _to_averages(values, offsets):
    """(averages in the type of the values, what the averages lost by that)."""
    averages = _float(values) + offsets
    stored = tf.cast(averages, values.dtype)
    return stored, averages - _float(stored)


def _swapped(values, offsets):
    averages, _ = _to_averages(values, offsets)
    return averages, _float(values) - _float(averages)


def _swap(optimizer, weights):
    """Exchanges values and averages. If it fails, as on a full disk, it exchanges again what it has exchanged: nothing has changed.

    Raises:
      RuntimeError: that failed, too.
    """
    done: list = []
    try:
        _change(optimizer, weights, _swapped, done)
    except BaseException as error:
        try:
            _change(optimizer, weights, _swapped, [], len(done))
        except tf.errors.OpError as second:
            raise RuntimeError(
                f"SwapEMAWeights: expected to exchange all rows with their averages, found an error after some: {error}. They could not be "
                f"exchanged back: {second}. Restore the model from its last checkpoint"
            ) from error
        raise


def _overwrite(optimizer, weights):
    _change(optimizer, weights, _to_averages, [])


def _forget(optimizer, weights):
    """Makes the values the averages."""
    _change(optimizer, weights, lambda values, offsets: (values, tf.zeros_like(offsets)), [])


@functools.cache
def join_swaps() -> None:
    """Makes Keras' SwapEMAWeights exchange rows, too. For a program that averages rows: in others the class stays as it is."""
    keras_internals.wrap_swaps(_swap, _forget)
