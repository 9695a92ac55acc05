"""RowTransfer: the methods of EmbeddingVariable and PartitionedEmbeddingVariable that copy many rows out of a variable or into it.

    scan      reads one piece of the rows, by a cursor           upsert      writes a batch of rows
    rows      a generator that scans the whole variable          clear       removes every key
    freeze    writes a file for serving                          set_budget  changes the size of DRAM

Rows that left are in departed_rows.py, reads and removals by key in queries.py. A checkpoint moves whole variables between programs (saver.py, checkpoint/).
"""

from __future__ import annotations

import collections.abc
import typing

import numpy as np
import tensorflow as tf
import tqdm

from tf_multitier._src.options import key_types
from tf_multitier._src.options.key_types import as_keys
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import check_upsert
from tf_multitier._src.processes.world_keys import no_world
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.departed_rows import column_name
from tf_multitier._src.variable.departed_rows import column_names
from tf_multitier._src.variable.departed_rows import DepartedRows
from tf_multitier._src.variable.queries import colocated
from tf_multitier._src.variable.queries import partition_keys

# A cursor of a whole variable: that of the part's table, with the part's number in ten bits that the table leaves 0.
_PART_SHIFT, _PART_MASK = 40, 1023
_LEAST = np.iinfo(np.int64).min


class ScannedRows(typing.NamedTuple):
    """A piece of a variable's rows: tensors, or, after Session.run, arrays.

    Attributes:
      keys: int64 [n], or uint64 or uint32 if that is the key_dtype.
      columns: a dict from names of columns to float32 [n, dim of the column]. "value" is the embedding, in the variable's dtype.
      frequencies: int64 [n]: number of occurrences in training.
      versions: int64 [n]: global step of the last update.
      next_cursor: int64 scalar: the cursor of the next piece; 0 at the end.
    """

    keys: typing.Any
    columns: dict
    frequencies: typing.Any
    versions: typing.Any
    next_cursor: typing.Any


def _floats(given):
    """A column as float32, from that or a type of values of 16 bits."""
    if getattr(given, "dtype", None) in (tf.bfloat16, tf.float16):
        return tf.cast(given, tf.float32)
    return tf.convert_to_tensor(given, tf.float32)


def _facts(name, given, keys):
    """int64 [n], one for each key; [0] for None."""
    if given is None:
        return tf.zeros([0], tf.int64)
    if isinstance(given, (list, tuple, np.ndarray)) and len(given) == 0:
        given = np.zeros([0], np.int64)  # TensorFlow would take it for float32
    fact = tf.convert_to_tensor(given)
    if not fact.dtype.is_integer:
        raise ValueError(f"{name}: expected integers, found {fact.dtype.name}")
    if not fact.shape.is_compatible_with(keys.shape):
        raise ValueError(f"{name}: expected shape {keys.shape}, found {fact.shape}")
    return tf.cast(fact, tf.int64)


def _check_sizes(keys, columns, facts):
    """Ops that fail where rows or facts are not one for each key. A part could not tell: it gets those at the places of its keys."""
    checks = [
        tf.debugging.assert_equal(
            tf.shape(given)[0], tf.size(keys), f"upsert: {name}: expected one for each key"
        )
        for name, given in (columns | facts).items()
    ]
    return [op for op in checks if op is not None]


def _upsert_part(part, rows, check_only=False, **options):
    keys, data, facts = rows
    with colocated(part):
        return ops.multitier_upsert(
            part.handle,
            keys,
            data,
            *facts,
            check_only=check_only,
            **options,
        )


