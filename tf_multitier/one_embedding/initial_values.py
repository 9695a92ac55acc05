"""The initializers of tables as an embedding variable takes them."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.options.initializers import TruncatedNormal


def _of(initializer, seed):
    kind = initializer["type"]
    if kind == "uniform":
        return tf.random_uniform_initializer(initializer["low"], initializer["high"], seed)
    if kind == "normal":
        return tf.random_normal_initializer(initializer["mean"], initializer["std"], seed)
    if kind == "constant":
        return tf.constant_initializer(initializer["value"])
    return TruncatedNormal(
        initializer["mean"], initializer["std"], initializer["a"], initializer["b"], seed
    )


def of_tables(initializers: list[list], dims: list[int], seed: int) -> typing.Any:
    """The `initializer` of the variable: for several tables a list with an entry for each; columns are [(first element, initializer)].

    Args:
      initializers: for each table, the checked initializers of its columns.
      dims: elements of each column.
      seed: of all.
    """
    first = [sum(dims[:i]) for i in range(len(dims))]
    of_table = []
    for columns in initializers:
        if all(column == columns[0] for column in columns):
            of_table.append(_of(columns[0], seed))
        else:
            of_table.append([(at, _of(column, seed)) for at, column in zip(first, columns)])
    return of_table[0] if len(of_table) == 1 and not isinstance(of_table[0], list) else of_table
