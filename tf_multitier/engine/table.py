"""The table."""

from __future__ import annotations

import collections.abc
import json
import numbers
import os
import typing

import numpy.typing as npt

import numpy as np

from tf_multitier import _engine
from tf_multitier.engine import arguments
from tf_multitier.engine import kept
from tf_multitier.engine import rules
from tf_multitier.engine.rows import Rows


class Table:
    """A hash table from int64 keys to rows [value | slot 1 | ... | slot n] of float32.

    A lookup never creates a key; an update does. Thread-safe: every method, from any thread; the GIL is released meanwhile.

    Beside what each method says, all raise FailedPreconditionError of a table that is closed or in a forked child; those that take
    keys ValueError where these are no integers [n]; those that read rows DataLossError, naming key and file, of a damaged record
    (see on_corruption), and EngineError where a tier cannot be read.
    """

    def __init__(
        self,
        dim: int,
        initializer: typing.Any = "constant",
        a: typing.Any = 0.0,
        b: typing.Any = 0.0,
        seed: typing.Any = 0,
        matrix: typing.Any = None,
        slots: typing.Any = (),
        filter: typing.Any = "none",
        filter_freq: int = 0,
        filter_max_elements: typing.Any = 0,
        filter_false_positive: typing.Any = 0.01,
        filter_counter_bits: typing.Any = 32,
        filter_probability: typing.Any = 1.0,
        default_value_no_permission: float = 0.0,
        steps_to_live: int | None = 0,
        l2_weight_threshold: float = -1.0,
        storage_type: str = "DRAM",
        storage_path: str | None = None,
        storage_size: collections.abc.Sequence[int] | None = (),
        cache_strategy: str = "DEFAULT",
        drop_coldest: bool = False,
        keep: bool = False,
        on_corruption: str = "error",
        num_shards: typing.Any = 0,
        name: str | None = "table",
    ) -> None:
        """Makes an empty table.

        Args:
          dim: elements of a value, 1 to 2**20.
          initializer: "constant", "uniform", "normal", "truncated_normal" or "matrix": the initial value of a key.
          a: the constant, the minimum, or the mean.
          b: the maximum (exclusive), or the standard deviation.
          seed: of the random initializers, 0 to 2**64 - 1.
          matrix: float32 [N, dim] for "matrix": key k starts from row k mod N.
          slots: list of (name, dim, initial value): columns beside the value.
          filter: "none", "counter", "bloom" or "probabilistic": which keys get a row.
          filter_freq: occurrences after which a key gets a row.
          filter_max_elements: bloom: number of keys expected.
          filter_false_positive: bloom: probability to admit a key early.
          filter_counter_bits: bloom: 8, 16, 32 or 64.
          filter_probability: probabilistic: probability that one occurrence admits a key.
          default_value_no_permission: what the elements of a key that has not been admitted read as.
          steps_to_live: > 0: `expire` removes rows that many steps after their last update.
          l2_weight_threshold: >= 0: `expire` removes rows with 0.5 * ||value||**2 below it.
          storage_type: a `StorageType` without HBM, or its name: the tiers, fastest first.
          storage_path: directory of the tiers that keep files; the table makes one of its own below it.
          storage_size: bytes of row data in each tier, fastest first: an integer or a list of them, each > 0. One that is missing
            is 1 GiB, of the last tier: unbounded.
          cache_strategy: "LRU", "LFU" (or the `CacheStrategy`), or "DEFAULT" (or None): which rows leave a tier first.
          drop_coldest: whether a last tier of a given size drops its coldest rows when it is full (see `pop_dropped`); else an
            update that needs room is refused.
          keep: whether the files stay when the table goes, so that `open` makes it again. Needs LEVELDB or SSDHASH as the last
            tier.
          on_corruption: what becomes of a row whose record in a lower tier is damaged: "error" (operations that need it raise
            DataLossError; `remove` removes it), "reinit" (it starts anew) or "drop" (it is removed, see `pop_dropped`).
          num_shards: a power of two up to 64; 0: chosen by the table. Changes no result.
          name: for messages.

        Raises:
          ValueError: an argument is out of range, or the storage path is no directory.
          NotImplementedError: the storage type needs a GPU; or `keep` with PMEM as the last tier.
          NotFoundError: the storage path's parent does not exist.
          EngineError: the storage path may not be written.
        """
        if matrix is not None:
            matrix = arguments.floats("matrix", matrix, [len(matrix), dim])
        self._make(
            {
                "name": arguments.text("name", name),
                "dim": arguments.integer("dim", dim, 32),
                "initializer": arguments.text("initializer", initializer),
                "a": arguments.real("a", a),
                "b": arguments.real("b", b),
                "seed": arguments.integer("seed", seed, signed=False),
                "matrix": matrix,
                "slots": arguments.columns(slots),
                "filter": arguments.text("filter", filter),
                "filter_freq": arguments.integer("filter_freq", filter_freq, 32, signed=False),
                "filter_max_elements": arguments.integer("filter_max_elements", filter_max_elements),
                "filter_false_positive": arguments.real("filter_false_positive", filter_false_positive),
                "filter_counter_bits": arguments.integer("filter_counter_bits", filter_counter_bits, 32),
                "filter_probability": arguments.real("filter_probability", filter_probability),
                "default_value_no_permission": arguments.real("default_value_no_permission", default_value_no_permission),
                "steps_to_live": arguments.integer("steps_to_live", steps_to_live),
                "l2_weight_threshold": arguments.real("l2_weight_threshold", l2_weight_threshold),
                "storage_type": arguments.text("storage_type", storage_type),
                "storage_path": "" if storage_path is None else os.fspath(storage_path),
                "storage_sizes": arguments.sizes("storage_sizes", storage_size),
                "cache_strategy": "DEFAULT" if cache_strategy is None else arguments.text("cache_strategy", cache_strategy),
                "drop_coldest": arguments.boolean("drop_coldest", drop_coldest),
                "keep": arguments.boolean("keep", keep),
                "on_corruption": arguments.text("on_corruption", on_corruption),
                "num_shards": arguments.integer("num_shards", num_shards, 32),
            }
        )

    def _make(self, options, recover=None):
        files = kept.encode_options(options) if options["keep"] and recover is None else []
        self._table = _engine.Table({**options, "recover": recover, "files": files})

    @classmethod
    def open(cls, path: str, name: str | None = None, recover: bool = True, keep: bool = True) -> Table:
        """Makes the table again that an instance directory holds, with the options and columns that it had.

        The table's process may have closed it, or have died. Each key has its newest row that was acknowledged, or one that is
        newer: acknowledged is what was done before a `flush` or `close` that returned, and what the last tier has written and
        synced by itself since. Keys removed before are absent. What is not there: keys that a filter had counted and not
        admitted, a Bloom filter's counts, and how recently rows were used.

        Args:
          path: the instance directory (`Table.path`), or, with `name`, the storage path.
          name: the table's name; there must be exactly one instance of it that was kept.
          recover: True: says that rows may be older than memory was when the process died.
          keep: whether the files stay when the table goes. False: they go with it.

        Raises:
          NotFoundError: there is nothing at `path`.
          ValueError: there are several instances of that name; or `recover` is not True.
          FailedPreconditionError: the instance is in use (names the process), or was not made with keep=True.
          DataLossError: a file is damaged, or one that was flushed is missing, cut or another one (names it); nothing was changed.
          NotImplementedError: a newer format.
        """
        if recover is not True:
            raise ValueError(f"open: expected recover=True, found {recover!r}: a table begins empty, or with what is recovered")
        path = os.fspath(path) if name is None else kept.instance_of_name(path, name)
        instance = _engine.Instance(path)
        try:
            options = kept.decode_options(path)
            options["keep"] = arguments.boolean("keep", keep)
            table = cls.__new__(cls)
            table._make(options, instance)
        finally:
            instance.release()
        return table

    def close(self) -> None:
        """Ends the table: waits for running operations, flushes it where its files stay, and lets go of them.

        Every later call but this raises FailedPreconditionError. An error of the flush is raised, and the table stays open. A
        table that is not closed is when it is garbage collected, where nobody sees such an error; not for sure at the end of the
        process.
        """
        self._table.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def path(self) -> str | None:
        """The instance directory, below the storage path; None where no tier keeps files."""
        return self._table.path or None

    @property
    def recovery(self) -> typing.Any:
        """What `open` found in the files of SSDHASH; None for a table that was not opened, zeros for LEVELDB.

        A dict: `files` with records; of them `listed_files`, which the tier's list of synced files names, `unsealed_files`, which a
        process left open when it died, and `lost_headers`; `records` in them, older ones and removals included; `damaged_records`,
        which no flush had acknowledged and which do not read; `first_damage`, the file and offset of the first of those, or '';
        `rows` that the table began with.
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
        """The row's columns: a list of (name, dim, initial value), the value first."""
        return self._table.columns()

    def lookup(self, keys: npt.ArrayLike) -> np.ndarray:
        """The values of `keys` (integers [n]): float32 [n, dim]. An absent key reads as its initial value."""
        return self._table.lookup(arguments.integers("keys", keys))

    def peek(self, keys: npt.ArrayLike) -> np.ndarray:
        """What `lookup` gives, float32 [n, dim], and nothing else: no row moves between tiers, none counts as used, and statistics
        of lookups stay as they are. For tools that look into a table without changing what it keeps in memory.
        """
        return self._table.peek(arguments.integers("keys", keys))

    def apply(self, rule: str, keys: typing.Any, grads: typing.Any, counts: typing.Any = None, hyper: dict[str, float] | None = None, slots: typing.Any = None, global_step: typing.Any = -1) -> None:
        """Updates every distinct key once, with the sum of its gradients; absent keys get a row first.

        Args:
          rule: name of the update rule, see `update_rules`.
          keys: integers [n], repeats allowed.
          grads: [n, dim].
          counts: integers [n], occurrences that each entry stands for; None: one each.
          hyper: dict with exactly the rule's hyperparameters.
          slots: names of the columns that serve as the rule's slots, in its order; None: the rule's own names. Columns that do not
            exist are added, with the rule's default initial value.
          global_step: version to give the rows; -1: the table's own count of applies.

        Raises:
          ValueError: an argument does not fit; nothing has changed.
          ResourceExhaustedError: no room for the new rows; nothing has changed.
        """
        spec, values = rules.rule_and_hyper(rule, hyper)
        keys = arguments.integers("keys", keys)
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
        self._table.apply(rule, keys, grads, counts, values, slots, global_step)

    def _slot_columns(self, rule, spec, slots):
        """(names of the columns that serve as a rule's slots, those of them that do not exist yet as `add_slots` takes them)."""
        slots = [name for name, _, _ in spec["slots"]] if slots is None else arguments.names(f"slots of {rule}", slots)
        n, (value, *_) = len(spec["slots"]), self.columns[0]
        if len(slots) != n or len(set(slots)) != n or value in slots:
            raise ValueError(f"slots of {rule}: expected {n} different names, none '{value}', found {slots}")
        dims = {name: dim for name, dim, _ in self.columns}
        missing = []
        for name, (_, per_row, initial_value) in zip(slots, spec["slots"]):
            dim = 1 if per_row else self.dim
            if name not in dims:
                missing.append((name, dim, initial_value))
            elif dims[name] != dim:
                raise ValueError(f"slots of {rule}: expected column '{name}' of table '{self.name}' to have dim {dim}, found "
                                 f"{dims[name]}")
        return slots, missing

    def add_slots(self, slots: typing.Any) -> None:
        """Makes sure the columns `slots`, a list of (name, dim, initial value), exist.

        Raises:
          AlreadyExistsError: a column of that name has another dim.
        """
        self._table.add_slots(arguments.columns(slots))

    def frequency(self, keys: npt.ArrayLike) -> np.ndarray:
        """Occurrences of each key trained on: int64 [n]; 0 without a row, or the count of a key that a filter counts."""
        return self._table.frequency(arguments.integers("keys", keys))

    def version(self, keys: npt.ArrayLike) -> np.ndarray:
        """Step of the last update of each key: int64 [n]; -1 without a row."""
        return self._table.version(arguments.integers("keys", keys))

    def lookup_tier(self, keys: npt.ArrayLike) -> np.ndarray:
        """The tier of each key: int32 [n]; 0 the first that the storage type names, and so on; -1 without a row."""
        return self._table.lookup_tier(arguments.integers("keys", keys))

    def remove(self, keys: npt.ArrayLike) -> int:
        """Forgets keys; gives how many of them had a row.

        Keys of damaged rows are forgotten, too. Where a tier cannot record the removal, it is told again later: until then `drain`
        and `flush` raise its error.
        """
        return self._table.remove(arguments.integers("keys", keys))

    def expire(self, step: typing.Any) -> int:
        """Removes the rows that steps_to_live and l2_weight_threshold call expired at `step`; gives how many."""
        return self._table.expire(arguments.integer("step", step))

    def clear(self) -> None:
        """Removes every key, in all tiers, and what filters have counted. Columns stay."""
        self._table.clear()

    def export(self, all_columns: bool = True) -> Rows:
        """Everything in the table as of one moment, in any order: `Rows`. all_columns False: the value column only."""
        return Rows(**self._table.export(bool(all_columns)))

    def scan(self, cursor: int = 0, max_rows: int = 65536, all_columns: bool = True) -> tuple[Rows, int]:
        """About max_rows rows (at most a bucket more) from `cursor` on: (`Rows`, next cursor), the next cursor 0 at the end.

        A key that is present from the first call to the last is given exactly once; others may be.
        """
        cursor, max_rows = arguments.integer("cursor", cursor, signed=False), arguments.integer("max_rows", max_rows)
        rows, following = self._table.scan(cursor, max_rows, bool(all_columns))
        return Rows(**rows), following

    def import_rows(self, rows: Rows) -> None:
        """Sets rows and counted keys, replacing what a key had. Columns that `rows` lacks get their initial value.

        Raises:
          ValueError: the value's dim is another, or sizes differ.
        """
        columns = arguments.columns(rows.columns)
        elements = sum(dim for _, dim, _ in columns)
        arrays = {"columns": columns, "data": arguments.floats("data", rows.data, [len(rows.keys), elements])}
        for name in ("keys", "frequencies", "versions"):
            arrays[name] = arguments.integers(name, getattr(rows, name))
            if len(arrays[name]) != len(rows.keys):
                raise ValueError(f"{name}: expected shape [{len(rows.keys)}], found [{len(arrays[name])}]")
        for name in ("counted_keys", "counted_frequencies", "counted_versions"):
            arrays[name] = arguments.integers(name, getattr(rows, name))
            if len(arrays[name]) != len(rows.counted_keys):
                raise ValueError(f"{name}: expected shape [{len(rows.counted_keys)}], found [{len(arrays[name])}]")
        self._table.import_rows(arrays)

    def total_count(self) -> int:
        """Number of keys that have a row."""
        return self._table.total_count()

    def __len__(self):
        return self.total_count()

    def stats(self) -> dict:
        """Statistics as a dict: counts since the table was made, gauges as of now, "tiers": a list with one dict a tier."""
        return json.loads(self._table.stats_json())

    def flush(self) -> None:
        """Makes durable what was done before: writes rows that are only in memory to the last tier, and syncs it. They stay in
        memory too. Other operations run on meanwhile, but where the last tier's size is given.

        Raises:
          FailedPreconditionError: the last tier does not survive its process: DRAM, PMEM, or LEVELDB without keep=True.
          ResourceExhaustedError: the disk is full; nothing is lost.
        """
        self._table.flush()

    def set_budget(self, size: typing.Any) -> None:
        """Changes how many bytes of row data DRAM, or PMEM alone, may hold: storage_size[0], from now on.

        A larger budget holds at once. A smaller one the background brings about beside training, `drain` waits for it, and
        `stats()["tiers"][0]` shows how far it is. Memory that was taken stays the table's, for rows to come. `Table.open` begins with the
        size that the table was made with.

        Args:
          size: bytes, an integer of at least one row.

        Raises:
          ValueError: size is less than one row.
          FailedPreconditionError: the table was made without a size for DRAM.
          ResourceExhaustedError: rows would have nowhere to go: no tier below, or one of given size that drops nothing.
        """
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise TypeError(f"size: expected an integer number of bytes, found {size!r}")
        size = int(size)
        if not 0 < size < 2**63:
            raise ValueError(f"size: expected 1 to 2**63 - 1 bytes, found {size}")
        self._table.set_budget(int(size))

    def compact(self) -> None:
        """Gives disk space of removed and superseded rows back at once, which the tiers otherwise do only as far as writes make it
        necessary. Other operations run on meanwhile; it reads and writes up to all that is stored.

        Raises:
          ResourceExhaustedError: the disk has no room for what has to be moved first; nothing is lost.
        """
        self._table.compact()

    def drain(self) -> None:
        """Waits until the background work due now is done; raises its error where it failed."""
        self._table.drain()

    def prefetch(self, keys: npt.ArrayLike, timeout: float = 10.0) -> int:
        """Brings rows of `keys` (integers [n]) up into DRAM and keeps them there until their next use, at most `timeout` seconds.

        A hint: it creates no key, and keeps no more than a quarter of the DRAM budget. A row that is kept already stays until
        the later of the two times; its next use ends both. Gives how many rows are kept now that were not kept before.
        """
        if not 0 <= timeout <= 1e9:
            raise ValueError(f"timeout: expected 0 to 1e9 seconds, found {timeout}")
        return self._table.prefetch(arguments.integers("keys", keys), int(timeout * 1e6))

    def release_prefetched(self) -> None:
        """Lets go all rows that `prefetch` keeps."""
        self._table.release_prefetched()

    def pop_dropped(self) -> np.ndarray:
        """Keys that a full last tier has dropped since the last call (see drop_coldest): int64 [n], at most the newest 2**20."""
        return self._table.pop_dropped()