class RowTransfer(DepartedRows):
    """Methods that build ops; run the result in a Session. See the module comment for what there is.

    A class that uses this mixin has what Queries asks for.
    """

    if typing.TYPE_CHECKING:

        @property
        def parts(self) -> list: ...

        @property
        def variable_name(self) -> str: ...

    def scan(
        self,
        cursor: typing.Any = 0,
        max_rows: int = 65536,
        columns: collections.abc.Sequence | None = None,
        min_version: typing.Any = None,
        min_frequency: typing.Any = None,
        name: str = "scan",
    ) -> ScannedRows:
        """Reads the variable piece by piece while it is in use. `rows` does it in a loop.

        A key that has a row during the whole scan is in exactly one piece. A key that is added or removed during the scan may be in
        none, and a key that is removed and added again may be in two. The scan needs memory for one piece. It moves no row between
        tiers. With min_version or min_frequency, it reads no row of SSDHASH whose segment has only rows below it, and no more than
        the header of a row in DRAM that it leaves out.

        Args:
          cursor: 0 for the first piece, then `next_cursor` of the piece before: an integer, or an int64 scalar tensor.
          max_rows: rows of a piece, >= 1; a piece may have a few more, and near the end of a partition fewer.
          columns: names of columns, or slots (`optimizer.get_slot(ev, name)`). None: ["value"]. []: keys, frequencies and versions.
          min_version: rows whose last update was at an earlier global step are left out: an integer or an int64 scalar tensor.
          min_frequency: rows with fewer occurrences are left out.
          name: name of the op.

        Returns:
          `ScannedRows`.

        Raises:
          tf.errors.InvalidArgumentError, when run: no such column (the message lists those there are), or a bad cursor.
          tf.errors.DataLossError, when run: a row in a file is damaged.
        """
        names = column_names(columns)
        if (
            isinstance(max_rows, bool)
            or not isinstance(max_rows, (int, np.integer))
            or max_rows < 1
        ):
            raise ValueError(f"max_rows: expected an integer, at least 1, found {max_rows!r}")
        with tf.name_scope(name):
            cursor = tf.convert_to_tensor(cursor, tf.int64)
            least = [
                tf.convert_to_tensor(default if given is None else given, tf.int64)
                for given, default in ((min_version, _LEAST), (min_frequency, 0))
            ]
            if len(self.parts) == 1:
                return self._scan_part(0, cursor, least, names, max_rows)
            number = tf.bitwise.right_shift(cursor, _PART_SHIFT)
            part = tf.cast(tf.bitwise.bitwise_and(number, _PART_MASK), tf.int32)
            known = tf.debugging.assert_less(
                tf.cast(part, tf.uint32),
                tf.constant(len(self.parts), tf.uint32),
                f"embedding variable '{self.variable_name}': expected a cursor that an earlier scan of it returned",
            )
            with tf.control_dependencies([known] if known is not None else []):
                part = tf.identity(part)
            within = tf.bitwise.bitwise_and(
                cursor, tf.constant(~(_PART_MASK << _PART_SHIFT), tf.int64)
            )
            branches = [
                lambda p=p: self._scan_part(p, within, least, names, max_rows)
                for p in range(len(self.parts))
            ]
            return tf.switch_case(part, branches)

    def _scan_part(self, index, cursor, least, names, max_rows):
        """A piece of one part. Its next cursor is that of the whole variable."""
        part = self.parts[index]
        with colocated(part):
            scanned = ops.multitier_scan(
                part.handle, cursor, *least, N=len(names), column_names=names, max_rows=max_rows
            )
        next_cursor, first = scanned.next_cursor, index << _PART_SHIFT
        if len(self.parts) > 1:
            following = (index + 1) << _PART_SHIFT if index + 1 < len(self.parts) else 0
            at_end = tf.equal(next_cursor, 0)
            next_cursor = tf.where(at_end, tf.constant(following, tf.int64), next_cursor + first)
        columns = self._typed_columns(names, scanned.columns)
        keys = key_types.from_int64(self, scanned.keys)
        return ScannedRows(keys, columns, scanned.frequencies, scanned.versions, next_cursor)

    def rows(
        self,
        session: typing.Any = None,
        max_rows: int = 65536,
        columns: collections.abc.Sequence | None = None,
        min_version: int | None = None,
        min_frequency: int | None = None,
        progress: bool | None = False,
    ) -> collections.abc.Iterator[ScannedRows]:
        """A generator of all rows, in pieces of NumPy arrays. See `scan` for what a piece is and for the arguments.

            for piece in users.rows(session, columns=["value", optimizer.get_slot(users, "momentum")]):
                table = pandas.DataFrame(piece.columns["value"], index=piece.keys)

        Args:
          session: a Session in which the variable is initialized. None: the default session; not needed in eager execution.
          progress: True: shows a progress bar (tqdm). None: only if the output is a terminal.

        Raises:
          ValueError: there is no session.
          RuntimeError: the graph is finalized, as in a MonitoredSession: build `scan` before the session is made.
        """
        if progress is not None:
            progress = boolean("rows: progress", progress)
        ask = self._asker(session)
        cursor: typing.Any = 0
        if tf.executing_eagerly():
            step = None
        else:
            graph = self.parts[0].handle.graph
            if graph.finalized:
                raise RuntimeError(
                    f"embedding variable '{self.variable_name}': rows(): expected a graph that takes ops, found a finalized one: build "
                    "`scan(cursor)` with a placeholder before the session is made"
                )
            with graph.as_default():
                cursor = tf.compat.v1.placeholder(tf.int64, [])
                step = self.scan(cursor, max_rows, columns, min_version, min_frequency, "rows")
                count = self._count_rows()
        total = int(ask(self._count_rows() if step is None else count))
        bar = tqdm.tqdm(
            total=total,
            unit=" rows",
            unit_scale=True,
            disable=None if progress is None else not progress,
        )
        with bar:
            at = 0
            while True:
                if step is None:
                    tensors = self.scan(at, max_rows, columns, min_version, min_frequency, "rows")
                    piece = tf.nest.map_structure(np.asarray, tensors)
                else:
                    piece = ask(step, {cursor: at})
                if len(piece.keys):
                    bar.update(len(piece.keys))
                    yield piece
                at = int(piece.next_cursor)
                if at == 0:
                    return

    def _asker(self, session):
        """A function that evaluates tensors in a session, or eagerly."""
        if tf.executing_eagerly():
            return lambda tensors, feed=None: np.asarray(tensors)
        session = session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError(
                f"embedding variable '{self.variable_name}': rows(): expected a session, found none: pass one, or call it in `with session:`"
            )
        return session.run

    def upsert(
        self,
        keys: typing.Any,
        values: typing.Any = None,
        slots: dict | None = None,
        frequencies: typing.Any = None,
        versions: typing.Any = None,
        if_exists: str = "replace",
        repeats: str = "error",
        check_finite: bool = False,
        name: str = "upsert",
    ) -> tf.Tensor:
        """Writes rows. Keys without a row get one, whatever an admission filter says.

        In a row that exists, what is not given stays as it is. In a new row, it is the initial value, frequency 0 (or the count that
        a filter has), and the newest global step that the table knows. All rows are written, or none. A partitioned variable checks
        all of the request before it writes; only an error of storage, such as a full disk, may then leave rows of other parts written. All rows of the batch are in DRAM at the same time, even if they exceed its size. If another thread
        trains a new key at the same time, the order of the two is not defined.

        Args:
          keys: integers [n].
          values: floats [n, embedding_dim], or None. A variable with values of 16 bits rounds them to the nearest.
          slots: a dict from slots, or their names, to float32 [n, dim of the slot].
          frequencies: integers [n], from 0 to 2**32 - 1, or None.
          versions: integers [n], or None.
          if_exists: for a key that has a row: "replace" what is given, "keep" the row, or "error".
          repeats: for a key that `keys` has twice: "error", or "last", which writes the last of its rows.
          check_finite: True: infinities and NaN are an error.
          name: name of the op.

        Returns:
          int64 scalar: the number of rows written.

        Raises:
          ValueError: a bad name, or shapes that do not match.
          tf.errors.InvalidArgumentError, when run: a repeated key, no such slot, another width, a negative frequency.
          tf.errors.AlreadyExistsError, when run: a key has a row, and if_exists is "error".
          tf.errors.ResourceExhaustedError, when run: there is no room for the rows.
        """
        check_upsert(if_exists, repeats)
        columns = {} if values is None else {"value": values}
        if slots is not None and not isinstance(slots, collections.abc.Mapping):
            raise ValueError(
                f"slots: expected a dict from slots to rows, found {type(slots).__name__}"
            )
        columns.update((column_name(slot), data) for slot, data in (slots or {}).items())
        if len(columns) != (values is not None) + len(slots or {}):
            raise ValueError(
                f"slots: expected each slot once, and not 'value', found {[column_name(s) for s in slots or {}]}"
            )
        no_world(self, "upsert", "write a checkpoint with the rows, and restore it")
        with tf.name_scope(name):
            keys = as_keys(self, keys, "keys")
            keys.shape.assert_has_rank(1)
            data = [_floats(column) for column in columns.values()]
            facts = [
                _facts(what, given_fact, keys)
                for what, given_fact in (("frequencies", frequencies), ("versions", versions))
            ]
            if values is not None:
                data[0].shape.assert_is_compatible_with([None, self.parts[0].embedding_dim])
            given = (frequencies is not None, versions is not None)
            options: dict = dict(column_names=list(columns), if_exists=if_exists, repeats=repeats)
            options["check_finite"] = boolean("upsert: check_finite", check_finite)
            if len(self.parts) == 1:
                return _upsert_part(self.parts[0], (keys, data, facts), **options)
            # All parts look at their rows before the first one writes.
            sizes = {
                n: f
                for n, f, is_given in zip(("frequencies", "versions"), facts, given)
                if is_given
            }
            with tf.control_dependencies(_check_sizes(keys, dict(zip(columns, data)), sizes)):
                split = self._split(tf.identity(keys), data, facts, given)
            checks = [_upsert_part(part, rows, check_only=True, **options) for part, rows in split]
            with tf.control_dependencies(
                [check.op for check in checks] if not tf.executing_eagerly() else []
            ):
                return tf.add_n([_upsert_part(part, rows, **options) for part, rows in split])

    def _split(self, keys, data, facts, given):
        """[(part, (its keys, its rows of each column, its facts))], of several parts."""
        positions, part_keys = partition_keys(keys, len(self.parts))
        return [
            (
                part,
                (
                    its_keys,
                    [tf.gather(column, at) for column in data],
                    [
                        tf.gather(fact, at) if is_given else fact
                        for fact, is_given in zip(facts, given)
                    ],
                ),
            )
            for part, at, its_keys in zip(self.parts, positions, part_keys)
        ]

    def freeze(
        self, prefix: typing.Any, dtype: str | tf.DType = "float32", name: str = "freeze"
    ) -> tf.Operation:
        """An op that writes a checkpoint for serving: keys and values of all rows, as of one moment.

        The files have no slots, frequencies, versions and counted keys: a row takes 8 bytes and its values. `restore_from(prefix)` of
        a read-only variable (tf_multitier.serving.read_only) loads them. `tf_multitier.serving.freeze` makes such a checkpoint or a
        SavedModel from files.

        Args:
          prefix: string scalar: the path of the checkpoint.
          dtype: of the values in the files: "float32", "float16" or "bfloat16", rounded to the nearest. A table in memory has the variable's value_dtype.
          name: name of the op.

        Raises:
          ValueError: `dtype` is none of these.
          tf.errors.ResourceExhaustedError, when run: the disk is full. There is no checkpoint then.
        """
        dtype = getattr(dtype, "name", dtype)
        if dtype not in saver.FROZEN_DTYPES:
            raise ValueError(f"dtype: expected {', '.join(saver.FROZEN_DTYPES)}; found {dtype!r}")
        no_world(self, "freeze", "save a checkpoint, and call tf_multitier.serving.freeze")
        return saver.freeze_op(self.parts, self.variable_name, prefix, dtype, name)

    def clear(self, name: str = "clear") -> tf.Operation:
        """An op that removes all keys, and what filters have counted."""
        return self._each_part(lambda p: ops.multitier_clear(p.handle), name)

    def set_budget(
        self, size: typing.Any = None, name: str = "set_budget", rows: typing.Any = None
    ) -> tf.Operation:
        """An op that changes what DRAM may hold, for each part: `storage_size[0]` or `storage_rows[0]` of the option.

        A larger size applies at once. For a smaller one, a variable with lower tiers demotes rows in the background while training
        continues; `drain` waits for it. A variable of DRAM alone with drop_coldest drops its coldest rows at once.
        A checkpoint does not store the size: a restored variable has that of its options.

        Args:
          size: bytes of row data, an integer or an int64 scalar tensor, at least one row.
          rows: in place of size: a number of rows, which stays when an optimizer adds slots.
          name: name of the op.

        Raises:
          TypeError: both of size and rows are given, or none.
          tf.errors.InvalidArgumentError, when run: less than one row.
          tf.errors.FailedPreconditionError, when run: DRAM of the variable has no bound, or is no tier of it.
          tf.errors.ResourceExhaustedError, when run: the last tier has a size, and the rows do not fit into all tiers.
        """
        if (size is None) == (rows is None):
            raise TypeError(
                f"embedding variable '{self.variable_name}': set_budget: expected either size or rows, found size={size}, "
                f"rows={rows}"
            )
        in_rows = size is None
        size = tf.convert_to_tensor(rows if in_rows else size, tf.int64)
        return self._each_part(
            lambda p: ops.multitier_set_budget(p.handle, size, in_rows=in_rows), name
        )
