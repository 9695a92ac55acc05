"""RowsCopy: the rows of one table as they were, for `get_weights` and `set_weights` of Keras' models.

Keras' EarlyStopping(restore_best_weights=True) keeps the weights of the best epoch this way.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options import key_types
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saver
from tf_multitier.keras import loads
from tf_multitier.keras.optimizer_states import OptimizerState

_NAME = "rows"  # of the variable in the checkpoint of a copy


class Layout(typing.NamedTuple):
    """What two tables share if one can have the rows of the other."""

    name: str
    part: tuple  # (partition, partitions, dim)
    keys: str
    values: str

    @classmethod
    def of(cls, table: typing.Any) -> Layout:
        """The layout of an embedding variable that is not partitioned, or of a part."""
        part = (table.partition_index, table.num_partitions, table.embedding_dim)
        return cls(table.name, part, key_types.name_in_files(table), table.dtype.name)

    def check(self, found: Layout, what: str) -> None:
        """ValueError if a table of this layout cannot have the rows of one with the layout `found`. what: starts the message."""
        if found.part != self.part:
            raise ValueError(
                f"{what}: expected (partition, partitions, dim) {self.part}, found {found.part} of '{found.name}'"
            )
        if found.keys != self.keys:
            raise ValueError(
                f"{what}: expected keys of {self.keys}, found {found.keys} of '{found.name}': give both layers one key_dtype"
            )
        if found.values != self.values and not saver.is_converting():
            raise ValueError(
                f"{what}: expected values of {self.values}, found {found.values} of '{found.name}': replace them in "
                "`with tf_multitier.train.convert_on_restore():`"
            )


class TableShape(tf.TensorShape):
    """[rows, dim] of a table now. Equal to each shape with this dim: `set_weights` replaces all rows, however many there are."""

    def __eq__(self, other: object) -> bool:
        found = tf.TensorShape(other)
        return found.rank == 2 and found[1] == self[1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tf.TensorShape.__hash__


def _no_values(self, *unused_args: typing.Any, **unused_kwargs: typing.Any) -> typing.NoReturn:
    """NotImplementedError: a copy has no array."""
    raise NotImplementedError(self._what_it_is())


class RowsCopy:
    """The rows of one table in a file, and the state of their optimizer. It is no array: it only says its shape [rows, dim] and dtype.

    The file is a checkpoint of the table in a temporary folder: slots, frequencies, versions and counts of filters are in it, except
    the counts of a Bloom filter of a partitioned variable. The folder is removed with the last object that refers to it. All that
    needs values raises NotImplementedError, and names what to use.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, folder: typing.Any, rows: int, layout: Layout, state: OptimizerState | None
    ) -> None:
        self._folder = folder
        self._layout = layout
        self.shape = (rows, layout.part[-1])
        self.state = state

    @classmethod
    def of(cls, part: typing.Any, state: OptimizerState | None) -> RowsCopy:
        """Copies a table. state: what `state` of the copy returns. Like a save, it first removes expired rows.

        Raises:
          NotImplementedError: the table is kept. Its files would then belong to the copy, not to a checkpoint.
        """
        if part.table_options["keep"]:
            raise NotImplementedError(
                f"rows of '{part.name}' cannot be copied by get_weights(), because StorageOption.keep=True: use model.save_weights(path)"
            )
        folder = tempfile.TemporaryDirectory(prefix="tf_multitier_rows_")
        prefix = os.path.join(folder.name, _NAME)
        manifest = json.loads(ops.multitier_save_part(part.handle, prefix).numpy())
        manifest.update(partition_index=0, num_partitions=1)
        text = tf.constant(json.dumps(manifest))
        entries = object_checkpoint.entries_of_part(_NAME, 0, 1, part.embedding_dim, text)
        object_checkpoint.write_bundle(prefix, entries)
        return cls(folder, manifest["num_rows"], Layout.of(part), state)

    @property
    def size(self) -> int:
        """The number of elements of all rows."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """2."""
        return len(self.shape)

    def copy(self) -> RowsCopy:
        """The object itself: it does not change."""
        return self

    def __copy__(self) -> RowsCopy:
        return self

    def __deepcopy__(self, memo: dict) -> RowsCopy:
        return self

    def restore(self, part: typing.Any, what: str) -> None:
        """Replaces the rows of a table by the copy. Everything is checked before a row changes (loads.py). what: starts messages.

        Raises:
          ValueError: the copy is that of another partition, or has another dim, or other types of keys or values.
        """
        Layout.of(part).check(self._layout, what)
        prefix = tf.constant(os.path.join(self._folder.name, _NAME))
        with loads.together() as load:
            load.changes.append(object_checkpoint.Reads([(_NAME, part)], prefix).replace)

    def __reduce__(self) -> typing.Any:
        raise NotImplementedError(
            "rows that get_weights() returned cannot be pickled: use model.save_weights(path)"
        )

    def _what_it_is(self):
        return (
            f"the rows of '{self._layout.name}' that get_weights() returned are in a file and are no array: give them to set_weights(), "
            "and read keys and values with export() of the layer's tables"
        )

    def __repr__(self):
        return f"<rows of '{self._layout.name}', shape={self.shape}, for set_weights()>"

    def __getattr__(self, name: str) -> typing.Any:
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise AttributeError(f"'{name}': {self._what_it_is()}")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    __array__ = __array_ufunc__ = __array_function__ = __tf_tensor__ = _no_values
    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = __bool__ = __float__ = (
        _no_values
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _no_values
    )
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _no_values
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_values
    __hash__ = object.__hash__
