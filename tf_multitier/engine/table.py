"""Table: one embedding table of the engine. row_transfer.py has its methods that copy rows in and out, tier_control.py those that
say where rows lie."""

from __future__ import annotations

import collections.abc
import json
import os
import typing
import warnings

import numpy.typing as npt

import numpy as np

from tf_multitier import _engine
from tf_multitier.engine import arguments
from tf_multitier.engine import kept
from tf_multitier.engine import key_types
from tf_multitier.engine import rules
from tf_multitier.engine import value_types
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
        initializer: typing.Any = "constant",
        a: typing.Any = 0.0,
        b: typing.Any = 0.0,
        lower: typing.Any = None,
        upper: typing.Any = None,
        seed: typing.Any = 0,
        matrix: typing.Any = None,
        slots: typing.Any = (),
        filter: typing.Any = "none",
        filter_freq: int = 0,
        filter_max_keys: typing.Any = 0,
        filter_max_elements: typing.Any = 0,
        filter_false_positive: typing.Any = 0.01,
        filter_counter_bits: typing.Any = 32,
        filter_probability: typing.Any = 1.0,
        default_value_no_permission: float = 0.0,
        not_admitted: dict | None = None,
        evaluation: dict | None = None,
        steps_to_live: int | None = 0,
        l2_weight_threshold: float = -1.0,
        storage_type: str = "DRAM",
        storage_path: str | None = None,
        storage_size: collections.abc.Sequence[int] | None = (),
        storage_rows: collections.abc.Sequence[int] | None = (),
        initial_rows: int = 0,
        cache_strategy: str = "DEFAULT",
        drop_coldest: bool = False,
        on_full: str = "error",
        dropped: str = "keys",
        dropped_bytes: int = 8 << 20,
        removed_bytes: int = 1 << 20,
        refuse_colder: bool = False,
        keep: bool = False,
        on_corruption: str = "error",
        score: str = "step",
        num_shards: typing.Any = 0,
        name: str | None = "table",
        device: str | None = None,
        value_dtype: typing.Any = "float32",
        stochastic_rounding: bool = False,
        key_dtype: typing.Any = "int64",
    ) -> None:
        """Makes an empty table.

        Args:
          dim: elements of a value, 1 to 2**20.
          initializer: how the initial value of a key is computed: "constant", "uniform", "normal", "truncated_normal" (cut
            off at two deviations), "normal_between" (`lower` and `upper`), "debug" (key mod 100,000) or "matrix".
          a: the constant, the minimum (uniform), or the mean (normal, truncated_normal, normal_between).
          b: the maximum, exclusive (uniform), or the standard deviation (the normal ones).
          lower, upper: cut-offs of normal_between, None: none. The values are drawn by the inverse of the distribution.
          seed: seed of the random initializers, 0 to 2**64 - 1.
          matrix: float32 [N, dim], for "matrix": key k starts from row k mod N.
          slots: list of (name, dim, initial value): columns in addition to the value.
          filter: which keys get a row: "none" (all), "counter", "bloom" or "probabilistic".
          filter_freq: number of occurrences after which a key gets a row.
          filter_max_keys: counter: most keys that are counted, 0: no bound. When there are more, those with the lowest counts leave,
            until an eighth of the bound is free.
          filter_max_elements: bloom: expected number of keys.
          filter_false_positive: bloom: probability that a key is admitted too early.
          filter_counter_bits: bloom: bits of a counter: 8, 16, 32 or 64.
          filter_probability: probabilistic: probability that one occurrence admits a key.
          default_value_no_permission: value of every element of a key that has not been admitted.
          not_admitted: in place of that number, a dict {"kind": name of an initializer other than "matrix", "a", "b", "lower",
            "upper", "seed": as for `initializer`}.
          evaluation: such a dict: what keys without a row read in `lookup(keys, training=False)`. None: what they read in training.
          steps_to_live: if > 0, `expire` removes rows whose last update is more than this number of steps ago; with score "time",
            microseconds.
          l2_weight_threshold: if >= 0, `expire` removes rows with 0.5 * sum(value**2) below it.
          storage_type: the tiers, fastest first: a `StorageType`, or its name. Types with HBM need a `device`.
          storage_path: directory for the files of file tiers. The table makes its own directory below it.
          storage_size: bytes of row data in each tier, fastest first: an integer or a list, each > 0. A tier without a size gets
            1 GiB; the last tier without a size has no bound. HBM on the emulated device without a size gets 1 MiB.
          storage_rows: rows of each tier, in place of storage_size. The number stays when slots are added.
          initial_rows: number of rows for which the index and the addresses of rows in DRAM are made at once.
          cache_strategy: which rows leave a full tier first: "LRU", "LFU", "SCORE" (or a `CacheStrategy`), or "DEFAULT" (or None).
          drop_coldest: what happens when the last tier has a size and is full. True: its coldest rows are dropped (see
            `pop_dropped`). False: an update that needs room is refused.
          on_full: what an update does with new keys that have no room. "error": it raises ResourceExhaustedError. "warn": they get
            no row; the first time a warning is issued, and `refused` in the statistics counts them. "drop": as drop_coldest.
          dropped: what is kept of dropped rows until `pop_dropped`: "none", "keys", or "rows" (a row that leaves a file is read).
          dropped_bytes: bytes for that. The newest stay; `dropped_lost` in the statistics counts the others.
          removed_bytes: bytes of memory for `removed_since`: 16 for each key that leaves. Beyond it they go to a file in the
            storage path; a table without files forgets the oldest. 0: none.
          refuse_colder: True: when the last tier is full, a new key whose score ("LFU": frequency) is less than that of every row
            gets no row; `refused` in the statistics counts it. Needs drop_coldest and "SCORE" or "LFU". With "LFU", drop_coldest and
            fewer than 65,536 rows of DRAM, it is always so.
          keep: True: the files stay when the table is deleted, so that `open` can open it. Needs LEVELDB or SSDHASH as the last tier.
          on_corruption: what happens to a row whose record in a lower tier is damaged. "error": operations that need it raise
            DataLossError, until `remove` removes the key. "reinit": the key starts again from its initial value. "drop": the key is
            removed (see `pop_dropped`).
          score: what an update sets as the version of its rows: "step" (global_step), "time" (microseconds of the wall clock),
            "custom" (the number of the last `set_score`), or "frequency" (the step; "SCORE" goes by the frequency).
          num_shards: a power of two up to 64; 0: chosen by the table. Does not affect results.
          name: the table's name, in error messages and below the storage path.
          device: where HBM is. "emulated": on a GPU that the CPU emulates, for tests: far slower than a GPU. None: what
            the environment variable TF_MULTITIER_DEVICE names, and else a GPU, for which this build has no code.
          value_dtype: of the values in every tier: "float32", "bfloat16" or "float16". What is written is rounded to the nearest, ties
            to even. Updates compute in float32.
          stochastic_rounding: True: updates round values of 16 bits up or down at random, by the key, the table's count of applies
            and the element, so that two runs are equal.
          key_dtype: "int64", "uint64" or "uint32". Keys have this type in `Rows` and in all results. In the engine, whose messages name
            keys, a uint64 key is the int64 of the same bits.

        Raises:
          ValueError: an argument is out of range, or the storage path is not a directory.
          NotImplementedError: the storage type needs a GPU, or `keep` is True and the last tier is PMEM.
          NotFoundError: the parent of the storage path does not exist.
          EngineError: this process cannot write to the storage path.
        """
        dim = arguments.dim("dim", dim)
        self._make(
            {
                "name": arguments.text("name", name),
                "dim": dim,
                "initializer": arguments.text("initializer", initializer),
                "a": arguments.real("a", a),
                "b": arguments.real("b", b),
                "lower": arguments.real_or_none("lower", lower),
                "upper": arguments.real_or_none("upper", upper),
                "seed": arguments.integer("seed", seed, signed=False),
                "matrix": arguments.matrix("matrix", matrix, dim),
                "slots": arguments.columns("slots", slots),
                "filter": arguments.text("filter", filter),
                "filter_freq": arguments.integer("filter_freq", filter_freq, 32, signed=False),
                "filter_max_keys": arguments.integer("filter_max_keys", filter_max_keys),
                "filter_max_elements": arguments.integer(
                    "filter_max_elements", filter_max_elements
                ),
                "filter_false_positive": arguments.real(
                    "filter_false_positive", filter_false_positive
                ),
                "filter_counter_bits": arguments.integer(
                    "filter_counter_bits", filter_counter_bits, 32
                ),
                "filter_probability": arguments.real("filter_probability", filter_probability),
                "default_value_no_permission": arguments.real(
                    "default_value_no_permission", default_value_no_permission
                ),
                "not_admitted": arguments.initializer("not_admitted", not_admitted),
                "evaluation": arguments.initializer("evaluation", evaluation),
                "steps_to_live": arguments.integer("steps_to_live", steps_to_live),
                "l2_weight_threshold": arguments.real("l2_weight_threshold", l2_weight_threshold),
                "storage_type": arguments.text("storage_type", storage_type),
                "storage_path": ""
                if storage_path is None
                else arguments.path("storage_path", storage_path),
                "storage_sizes": arguments.bytes_of_tiers("storage_size", storage_size),
                "storage_rows": arguments.sizes("storage_rows", storage_rows),
                "initial_rows": arguments.integer("initial_rows", initial_rows),
                "cache_strategy": "DEFAULT"
                if cache_strategy is None
                else arguments.text("cache_strategy", cache_strategy),
                "drop_coldest": arguments.boolean("drop_coldest", drop_coldest),
                "on_full": arguments.text("on_full", on_full),
                "dropped": arguments.text("dropped", dropped),
                "dropped_bytes": arguments.integer("dropped_bytes", dropped_bytes),
                "removed_bytes": arguments.integer("removed_bytes", removed_bytes),
                "refuse_colder": arguments.boolean("refuse_colder", refuse_colder),
                "keep": arguments.boolean("keep", keep),
                "on_corruption": arguments.text("on_corruption", on_corruption),
                "score": arguments.text("score", score),
                "num_shards": arguments.shards("num_shards", num_shards),
                "device": "" if device is None else arguments.text("device", device),
                "value_dtype": value_types.name_of("value_dtype", value_dtype),
                "stochastic_rounding": arguments.boolean(
                    "stochastic_rounding", stochastic_rounding
                ),
                "key_dtype": key_types.name_of("key_dtype", key_dtype),
            }
        )

    def _make(self, options, recover=None):
        self._warns_when_full = options["on_full"] == "warn"
        self._value_dtype, self._key_dtype = options["value_dtype"], options["key_dtype"]
        files = kept.encode_options(options) if options["keep"] and recover is None else []
        options = {name: value for name, value in options.items() if name != "key_dtype"}
        self._table = _engine.Table({**options, "recover": recover, "files": files})

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

        Raises:
          NotFoundError: there is nothing at `path`.
          ValueError: there are several kept instances of that name, or `recover` is not True.
          FailedPreconditionError: a process uses the instance (the message names it), or it was not made with keep=True.
          DataLossError: a file is damaged, or a flushed file is missing, cut or replaced. The message names the file. Nothing was
            changed.
          NotImplementedError: a newer format version.
        """
        if recover is not True:
            raise ValueError(
                f"open: expected recover=True, found {recover!r}: a table begins empty, or with what is recovered"
            )
        path = arguments.path("path", path)
        if name is not None:
            path = kept.instance_of_name(path, arguments.text("name", name))
        instance = _engine.Instance(path)
        try:
            options = kept.decode_options(path)
            options["keep"] = arguments.boolean("keep", keep)
            table = cls.__new__(cls)
            with kept.as_damage(os.path.join(path, kept.OPTIONS_FILE)):
                table._make(options, instance)
        finally:
            instance.release()
        return table

    def close(self) -> None:
        """Closes the table: waits for running operations, flushes a kept table, and releases the files.

        After that, every method except `close` raises FailedPreconditionError. If the flush fails, this raises its error and the
        table stays open. Garbage collection also closes a table, but cannot report an error. At the end of the process a table may
        not be closed.
        """
        self._table.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def path(self) -> str | None:
        """The instance directory, below the storage path. None if no tier has files."""
        return self._table.path or None

    @property
    def recovery(self) -> typing.Any:
        """The state of the last tier's files when `open` read them. None if the table was not opened with `open`.

        A dict:
          files: number of files with records. For LEVELDB: the manifest, the logs that it needs, and the table files.
          listed_files: how many of them the tier's list of synced files names.
          unsealed_files: SSDHASH: how many of them the process left open when it died.
          lost_headers: SSDHASH: how many of them lost their header.
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
            return value_types.as_type(values, self._value_dtype)
        return value_types.as_type(values, value_types.name_of("output_dtype", output_dtype))

    def lookup(
        self, keys: npt.ArrayLike, training: bool = True, output_dtype: typing.Any = None
    ) -> np.ndarray:
        """The values of `keys` (integers [n]): [n, dim]. A key without a row reads as its initial value.

        With a filter it reads as a key that is not admitted; with training=False as `evaluation` says, if it was given.

        Args:
          keys: integers [n].
          training: False: for evaluation.
          output_dtype: of the result: "float32", "bfloat16" or "float16". None: `value_dtype`.
        """
        keys = self._keys(keys)
        found = self._table.lookup(keys, arguments.boolean("training", training))
        return self._typed(found, output_dtype)

    def peek(self, keys: npt.ArrayLike, output_dtype: typing.Any = None) -> np.ndarray:
        """Reads values without side effects: [n, dim], the same values as `lookup`.

        No row moves between tiers, no row counts as used, and the statistics of lookups do not change. For tools that inspect a
        table without changing which rows it keeps in memory.
        """
        return self._typed(self._table.peek(self._keys(keys)), output_dtype)

    def apply(
        self,
        rule: str,
        keys: typing.Any,
        grads: typing.Any,
        counts: typing.Any = None,
        hyper: dict[str, float] | None = None,
        slots: typing.Any = None,
        global_step: typing.Any = -1,
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
        slots, missing = self._slot_columns(rule, spec, slots)
        if missing:
            self._table.add_slots(missing)
        refused = self._table.apply(rule, keys, grads, counts, values, slots, global_step)
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
        """Removes the rows that are expired at global step `step`, by steps_to_live or l2_weight_threshold. Returns their number."""
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
        """Statistics as a dict; "tiers" is a list with one dict per tier. docs/operations.md, "Statistics", describes all fields."""
        return json.loads(self._table.stats_json())
