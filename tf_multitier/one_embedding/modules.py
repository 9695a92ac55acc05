"""The modules: one embedding variable for all tables of an embedding.

    ids [batch, 3], column i asks table i         one variable: capacity, cache, files and snapshots are shared
        |                                          |
        v                                          v
    tables [batch, 3] = 0 1 2 ...   --lookup-->   rows [batch, 3, dim]

A table is the initial value of the rows that are first trained in it, and nothing else. So an id that two tables ask is one row.

Life: the module checks its options. `to(device)` chooses where rows are. The first use makes the variable: a call, `parameters()`,
`variable`, a snapshot. The folder and the name are taken as long as the module lives.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import threading
import typing
import weakref

import keras
import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import options as variable_options
from tf_multitier._src.execution import placement
from tf_multitier._src.lookup import padding
from tf_multitier._src.options import key_types
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.variable.variable_scope import get_embedding_variable
from tf_multitier.one_embedding import initial_values
from tf_multitier.one_embedding import options
from tf_multitier.one_embedding import stores
from tf_multitier.one_embedding import table_ids as tables_of_ids
from tf_multitier.one_embedding.keras_layer import OneEmbedding
from tf_multitier.one_embedding.snapshots import Snapshots

_SERIALIZABLE = keras.saving.register_keras_serializable(package="tf_multitier.one_embedding")

# What TensorFlow allows as the name of a scope.
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")

# {("name", name) or ("persistent_path", folder): the live module that has it}.
_live: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _take(embedding, **owned):
    """Makes names and folders those of a module. ValueError: a live one has them."""
    for kind, value in owned.items():
        if (kind, value) in _live:
            gc.collect()  # a module that is in a cycle, as in a function's trace, lives until then
        if (kind, value) in _live:
            raise ValueError(
                f"one_embedding '{embedding.name}': {kind}: expected another one than that of the live embedding "
                f"'{_live[kind, value].name}', found {value!r}"
            )
    _live.update(dict.fromkeys(owned.items(), embedding))


def _is_live(name, folder):
    gc.collect()
    return ("name", name) in _live or ("persistent_path", os.path.realpath(folder)) in _live


@_SERIALIZABLE
class Embedding(tf.Module):
    """An embedding of one or more tables.

    Args:
      name: of the embedding and its variable. No live embedding of the process has it.
      embedding_dim: elements of a row; or a list of them, one for each column.
      dtype: tf.float32, tf.bfloat16 or tf.float16: the type of the values.
      key_type: tf.int64, tf.int32, tf.uint64 or tf.uint32: the type of the ids. Every value of it is an id.
      tables: a list of make_table_options, up to 65,535. None: one table of `default_initializer`.
      store_options: what one of the make_..._store_options returned. No live embedding has its folder.
      default_initializer: of the table that `tables=None` makes. None: normal, with mean 0 and standard deviation 0.05.
      padding_idx: an id that is padding in all tables: it reads as zeros, and has no row, no count and no gradient. None: every id
        is one.
      seed: of the initial values. They depend on seed, id, column and initializer alone.
      on_repeated_id: what a batch does that asks for one id in two tables. "share": both read and train one row, which begins with
        the initial value of the table that trained it first. "error": the lookup is InvalidArgument. Two batches are not compared, so
        several tables in a world of processes refuse it.
      output_dtype: of the result of a call: tf.float32, tf.bfloat16 or tf.float16. None: dtype.

    Raises:
      TypeError, ValueError: a bad value; or a live embedding has the name or the folder.
      NotImplementedError: on_repeated_id="error" of several tables in a world of processes.
    """

    def __init__(
        self,
        name: str,
        embedding_dim: typing.Any,
        dtype: typing.Any,
        key_type: typing.Any,
        tables: typing.Any,
        store_options: typing.Any,
        default_initializer: dict | None = None,
        padding_idx: int | None = None,
        seed: int = 0,
        *,
        on_repeated_id: str = "share",
        output_dtype: typing.Any = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise (ValueError if isinstance(name, str) else TypeError)(
                f"one_embedding: name: expected a name of letters, digits, '_', '.', '-' and '/', found {name!r}"
            )
        self._embedding_name = name
        where = self._where = f"one_embedding '{name}'"
        # A letter in front: tf.Module takes an identifier.
        super().__init__(name="e_" + re.sub(r"\W", "_", name, flags=re.ASCII))
        given = embedding_dim if isinstance(embedding_dim, (list, tuple)) else [embedding_dim]
        if not given:
            raise ValueError(
                f"{where}: embedding_dim: expected at least one number, found {embedding_dim!r}"
            )
        self._dims = [integer(f"{where}: embedding_dim", dim, 1) for dim in given]
        self.embedding_dim = sum(self._dims)
        self.dtype = variable_options.value_type(f"{where}: dtype", dtype)
        self.key_type = key_types.key_type(f"{where}: key_type", key_type)
        self.output_dtype = (
            self.dtype
            if output_dtype is None
            else variable_options.value_type(f"{where}: output_dtype", output_dtype)
        )
        self._initializers = options.initializers_of(tables, default_initializer, len(self._dims))
        self._world = worlds.current()  # the first use may be outside of the scope
        place = worlds.place_of(self._world)
        self._store = stores.Store(store_options, self.embedding_dim, place)
        self.num_tables = len(self._initializers)
        self._padding_key = padding.key_of(self.key_type, padding_idx, f"{where}: padding_idx")
        self.padding_idx = padding_idx
        self._seed = integer(f"{where}: seed", seed, -(2**63), 2**64 - 1)
        self._on_repeated_id = one_of(
            f"{where}: on_repeated_id", on_repeated_id, ("share", "error")
        )
        if on_repeated_id == "error" and self.num_tables > 1 and place[1] > 1:
            raise NotImplementedError(
                f"{where}: on_repeated_id: expected 'share' in a world of {place[1]} processes, which do not compare their ids, found "
                "'error': give each table ids of its own, such as id * number of tables + table"
            )
        self._snapshots = Snapshots(where, self._store, self.embedding_dim, place)
        self._device = "cpu"
        self._variable: typing.Any = None
        self._making = threading.Lock()
        _take(self, name=name, persistent_path=os.path.realpath(self._store.folder))

    @property
    def name(self) -> str:
        """The name of the embedding."""
        return self._embedding_name

    def to(self, device: str) -> Embedding:
        """Chooses where rows are, before the first use, and returns the module.

        Args:
          device: "cpu"; or "cuda", also "cuda:0": a cache on the device is HBM if this build and this machine have it. Otherwise it
            is on the CPU, as without a call, and the log says so once.

        Raises:
          TypeError, ValueError: another device.
          RuntimeError: the module was used with the other device.
        """
        if not isinstance(device, str):
            raise TypeError(f"{self._where}: device: expected 'cpu' or 'cuda', found {device!r}")
        kind = one_of(f"{self._where}: device", device.split(":", maxsplit=1)[0], ("cpu", "cuda"))
        if kind == "cuda" and not placement.has_hbm():
            _say_once(
                f"{self._where}: to({device!r}): this build or machine has no GPU for rows: they are on the CPU"
            )
            kind = "cpu"
        if self._variable is not None and kind != self._device:
            raise RuntimeError(
                f"{self._where}: to({device!r}): expected a call before the first use, found rows on {self._device}: call `to` right "
                "after the module is made"
            )
        self._device = kind
        return self

    @property
    def variable(self) -> typing.Any:
        """The embedding variable of all tables. The first use makes it, in the mode (eager or v1 graph) of that use."""
        with self._making:
            if self._variable is None:
                self._variable = self._make_variable()
        return self._variable

    def _make_variable(self):
        storage = self._store.option(on_gpu=self._device == "cuda")
        if storage.storage_path is not None:
            os.makedirs(storage.storage_path, exist_ok=True)
        # The first use may be in a scope.
        with tf.compat.v1.name_scope(None), worlds.scope(self._world):
            return get_embedding_variable(
                self.name,
                self.embedding_dim,
                key_dtype=self.key_type,
                value_dtype=self.dtype,
                initializer=initial_values.of_tables(self._initializers, self._dims, self._seed),
                ev_option=variable_options.EmbeddingVariableOption(storage_option=storage),
            )

    def parameters(self) -> list:
        """The variables to train, for tapes and optimizers: the embedding variable, or its parts if a scope's partitioner made some."""
        return list(self.variable.parts)

    def __call__(
        self, ids: typing.Any, table_ids: typing.Any = None, training: bool = True
    ) -> tf.Tensor:
        """The same as forward."""
        return self.forward(ids, table_ids, training)

    def forward(
        self, ids: typing.Any, table_ids: typing.Any = None, training: bool = True
    ) -> tf.Tensor:
        """Looks ids up.

        Args:
          ids: integers of key_type, of any shape: a tensor, an array or a list.
          table_ids: the table that each id asks: integers of the shape of ids, or of its trailing dimensions, which then hold for each
            of the leading ones. None: one table, or ids of shape [batch, number of tables], whose column i asks table i.
          training: False: for evaluation, without a gradient. No lookup creates a row.

        Returns:
          ids.shape + [embedding_dim], in output_dtype. An id without a row reads as the initial value of its table.

        Raises:
          TypeError: ids of another type.
          ValueError: shapes that do not match.
          tf.errors.InvalidArgumentError, when run: an entry of table_ids is no table; or an id is asked in two tables, with
            on_repeated_id="error".
        """
        ids = tables_of_ids.ids_of_type(self._where, ids, self.key_type)
        tables = tables_of_ids.tables_of(self._where, ids, table_ids, self.num_tables)
        if tables is not None and self._on_repeated_id == "error":
            ids = self._without_repeats(ids, tables)
        more = {} if tables is None else {"tables": tables}
        rows = lookup.embedding_lookup(
            self.variable,
            ids,
            training=training,
            output_dtype=self.output_dtype,
            padding_idx=self.padding_idx,
            **more,
        )
        return rows if training else tf.stop_gradient(rows)

    def _without_repeats(self, ids, tables):
        """`ids`, with a check that no two tables have one of them. Padding may be in all."""
        keys, tables = tf.reshape(key_types.to_int64(ids), [-1]), tf.reshape(tables, [-1])
        if self._padding_key is not None:
            keys, tables = padding.without(self._padding_key, keys, tables)
        check = tables_of_ids.check_repeats(self._where, self.variable, keys, tables)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(ids)

    # ---- for the files of Keras

    def get_config(self) -> dict:
        """The arguments of the module as plain numbers, text, lists and dicts, and its device."""
        return {
            "name": self.name,
            "embedding_dim": self._dims if len(self._dims) > 1 else self._dims[0],
            "dtype": self.dtype.name,
            "key_type": self.key_type.name,
            "tables": [
                options.make_table_options([options.make_column_options(c) for c in columns])
                for columns in self._initializers
            ],
            "store_options": self._store.options,
            "padding_idx": None if self.padding_idx is None else int(self.padding_idx),
            "seed": self._seed,
            "on_repeated_id": self._on_repeated_id,
            "output_dtype": self.output_dtype.name,
            "device": self._device,
        }

    @classmethod
    def from_config(cls, config: dict) -> Embedding:
        """The module of `get_config`, without rows.

        If a live embedding has its name or folder, as that of a model that is cloned, the module is another one: "<name>_1", or the
        next free number, with its files in the folder of that name below the given path.
        """
        config = dict(config)
        device, place = config.pop("device"), worlds.place_of(worlds.current())
        name, store_options, number = config["name"], config["store_options"], 0
        while _is_live(config["name"], stores.folder_of(config["store_options"], place)):
            number += 1
            config["name"] = f"{name}_{number}"
            config["store_options"] = stores.below(store_options, config["name"])
        return cls(**config).to(device)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: typing.Any) -> dict:
        self.parameters()  # makes the variable: a checkpoint of an embedding without rows has none, and a restore gives none
        return super()._trackable_children(save_type, **kwargs)

    # ---- snapshots

    def save_snapshot(self, snapshot_name: str) -> None:
        """Saves the rows, with the states of their optimizer, as of one moment, as `snapshots/<snapshot_name>` in the rank's folder.

        The snapshot is there whole or not at all. Files of an SSD store are linked where the file system can, not written again. The
        folder can be copied alone. Eager execution only. In a world all processes call it: each saves the rows of its rank.

        Raises:
          FileExistsError: there is a snapshot of that name.
          ValueError: the name cannot be that of a folder.
          RuntimeError: in a graph or a tf.function.
        """
        self._snapshots.save(self.variable, snapshot_name)

    def load_snapshot(self, snapshot_name: str) -> None:
        """Replaces all rows by those of a snapshot, of any store. All is read and checked before anything changes.

        States of another optimizer are replaced by the initial ones of this embedding's optimizer at its first update.

        In a world all processes call it. A snapshot of a world of another size is loaded where `persistent_path` is one path, below which
        this process sees the folders of its ranks.

        Raises:
          FileNotFoundError: there is no such snapshot; the message lists those there are.
          ValueError: a table writer wrote it with another storage_dim; or it is of a world of another size, and `persistent_path` is a
            list; or worlds of two other sizes have one of the name.
          tf.errors.AbortedError: another process failed. Nothing has changed.
          tf.errors.OpError: it has another embedding_dim, or other types of keys or values; or a file is damaged.
          RuntimeError: in a graph or a tf.function.
        """
        self._snapshots.load(self.variable, snapshot_name)

    def snapshots(self) -> list[str]:
        """The names of the snapshots, sorted."""
        return self._snapshots.names()

    def delete_snapshot(self, snapshot_name: str) -> None:
        """Deletes a snapshot. FileNotFoundError: there is none of that name."""
        self._snapshots.delete(snapshot_name)

    def keras_layer(self, optimizer: typing.Any = None, **kwargs: typing.Any) -> typing.Any:
        """A layer of Keras that calls the module with ids, or a list of ids and table_ids.

        Args:
          optimizer: one of tf_multitier.optimizers, which trains the rows. None: the model's, from tf_multitier.keras.with_rows.
          kwargs: of keras.layers.Layer.
        """
        return OneEmbedding(self, optimizer, **kwargs)


