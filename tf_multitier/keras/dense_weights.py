"""Weights of keras.layers.Embedding as rows of ours: row i of the matrix becomes the row of key i."""

from __future__ import annotations

import os
import tempfile
import time
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier._src.options import key_types
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saver
from tf_multitier.engine.rows import Rows
from tf_multitier.keras import loads

_NAME = "rows"  # of the table in the checkpoint
_BLOCK_ROWS = 65_536


def replace(parts: list, matrix: typing.Any, where: str) -> None:
    """Replaces the rows of a table by those of a matrix, at the end of the load that runs (loads.py). Slots begin anew. The rows get
    the newest version of the table: none expires because of the load.

    Args:
      parts: all EmbeddingVariables of the table.
      matrix: [rows, dim], an array or a dataset of HDF5. It is read in blocks.
      where: starts messages.

    Raises:
      ValueError: the matrix has another shape.
    """
    dim = parts[0].embedding_dim
    if len(matrix.shape) != 2 or matrix.shape[1] != dim:
        raise ValueError(
            f"{where}: expected a matrix of weights of shape [rows, {dim}], found {list(matrix.shape)}: make the layer with that "
            "output_dim"
        )
    key_dtype, columns = key_types.name_in_files(parts[0]), [("value", dim, 0.0)]
    version = _newest_version(parts)
    with loads.together() as load:
        folder = load.files.enter_context(tempfile.TemporaryDirectory())
        prefix = os.path.join(folder, _NAME)
        with (
            checkpoint.Writer(prefix, latest=False) as writer,
            writer.open_table(_NAME, columns, key_dtype, repeats="unchecked") as add,
        ):
            for begin in range(0, matrix.shape[0], _BLOCK_ROWS):
                values = np.asarray(matrix[begin : begin + _BLOCK_ROWS], np.float32)
                keys = np.arange(begin, begin + len(values), dtype=key_dtype)
                zeros = np.zeros(len(values), np.int64)
                add(Rows(columns, keys, zeros, zeros + version, values))
        with saver.convert_on_restore():  # to values of 16 bits, from float32
            reads = object_checkpoint.Reads([(_NAME, part) for part in parts], tf.constant(prefix))
        load.changes.append(reads.replace)


def _newest_version(parts):
    """Of the rows of a table, or the time in microseconds if versions are times."""
    if parts[0].score == "time":
        return time.time_ns() // 1000
    pieces = (piece for part in parts for piece in part.rows(columns=[]))
    return max([0, *(int(piece.versions.max()) for piece in pieces)])
