"""Reads checkpoints of DeepRec (TensorFlow 1.15), so that a model moves over with its rows.

DeepRec writes each embedding variable, and each slot of it, as tensors: `<name>-keys`, `-values`, `-freqs`, `-versions`, and for keys
that a filter has not admitted `-keys_filtered`, `-freqs_filtered`, `-versions_filtered`. The name of a partition has `/part_<i>` in
it; the name of a slot is that of its variable and the slot's. A slot has rows of its own, in an order of its own.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tf_multitier._engine import DataLossError
from tf_multitier.checkpoint.bundle import Bundle
from tf_multitier.checkpoint.saved import find_prefix
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.engine.rows import Rows

_SUFFIXES = re.compile(
    r"(.+)-(keys|values|freqs|versions|keys_filtered|freqs_filtered|versions_filtered"
    r"|partition_offset|partition_filter_offset)"
)
_PART = re.compile(r"/part_(\d+)(?=/|$)")

# What a row's slot begins with: by the names that optimizers give to their slots, with TensorFlow's and DeepRec's defaults.
_INITIAL_VALUES = {
    "Adadelta": 0.0,
    "Adadelta_1": 0.0,
    "Adagrad": 0.1,
    "AdagradDecay": 0.1,
    "AdagradDecay_1": 0.0,
    "AdagradDecayV2": 0.1,
    "AdagradDecayV2_1": 0.0,
    "Adam": 0.0,
    "Adam_1": 0.0,
    "AdamAsync": 0.0,
    "AdamAsync_1": 0.0,
    "AdamW": 0.0,
    "AdamW_1": 0.0,
    "Ftrl": 0.1,
    "Ftrl_1": 0.0,
    "Momentum": 0.0,
    "RMSProp": 1.0,
    "RMSProp_1": 0.0,
}
_BLOCK_ROWS = 65536
_MAX_FREQUENCY = 2**32 - 1


@dataclasses.dataclass
class _Part:
    """One partition: the names, in the checkpoint, of the variable and of its slots."""

    value: str
    slots: list[str] = dataclasses.field(default_factory=list)


class DeepRecTable(RowSource):
    """An embedding variable of a DeepRec checkpoint. While a part is read, its tensors are in memory.

    Attributes:
      name: the variable's name, without the part.
      columns: list of (name, dim, initial value): the value first, then the slots.
      num_rows: number of admitted keys, in all parts.
    """

    def __init__(self, checkpoint, name, parts, slots):
        self.name = name
        self._checkpoint = checkpoint
        self._parts = parts
        width = checkpoint.shape(parts[0].value + "-values")
        self.columns = [("value", width[1], 0.0)]
        for slot, (initial_value, tensor) in slots.items():
            self.columns.append(
                (f"{name}/{slot}", checkpoint.shape(tensor + "-values")[1], initial_value)
            )
        self.num_rows = sum(checkpoint.shape(part.value + "-keys")[0] for part in parts)

    def blocks(self) -> Iterator[Rows]:
        """Yields the rows and the counted keys of all parts.

        Raises:
          DataLossError: tensors of one variable have different numbers of rows.
        """
        for part in self._parts:
            keys, frequencies, versions = self._three(part.value, "")
            values = [self._values(part.value, keys, self.dim)]
            values += [
                self._slot_values(slot, keys, column)
                for slot, column in zip(part.slots, self.columns[1:])
            ]
            for begin in range(0, len(keys), _BLOCK_ROWS):
                rows = slice(begin, begin + _BLOCK_ROWS)
                yield Rows(
                    self.columns,
                    keys[rows],
                    frequencies[rows],
                    versions[rows],
                    np.concatenate([v[rows] for v in values], axis=1),
                )
            counted = self._three(part.value, "_filtered")
            if len(counted[0]):
                empty = np.zeros(0, np.int64)
                width = sum(dim for _, dim, _ in self.columns)
                yield Rows(
                    self.columns, empty, empty, empty, np.zeros((0, width), np.float32), *counted
                )

    def _three(self, name, kind):
        """Keys, frequencies and versions."""
        has = self._checkpoint.has
        keys = self._get(f"{name}-keys{kind}") if has(f"{name}-keys{kind}") else np.zeros(0)
        found = [keys.astype(np.int64)]
        for word, absent in (("freqs", 0), ("versions", -1)):
            tensor = f"{name}-{word}{kind}"
            array = self._get(tensor) if has(tensor) else np.zeros(0)
            # DeepRec writes one meaningless element where a variable counts nothing.
            if len(array) != len(keys) and len(array) > 1:
                raise DataLossError(
                    f"checkpoint '{self._checkpoint.path}': expected {len(keys)} elements in '{tensor}', found {len(array)}"
                )
            found.append(
                array.astype(np.int64) if len(array) == len(keys) else np.full(len(keys), absent)
            )
        found[1] = np.clip(found[1], 0, _MAX_FREQUENCY)
        return found

    def _values(self, name, keys, dim):
        values = self._get(f"{name}-values").astype(np.float32)
        if values.shape != (len(keys), dim):
            raise DataLossError(
                f"checkpoint '{self._checkpoint.path}': expected shape {[len(keys), dim]} of '{name}-values', found {list(values.shape)}"
            )
        return values

    def _slot_values(self, name, keys, column):
        """The slot's rows in the order of `keys`. A key without one has the slot's initial value."""
        own = self._get(f"{name}-keys").astype(np.int64)
        values = self._values(name, own, column[1])
        if np.array_equal(own, keys):
            return values
        out = np.full((len(keys), column[1]), column[2], np.float32)
        order = np.argsort(own)
        at = np.searchsorted(own, keys, sorter=order)
        at[at == len(own)] = 0
        found = own[order[at]] == keys if len(own) else np.zeros(len(keys), bool)
        out[found] = values[order[at[found]]]
        return out

    def _get(self, tensor):
        return self._checkpoint.tensor(tensor)


class DeepRecCheckpoint:
    """What a checkpoint of DeepRec has.

    Attributes:
      path: the checkpoint's prefix.
      tables: {name: DeepRecTable}, the embedding variables.
      tensors: {name: (tf.DType, shape as a list)}, all dense tensors.
    """

    def __init__(self, path: str, initial_values: Mapping[str, float | None]) -> None:
        self.path = path
        self._bundle = Bundle(path)
        self._shapes, dtypes = self._bundle.shapes, self._bundle.dtypes
        self.tables = self._find_tables({**_INITIAL_VALUES, **initial_values})
        self.tensors = {
            name: (dtypes[name], list(self._shapes[name]))
            for name in sorted(self._shapes)
            if not self._is_of_table(name)
        }

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return name in self._shapes

    def shape(self, name: str) -> list:
        """The shape of a tensor. DataLossError if there is none."""
        if name not in self._shapes:
            raise DataLossError(f"checkpoint '{self.path}': expected tensor '{name}', found none")
        return list(self._shapes[name])

    def tensor(self, name: str) -> np.ndarray:
        """The value of a tensor."""
        return self._bundle.tensor(name)

    def damage(self) -> list[str]:
        """Reads all tensors, one at a time, but no part files. What is damaged."""
        return self._bundle.damage()

    def _is_of_table(self, name):
        match = _SUFFIXES.fullmatch(name)
        return bool(match) and self._has_rows(match[1])

    def _has_rows(self, name):
        """Whether there are the keys and values of an embedding variable or slot: not a lookup table, nor two dense variables."""
        keys, values = f"{name}-keys", f"{name}-values"
        if keys not in self._shapes or self._bundle.dtypes[keys] not in (tf.int32, tf.int64):
            return False
        if values not in self._shapes:
            if f"{name}-freqs" in self._shapes or f"{name}-versions" in self._shapes:
                self.shape(values)
            return False
        width = self._shapes[values]
        floating = self._bundle.dtypes[values].is_floating
        return len(self._shapes[keys]) == 1 and len(width) == 2 and width[1] > 0 and floating

    def _find_tables(self, initial_values):
        # {name without part: {part: name in the checkpoint}}
        found: dict[str, dict[int, str]] = {}
        for tensor in self._shapes:
            name = tensor.removesuffix("-keys")
            if name == tensor or not self._has_rows(name):
                continue
            part = _PART.search(name)
            found.setdefault(_PART.sub("", name), {})[int(part[1]) if part else 0] = name
        slots: dict[str, dict] = {}
        for name in sorted(found):
            owner, _, slot = name.rpartition("/")
            if owner not in found:
                continue
            if slot not in initial_values:
                self._refuse_unknown(name, owner, slot, found)
            elif initial_values[slot] is not None:
                slots.setdefault(owner, {})[slot] = initial_values[slot]
        own = {f"{owner}/{slot}" for owner in slots for slot in slots[owner]}
        return {
            name: self._table(name, found, slots.get(name, {}))
            for name in sorted(found)
            if name not in own
        }

    def _refuse_unknown(self, name, owner, slot, found):
        """A table below another one, with the same keys, is a slot of an optimizer with another name."""
        keys, own = (np.sort(self.tensor(found[n][min(found[n])] + "-keys")) for n in (owner, name))
        if not np.array_equal(keys, own) or not len(keys):
            return
        raise ValueError(
            f"checkpoint '{self.path}': '{name}' has the keys of '{owner}': expected initial_values[{slot!r}], what a new row's slot "
            "begins with, or None if it is a variable of its own"
        )

    def _table(self, name, found, slots):
        parts = []
        absent = [part for part in range(max(found[name])) if part not in found[name]]
        if absent:
            raise DataLossError(
                f"checkpoint '{self.path}', variable '{name}': expected parts 0 to {max(found[name])}, found no part {absent[0]}"
            )
        for part in sorted(found[name]):
            absent = [slot for slot in slots if part not in found[f"{name}/{slot}"]]
            if absent:
                raise DataLossError(
                    f"checkpoint '{self.path}': part {part} of '{name}' lacks slot '{absent[0]}'"
                )
            parts.append(
                _Part(found[name][part], [found[f"{name}/{slot}"][part] for slot in slots])
            )
        first = min(found[name])
        of_slots = {slot: (slots[slot], found[f"{name}/{slot}"][first]) for slot in slots}
        return DeepRecTable(self, name, parts, of_slots)


def load_deeprec(
    path: str | os.PathLike, initial_values: Mapping[str, float | None] | None = None
) -> DeepRecCheckpoint:
    """Reads what a checkpoint of DeepRec has. Rows are read later, by the tables' methods.

    Args:
      path: a checkpoint's prefix, a directory with a `checkpoint` file (its newest checkpoint), or a SavedModel's directory.
      initial_values: {name of a slot, such as "Adagrad": what a new row's slot begins with}, for optimizers with other names or
        values than TensorFlow's and DeepRec's defaults. None: the name is not a slot, but a variable of its own.

    Returns:
      A DeepRecCheckpoint.

    Raises:
      FileNotFoundError: there is no checkpoint.
      ValueError: a slot's initial value is not known.
      NotImplementedError: rows are in side files of DeepRec's SSDHASH storage.
      DataLossError: a tensor is missing.
    """
    prefix = find_prefix(path)
    side_files = sorted(glob.glob(glob.escape(prefix) + "-*-ssd_record*"))
    if side_files:
        raise NotImplementedError(
            f"checkpoint '{prefix}': rows of DeepRec's SSDHASH storage in '{side_files[0]}' cannot be read: save it with DeepRec from a "
            "variable with DRAM storage"
        )
    return DeepRecCheckpoint(prefix, dict(initial_values or {}))