@_SERIALIZABLE
class MultiTableEmbedding(Embedding):
    """An embedding of several tables with one embedding_dim. See Embedding for arguments, calls and errors."""

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        dtype: typing.Any,
        key_type: typing.Any,
        tables: typing.Any,
        store_options: typing.Any,
        default_initializer: dict | None = None,
        padding_idx: int | None = None,
        seed: int = 0,
        *,
        on_repeated_id: str = "share",
        output_dtype: typing.Any = None,
    ) -> None:
        if isinstance(embedding_dim, (list, tuple)):
            raise TypeError(
                f"one_embedding '{name}': embedding_dim: expected an integer, found {embedding_dim!r}: use "
                "MultiTableMultiColumnEmbedding"
            )
        super().__init__(
            name,
            embedding_dim,
            dtype,
            key_type,
            tables,
            store_options,
            default_initializer,
            padding_idx,
            seed,
            on_repeated_id=on_repeated_id,
            output_dtype=output_dtype,
        )


@_SERIALIZABLE
class MultiTableMultiColumnEmbedding(Embedding):
    """An embedding whose rows are several columns side by side, each with its own initializer.

    `embedding_dim` is the list of their elements; a row has the sum. See Embedding for arguments, calls and errors.
    """


@functools.cache
def _say_once(message):
    tf.get_logger().warning(message)
