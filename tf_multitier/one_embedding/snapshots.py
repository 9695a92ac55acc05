"""Snapshots of an embedding, as checkpoints in folders of its rank.

    <folder of the rank>/snapshots/
      <name>/rows.index, rows.data-...     a checkpoint with one table, "rows": those of the rank
      .tf_multitier-<hex>/new/             of a save, load or deletion that runs: working_folders.py

The rename of `new` makes a snapshot whole or absent. A load takes those of all ranks, or none.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import typing
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier import _engine
from tf_multitier import checkpoint
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.working_folders import sync
from tf_multitier._src.variable.working_folders import working_folder
from tf_multitier.distribute import saving
from tf_multitier.engine.rows import Rows

TABLE = "rows"
STORAGE_DIM = "storage_dim"  # a tensor that a table writer adds
PLACE = "rank_and_world_size"  # an int64 tensor [2]: whose rows a snapshot has


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


def _written(folder):
    """The files that a save wrote. One with a second name was linked, and the engine has synced it: each sync waits for the disk."""
    return [file.path for file in os.scandir(folder) if file.stat().st_nlink == 1]


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
        for file in _written(made):
            sync(file)
        sync(made)
        _check_new(folder)
        os.rename(made, folder)
        sync(os.path.dirname(folder))


def check_place(what: str, folder: str, place: tuple) -> None:
    """ValueError unless the snapshot in a folder has the rows of a rank of a world. what: begins the message."""
    rank, size = (int(number) for number in checkpoint.load(prefix_of(folder)).tensor(PLACE))
    if (rank, size) != place:
        raise ValueError(
            f"{what}: expected the rows of rank {place[0]} of a world of {place[1]} in '{folder}', found those of rank {rank} of a world "
            f"of {size}: give make_persistent_table_reader the folders of all its ranks, and make_persistent_table_writer those of "
            "another world"
        )


def owners_of(keys: np.ndarray, size: int) -> np.ndarray:
    """int32 [n]: the ranks that have the rows of keys."""
    bits = keys.astype(np.uint64) if keys.dtype.kind == "u" else keys.astype(np.int64, copy=False)
    return _engine.partitions_of(bits.view(np.int64), size)


def saved_table(folder: str) -> typing.Any:
    """The SavedTable of a snapshot."""
    return checkpoint.load(prefix_of(folder)).tables[TABLE]


class Snapshots:
    """The snapshots of one embedding.

    Args:
      where: starts messages.
      store: a stores.Store: its folders.
      embedding_dim: elements of a value.
      place: (rank, size of the world).
    """

    def __init__(self, where: str, store: typing.Any, embedding_dim: int, place: tuple) -> None:
        self._where, self._dim, self._place = where, embedding_dim, place
        self._rank_folder, self._root = store.folder, store.root

    def names(self) -> list[str]:
        """The names of the snapshots, sorted."""
        return names_in(self._rank_folder)

    def save(self, variable: typing.Any, name: str) -> None:
        """Saves a variable."""
        self._check_eager(variable, "save_snapshot")
        world, what = variable.world, f"{self._where}: save_snapshot '{name}'"
        with saving.all_or_none(world, what):
            _check_new(folder_of(self._rank_folder, name))
        with saving.all_or_none(world, what):
            first = name if world is None else world.text_of_first(name)
            if first != name:
                raise ValueError(f"{what}: expected '{first}', the name in rank 0, found another")
        with new_snapshot(self._rank_folder, name) as prefix:
            object_checkpoint.save_own({TABLE: variable}, prefix, {PLACE: np.array(self._place)})

    def load(self, variable: typing.Any, name: str) -> None:
        """Replaces the rows of a variable."""
        self._check_eager(variable, "load_snapshot")
        world, what = variable.world, f"{self._where}: load_snapshot '{name}'"
        with temporary_folder(self._rank_folder) as made:
            with saving.all_or_none(world, what):
                folders = self._folders(what, name)
            with saving.all_or_none(world, what):
                first = len(folders) if world is None else world.bits_of_first(len(folders))
                if first != len(folders):
                    raise ValueError(
                        f"{what}: expected {first} folders, as in rank 0, found {len(folders)}: let all ranks see the same folders"
                    )
                reads = self._reads(variable, name, folders, prefix_of(made))
            reads.replace()

    def _folders(self, what, name):
        """The folders with the rows of a snapshot: that of this rank, or those of all ranks of a world of another size."""
        own = folder_of(self._rank_folder, name)
        if os.path.isdir(own):
            check_place(what, own, self._place)
            return [own]
        found = {} if self._root is None else _of_other_worlds(self._root, name)
        if len(found) > 1:
            raise ValueError(
                f"{what}: expected one of a world of {self._place[1]}, or of one other size, found it of worlds of {sorted(found)}"
            )
        return found.popitem()[1] if found else [existing(self._rank_folder, name)]

    def _reads(self, variable, name, folders, prefix):
        """The rows, read and checked. prefix: of a checkpoint to write where rows have another form."""
        saved = [checkpoint.load(prefix_of(folder)) for folder in folders]
        found = saved[0].tables[TABLE]
        is_of_writer = STORAGE_DIM in saved[0].tensors
        is_row = is_of_writer and found.dim != self._dim  # whose value has the states, too
        # A table writer knows the type of rows, not that of values.
        with saver.convert_on_restore() if is_of_writer else contextlib.nullcontext():
            if len(folders) == 1 and not is_row:
                return _reads(variable, prefix_of(folders[0]))
            columns = self._columns(variable, name, found) if is_row else found.columns
            with (
                checkpoint.Writer(prefix, latest=False) as writer,
                writer.open_table(
                    TABLE,
                    columns,
                    found.key_dtype,
                    "float32" if is_row else found.dtype,
                    applies=max(each.tables[TABLE].applies for each in saved),
                    repeats="unchecked",
                ) as add,
            ):
                for each in saved:
                    for block in each.tables[TABLE].blocks():
                        add(self._own(block, columns))
            return _reads(variable, prefix)

    def _own(self, block, columns):
        """The rows of this rank."""
        rank, size = self._place
        its = np.flatnonzero(owners_of(block.keys, size) == rank)
        facts = (block.keys, block.frequencies, block.versions, block.data)
        return Rows(columns, *(each[its] for each in facts), dtype=block.dtype)

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


def _of_other_worlds(root, name):
    """{size of a world: the folders of all its ranks} of the worlds below a path that have a snapshot of this name."""
    found: dict = {}
    for folder in glob.glob(os.path.join(glob.escape(root), "*-*", "snapshots", name)):
        place = os.path.basename(os.path.dirname(os.path.dirname(folder)))
        if match := re.fullmatch(r"(\d+)-(\d+)", place):
            found.setdefault(int(match[2]), {})[int(match[1])] = folder
    return {
        size: [its[rank] for rank in range(size)]
        for size, its in found.items()
        if sorted(its) == list(range(size))
    }


def _reads(variable, prefix):
    parts = [(TABLE, part) for part in variable.parts]
    return object_checkpoint.Reads(parts, tf.constant(prefix))
