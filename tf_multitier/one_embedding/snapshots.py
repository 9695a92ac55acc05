"""Snapshots of an embedding, as checkpoints in folders of its rank.

    <folder of the rank>/snapshots/
      <name>/rows.index, rows.data-...     a checkpoint with one table, "rows"
      .<anything>/new/                     of a save, load or deletion that runs: working_folders.py

The rename of `new` makes a snapshot whole or absent.
"""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier import object_checkpoint
from tf_multitier import saver
from tf_multitier.working_folders import sync
from tf_multitier.working_folders import working_folder

TABLE = "rows"
STORAGE_DIM = "storage_dim"  # a tensor that a table writer adds


def prefix_of(folder: str) -> str:
    """The prefix of the checkpoint in the folder of a snapshot."""
    return os.path.join(folder, TABLE)


def folder_of(rank_folder: str, name: typing.Any) -> str:
    """The folder of a snapshot. TypeError, ValueError: `name` cannot be that of a folder."""
    if not isinstance(name, str):
        raise TypeError(f"snapshot_name: expected text, found {name!r}")
    if not name or name[0] == "." or set(name) & set("/\0*?[\\"):
        raise ValueError(
            f"snapshot_name: expected a name of a folder without '/', '*', '?', '[' and '\\', and no '.' in front; found {name!r}"
        )
    return os.path.join(rank_folder, "snapshots", name)


def names_in(rank_folder: str) -> list[str]:
    """The names of the snapshots of a rank, sorted."""
    folder = os.path.join(rank_folder, "snapshots")
    if not os.path.isdir(folder):
        return []
    return sorted(name for name in os.listdir(folder) if name[0] != ".")


def existing(rank_folder: str, name: typing.Any) -> str:
    """The folder of a snapshot. FileNotFoundError: there is none; the message lists those there are."""
    folder = folder_of(rank_folder, name)
    if not os.path.isdir(folder):
        found = ", ".join(names_in(rank_folder)) or "none"
        raise FileNotFoundError(
            f"snapshot '{name}' in {rank_folder}: expected one of those there are, {found}"
        )
    return folder


def _check_new(folder):
    if os.path.lexists(folder):
        raise FileExistsError(
            f"snapshot '{folder}' exists: choose another name, or call delete_snapshot first"
        )


def temporary_folder(rank_folder: str) -> contextlib.AbstractContextManager[str]:
    """A working folder next to the snapshots."""
    return working_folder(os.path.join(rank_folder, "snapshots"))


@contextlib.contextmanager
def new_snapshot(rank_folder: str, name: typing.Any) -> Iterator[str]:
    """Gives the prefix of a checkpoint to write. At the end it is the snapshot `name`; after an error there is none.

    Raises:
      FileExistsError: there is one of that name.
      TypeError, ValueError: a bad name.
    """
    folder = folder_of(rank_folder, name)
    _check_new(folder)
    with temporary_folder(rank_folder) as made:
        yield prefix_of(made)
        for file in os.listdir(made):
            sync(os.path.join(made, file))
        sync(made)
        _check_new(folder)
        os.rename(made, folder)
        sync(os.path.dirname(folder))


def saved_table(folder: str) -> typing.Any:
    """The SavedTable of a snapshot."""
    return checkpoint.load(prefix_of(folder)).tables[TABLE]


class Snapshots:
    """The snapshots of one embedding.

    Args:
      where: starts messages.
      rank_folder: the folder of the rank.
      embedding_dim: elements of a value.
    """

    def __init__(self, where: str, rank_folder: str, embedding_dim: int) -> None:
        self._where, self._rank_folder, self._dim = where, rank_folder, embedding_dim

    def names(self) -> list[str]:
        """The names of the snapshots, sorted."""
        return names_in(self._rank_folder)

    def save(self, variable: typing.Any, name: str) -> None:
        """Saves a variable."""
        self._check_eager(variable, "save_snapshot")
        with new_snapshot(self._rank_folder, name) as prefix:
            object_checkpoint.save({TABLE: variable}, tf.constant(prefix))

    def load(self, variable: typing.Any, name: str) -> None:
        """Replaces the rows of a variable."""
        self._check_eager(variable, "load_snapshot")
        folder = existing(self._rank_folder, name)
        saved = checkpoint.load(prefix_of(folder))
        if STORAGE_DIM not in saved.tensors:
            _restore(variable, prefix_of(folder))
            return
        found = saved.tables[TABLE]
        with (
            saver.convert_on_restore()
        ):  # a table writer knows the type of rows, not that of values
            if found.dim == self._dim:
                _restore(variable, prefix_of(folder))
                return
            columns = self._columns(variable, name, found)
            with temporary_folder(self._rank_folder) as made:
                with (
                    checkpoint.Writer(prefix_of(made), latest=False) as writer,
                    writer.open_table(TABLE, columns, found.key_dtype, repeats="unchecked") as add,
                ):
                    for block in found.blocks():
                        block.columns = columns
                        add(block)
                _restore(variable, prefix_of(made))

    def _columns(self, variable, name, found):
        """(name, dim, initial value) of the value and the states of a variable, which are what the table writer wrote as one."""
        slots = variable.parts[0]._slot_values.items()
        columns = [("value", self._dim, 0.0)]
        columns += [(slot, dim, initial) for slot, (dim, initial) in slots]
        width = sum(dim for _, dim, _ in columns)
        if found.dim == width:
            return columns
        states = (
            f"or {width} with the states of its optimizer"
            if slots
            else "as no optimizer with states has trained or built it"
        )
        raise ValueError(
            f"{self._where}: snapshot '{name}', which a table writer wrote: storage_dim: expected {self._dim}, {states}; found "
            f"{found.dim}: call `build` of the optimizer that has these states first"
        )

    def delete(self, name: str) -> None:
        """Deletes a snapshot."""
        folder = existing(self._rank_folder, name)
        with temporary_folder(self._rank_folder) as made:
            os.rename(folder, os.path.join(made, "deleted"))

    def _check_eager(self, variable, what):
        if variable._in_graph_mode or not tf.executing_eagerly():
            raise RuntimeError(
                f"{self._where}: {what}: expected eager execution, found a graph: save graphs by tf.compat.v1.train.Saver, and call "
                f"{what} outside of tf.functions"
            )


def _restore(variable, prefix):
    parts = [(TABLE, part) for part in variable.parts]
    object_checkpoint.Reads(parts, tf.constant(prefix)).replace()
