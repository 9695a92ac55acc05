"""Table: one embedding table of the engine. row_transfer.py has its methods that copy rows in and out, tier_control.py those that
say where rows lie."""

from __future__ import annotations

import collections.abc
import functools
import json
import numbers
import os
import typing
import warnings
import weakref

import numpy.typing as npt

import numpy as np

from tf_multitier import _engine
from tf_multitier._src.options import numpy_types
from tf_multitier._src.options import option_record
from tf_multitier.engine import arguments
from tf_multitier.engine import kept
from tf_multitier.engine import rules
from tf_multitier.engine.row_transfer import RowTransfer
from tf_multitier.engine.tier_control import TierControl


class Table(RowTransfer, TierControl):
    """A hash table from integer keys to rows [value | slot 1 | ... | slot n]. Slots are float32; values may have 16 bits.

    Updates create keys; lookups do not.

    Errors, in addition to those of each method: all methods raise FailedPreconditionError if the table is closed, or was made by
    another process (fork). Methods that take keys raise ValueError if the keys are not integers [n]. Methods that read rows raise
    DataLossError for a damaged record, which names key and file (see on_corruption), and EngineError if a tier cannot be read.

    Threads: any thread may call any method at any time. Methods release the GIL while they run.
    """

    def __init__(
        self,
        dim: int,
        initializer: typing.Any = None,
        a: float | None = None,
        b: float | None = None,
        *,
        matrix: typing.Any = None,
        options: collections.abc.Mapping[str, typing.Any] | None = None,
        **named: typing.Any,
    ) -> None:
        """Makes an empty table.

        Args:
          dim: elements of a value, 1 to 2**20.
          initializer: a number, or the name of an initializer, whose parameters are then arguments, too; or a dict of both. None:
            "constant".
          a, b: the first two of these parameters.
          matrix: float32 [N, dim], for the initializer "matrix": key k starts from row k mod N.
          options: options by name, as a mapping.
          named: the same options as arguments. The parameters of `initializer` and `filter` may be arguments, too: `filter="counter",
            filter_freq=3` is `filter={"kind": "counter", "filter_freq": 3}`.

        Options:
          {options}

        Raises:
          ValueError: an argument is out of range, or the storage path is not a directory. "option: expected X, found Y: cure".
          NotImplementedError: the storage type needs a GPU, or `keep` is True and the last tier is PMEM or LEVELDB.
          NotFoundError: the parent of the storage path does not exist.
          EngineError: this process cannot write to the storage path.
        """
        positional = {"dim": dim, "initializer": initializer, "a": a, "b": b}
        if not isinstance(options or {}, collections.abc.Mapping):
            raise ValueError(f"options: expected a mapping of options by name, found {options!r}")
        given = dict(options or {})
        for name, value in {**positional, **named}.items():
            if name in given and value is not None:
                raise ValueError(
                    f"{name}: expected it once, found it in options and as an argument"
                )
            given.setdefault(name, value)
        for option in ("initializer", "filter"):
            _gather(option, given)
        matrix = arguments.matrix("matrix", matrix, arguments.dim("dim", dim))
        if matrix is not None and isinstance(given["initializer"], dict):
            rows = given["initializer"].setdefault("matrix_rows", len(matrix))
            if rows != len(matrix):
                raise ValueError(
                    f"matrix_rows: expected {len(matrix)}, the rows of matrix, found {rows!r}"
                )
        self._make(option_record.check(given, in_table=True, wrong_type=ValueError), matrix)

    def _make(self, record, matrix, recover=None):
        """record: complete."""
        self._record, self._warns_when_full = record, record["on_full"] == "warn"
        self._value_dtype, self._key_dtype = record["value_dtype"], record["key_dtype"]
        self._num_tables = len(record["initializers"]) or 1
        text = option_record.text_of(record, in_table=True)
        files = kept.encode_options(text, matrix) if record["keep"] and recover is None else []
        self._table = _engine.Table(text, matrix, recover, files)
        if record["external_storage"]:
            weakref.finalize(self, _close, self._table, record["external_storage"], os.getpid())

    @classmethod
    def open(
        cls, path: str, name: str | None = None, recover: bool = True, keep: bool = True
    ) -> Table:
        """Opens a kept table from its instance directory, with the options and columns that it had.

        The process of the table may have closed it or crashed. Each key has its newest acknowledged row, or a newer one. Rows are
        acknowledged when a `flush` or `close` after their update returned, or when the last tier has written and synced them by
        itself. Keys that were removed before are absent. Not recovered: the counts of admission filters, and how recently rows were
        used.

        Args:
          path: the instance directory (`Table.path`), or, with `name`, the storage path.
          name: the table's name. There must be exactly one kept instance of it.
          recover: must be True. It confirms that rows may be older than those in memory when the process died.
          keep: True: the files stay when the table is deleted. False: they are deleted with it.

        `initial_rows` is at most the number of rows that the files have room for; `reserve` makes more room.

        Raises:
          NotFoundError: there is nothing at `path`.
          ValueError: there are several kept instances of that name, or `recover` is not True.
          FailedPreconditionError: a process uses the instance (the message names it), or it was not made with keep=True.
          DataLossError: a file is damaged, or a flushed file is missing, cut or replaced. The message names the file. Nothing was
            changed.
          NotImplementedError: another format version.
        """
        if recover is not True:
            raise ValueError(
                f"open: expected recover=True, found {recover!r}: a table begins empty, or with what is recovered"
            )
        path = arguments.path("path", path)
        if name is not None:
            path = kept.instance_of_name(path, arguments.text("name", name))
        instance = _engine.Instance(os.fsencode(path))
        try:
            record, matrix = kept.decode_options(path)
            record["keep"] = arguments.boolean("keep", keep)
            table = cls.__new__(cls)
            with kept.as_damage(os.path.join(path, kept.OPTIONS_FILE)):
                table._make(record, matrix, instance)
        finally:
            instance.release()
        return table

    def close(self) -> None:
        """Closes the table: waits for running operations, flushes a kept table, and releases the files.

        After that, every method except `close` raises FailedPreconditionError. If the flush fails, this raises its error and the
        table stays open. Garbage collection also closes a table, but cannot report an error. At the end of the process a table may
        not be closed, unless it has an external storage.
        """
        self._table.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def path(self) -> str | None:
        """The instance directory, below the storage path. None if no tier has files."""
        return os.fsdecode(self._table.path) or None

    @property
    def recovery(self) -> typing.Any:
        """The state of the last tier's files when `open` read them. None if the table was not opened with `open`.

        A dict:
          files: number of files with records.
          listed_files: how many of them the tier's list of synced files names.
          unsealed_files: how many of them the process left open when it died.
          lost_headers: how many of them lost their header.
          records: number of records in the files, including older ones and removals.
          damaged_records: number of damaged records that no flush had acknowledged.
          first_damage: file and offset of the first damaged record, or ''.
          rows: number of rows that the table began with.
        """
        return self._table.recovery

    @property
    def dim(self) -> int:
        """Elements of a value."""
        return self._table.dim

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def columns(self) -> list:
        """The columns of a row: a list of (name, dim, initial value). The value comes first."""
        return self._table.columns()

    @property
    def value_dtype(self) -> str:
        """The type of the values: "float32", "bfloat16" or "float16"."""
        return self._value_dtype

    @property
    def key_dtype(self) -> str:
        """The type of the keys: "int64", "uint64" or "uint32"."""
        return self._key_dtype

    def _keys(self, keys, name="keys"):
        return arguments.keys(name, keys, self._key_dtype)

    def _typed(self, values, output_dtype):
        """float32 values of rows in the type that was asked for."""
        if output_dtype is None:
            return numpy_types.as_type(values, self._value_dtype)
        return numpy_types.as_type(values, numpy_types.value_type("output_dtype", output_dtype))

    def lookup(
        self,
        keys: npt.ArrayLike,
        training: bool = True,
        output_dtype: typing.Any = None,
        tables: npt.ArrayLike | None = None,
    ) -> np.ndarray:
        """The values of `keys` (integers [n]): [n, dim]. A key without a row reads as its initial value.

        With a filter it reads as a key that is not admitted; with training=False as `eval_initializer` says, if it was given.

        Args:
          keys: integers [n].
          training: False: for evaluation.
          output_dtype: of the result: "float32", "bfloat16" or "float16". None: `value_dtype`.
          tables: integers [n]: which of the `initializers` each key has. Needed if they are more than one.
        """
        keys = self._keys(keys)
        tables = arguments.tables(tables, keys, self._num_tables)
        found = self._table.lookup(keys, arguments.boolean("training", training), tables)
        return self._typed(found, output_dtype)

    def peek(
        self,
        keys: npt.ArrayLike,
        output_dtype: typing.Any = None,
        tables: npt.ArrayLike | None = None,
    ) -> np.ndarray:
        """Reads values without side effects: [n, dim], the same values as `lookup`.

        No row moves between tiers, no row counts as used, and the statistics of lookups do not change. For tools that inspect a
        table without changing which rows it keeps in memory.
        """
        keys = self._keys(keys)
        tables = arguments.tables(tables, keys, self._num_tables)
        return self._typed(self._table.peek(keys, tables), output_dtype)

    def apply(
        self,
        rule: str,
        keys: typing.Any,
        grads: typing.Any,
        counts: typing.Any = None,
        hyper: dict[str, float] | None = None,
        slots: typing.Any = None,
        global_step: typing.Any = -1,
        tables: npt.ArrayLike | None = None,
    ) -> int:
        """Updates each distinct key once, with the sum of its gradients. Keys without a row get one first, if the filter admits them.

        Args:
          rule: name of an update rule, see `update_rules`.
          keys: integers [n], repeats allowed.
          grads: floats [n, dim].
          counts: integers [n], >= 0: the number of occurrences of each entry. None: 1 each.
          hyper: dict with exactly the rule's hyperparameters.
          slots: names of the columns for the rule's slots, in the rule's order. None: the rule's own names. Columns that do not exist
            are added, with the rule's default initial value.
          global_step: the step, which is the version that the rows get unless the table's score is another; -1: the table's own
            count of applies.
          tables: integers [n]: which of the `initializers` each entry has; of a repeated key, the first counts. None: every key has a row
            already, unless there is one initializer.

        Returns:
          The number of new keys that got no row, because of `on_full` or `refuse_colder`.

        Raises:
          ValueError: a bad argument. Nothing has changed.
          ResourceExhaustedError: no room for the new rows. Nothing has changed.
          FailedPreconditionError: the score is "custom", and none was set.
        """
        spec, values = rules.rule_and_hyper(rule, hyper)
        keys = self._keys(keys)
        grads = arguments.floats("grads", grads, [len(keys), self.dim])
        if counts is not None:
            counts = arguments.integers("counts", counts)
            if len(counts) != len(keys):
                raise ValueError(f"counts: expected shape [{len(keys)}], found [{len(counts)}]")
            if len(counts) and counts.min() < 0:
                raise ValueError(f"counts: expected at least 0 each, found {counts.min()}")
        global_step = arguments.integer("global_step", global_step)
        count = 1 if tables is None else self._num_tables  # keys with rows need none
        tables = arguments.tables(tables, keys, count)
        slots, missing = self._slot_columns(rule, spec, slots)
        if missing:
            self._table.add_slots(missing)
        refused = self._table.apply(rule, keys, grads, counts, values, slots, global_step, tables)
        if refused and self._warns_when_full:
            self._warns_when_full = False
            warnings.warn(
                f"table '{self.name}' is full with {len(self)} rows: {refused} new keys of an update got no row; `refused` in "
                "the statistics counts them",
                stacklevel=2,
            )
        return refused

    def _slot_columns(self, rule, spec, slots):
        """(names of the columns for a rule's slots, those that do not exist yet as [(name, dim, initial value)])."""
        slots = (
            [name for name, _, _ in spec["slots"]]
            if slots is None
            else arguments.names(f"slots of {rule}", slots)
        )
        n, (value, *_) = len(spec["slots"]), self.columns[0]
        if len(slots) != n or len(set(slots)) != n or value in slots:
            raise ValueError(
                f"slots of {rule}: expected {n} different names, none '{value}', found {slots}"
            )
        dims = {name: dim for name, dim, _ in self.columns}
        missing = []
        for name, (_, per_row, initial_value) in zip(slots, spec["slots"]):
            dim = 1 if per_row else self.dim
            if name not in dims:
                missing.append((name, dim, initial_value))
            elif dims[name] != dim:
                raise ValueError(
                    f"slots of {rule}: expected column '{name}' of table '{self.name}' to have dim {dim}, found "
                    f"{dims[name]}"
                )
        return slots, missing

    def add_slots(self, slots: typing.Any) -> None:
        """Adds columns to every row. Columns that exist already are skipped.

        Args:
          slots: list of (name, dim, initial value).

        Raises:
          AlreadyExistsError: a column of that name exists with another dim.
        """
        self._table.add_slots(arguments.columns("slots", slots))

    def frequency(self, keys: npt.ArrayLike) -> np.ndarray:
        """The number of occurrences of each key in training: int64 [n]. Without a row: its count if a filter counts it, else 0."""
        return self._table.frequency(self._keys(keys))

    def version(self, keys: npt.ArrayLike) -> np.ndarray:
        """The version of each key, which its last update has set: int64 [n]; -1 without a row."""
        return self._table.version(self._keys(keys))

    def score(self, keys: npt.ArrayLike) -> np.ndarray:
        """The score of each key: int64 [n]. It is `frequency` if the table's score is "frequency", else `version`."""
        return self._table.score(self._keys(keys))

    def set_score(self, score: int) -> None:
        """Sets the score that updates give to their rows from now on. The first time that it decreases, a warning is issued.

        Raises:
          ValueError: the table's score is not "custom", or `score` does not fit int64.
        """
        if self._table.set_score(arguments.integer("score", score)):
            warnings.warn(
                f"table '{self.name}': set_score({score}) is less than the score before: rows that are updated now are "
                "colder than older ones",
                stacklevel=2,
            )

    def remove(self, keys: npt.ArrayLike) -> int:
        """Removes keys. Returns the number of them that had a row.

        Also removes keys whose record is damaged. If a tier cannot record the removal, the table repeats it later; until then `drain`
        and `flush` raise the tier's error.
        """
        return self._table.remove(self._keys(keys))

    def expire(self, step: typing.Any) -> int:
        """Removes the rows that are expired at global step `step`, by steps_to_live or l2_weight_threshold. Returns their number.

        Raises:
          ValueError: step is not an integer, or the table has neither of these options.
        """
        option_record.check_expires(self._record, "")
        return self._table.expire(arguments.integer("step", step))

    def clear(self) -> None:
        """Removes all keys from all tiers, and resets the counts of filters. Columns stay."""
        self._table.clear()

    def total_count(self) -> int:
        """The number of keys that have a row."""
        return self._table.total_count()

    def __len__(self):
        return self.total_count()

    def stats(self) -> dict:
        """Statistics as a dict; "tiers" is a list with one dict per tier. docs/statistics.md describes all fields."""
        return json.loads(self._table.stats_json())


def _close(table, storage, process):
    """Closes a table over an external storage that is open, when it is deleted or the process ends. An error is printed."""
    if os.getpid() == process:
        _engine.run_unlocked(storage, functools.partial(table.close, deleted=True))


def _gather(option, given):
    """Moves the parameters of an option that is a struct into its dict, if they are options themselves."""
    value = given.get(option)
    fields = [field["name"] for field in option_record.DESCRIPTIONS[option]["fields"]]
    found = {name: given.pop(name) for name in fields if name in given}
    found = {name: each for name, each in found.items() if each is not None}
    if isinstance(value, str):
        value = {"kind": value}
    elif isinstance(value, numbers.Real) and "a" in fields:
        value = {"a": value}
    value = {} if value is None else value
    if isinstance(value, collections.abc.Mapping):
        twice = [name for name in found if name in value]
        if twice:
            raise ValueError(
                f"{twice[0]}: expected it once, found it in {option} and as an argument"
            )
        value = {**value, **found}
    given[option] = value


_TABLE_OPTIONS = [
    name
    for name, described in option_record.DESCRIPTIONS.items()
    if described["in_table"] and name not in ("dim", "initializer")
]
Table.__init__.__doc__ = option_record.documented(Table.__init__, _TABLE_OPTIONS)
