"""The embedding table engine from NumPy: what the TensorFlow ops are made of, for tests and tools.

    from tf_multitier import engine

    table = engine.Table(dim=8, initializer="uniform", a=-0.1, b=0.1, seed=1)
    table.add_slots([("accumulator", 8, 0.1)])
    table.apply("adagrad", keys=[5, 7, 5], grads=np.ones((3, 8)), hyper={"learning_rate": 0.1}, slots=["accumulator"])
    table.lookup([5, 6])  # float32 [2, 8]; 6 reads as its initial value

A table whose tiers keep files may outlive its process:

    with engine.Table(dim=8, storage_type="DRAM_SSDHASH", storage_path="/data", storage_size=[1 << 30], keep=True) as table:
        path = table.path
        ...
        table.flush()  # what was done before survives a crash from here on
    table = engine.Table.open(path, recover=True)

Failures are Python exceptions: ValueError (an argument), KeyError (not found), NotImplementedError, and EngineError with its
subclasses ResourceExhaustedError (also a MemoryError), AlreadyExistsError (also a ValueError), FailedPreconditionError and
DataLossError.
"""

import dataclasses
import json
import os
import zlib

import numpy as np

from tf_multitier import _engine
from tf_multitier._engine import (
    AlreadyExistsError,
    DataLossError,
    EngineError,
    FailedPreconditionError,
    ResourceExhaustedError,
)

__all__ = [
    "AlreadyExistsError",
    "DataLossError",
    "EngineError",
    "FailedPreconditionError",
    "Group",
    "ResourceExhaustedError",
    "Rows",
    "Rule",
    "Salvaged",
    "Table",
    "salvage",
    "update_rules",
]


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule.

    Attributes:
      name: canonical name, as `Table.apply` takes it.
      slots: tuple of (name, per_row, default initial value); per_row slots have one element a row, others `dim`.
      hyperparameters: names of the scalars that every apply passes, in order.
    """

    name: str
    slots: tuple
    hyperparameters: tuple


def update_rules():
    """All update rules: a dict from name to `Rule`."""
    return {
        name: Rule(name, tuple(entry["slots"]), tuple(entry["hyperparameters"]))
        for name, entry in _engine.update_rules().items()
    }


def _no_keys():
    return np.zeros(0, np.int64)


@dataclasses.dataclass
class Rows:
    """Rows outside a table: what `Table.export` and `Table.scan` give and `Table.import_rows` takes.

    Attributes:
      columns: list of (name, dim, initial value), the value column first.
      keys: int64 [n].
      frequencies: int64 [n], occurrences trained on.
      versions: int64 [n], step of the last update.
      data: float32 [n, sum of the columns' dims], columns side by side.
      counted_keys: int64 [m], keys that a counter filter counts and has not admitted.
      counted_frequencies: int64 [m].
      counted_versions: int64 [m].
    """

    columns: list
    keys: np.ndarray
    frequencies: np.ndarray
    versions: np.ndarray
    data: np.ndarray
    counted_keys: np.ndarray = dataclasses.field(default_factory=_no_keys)
    counted_frequencies: np.ndarray = dataclasses.field(default_factory=_no_keys)
    counted_versions: np.ndarray = dataclasses.field(default_factory=_no_keys)

    def __len__(self):
        return len(self.keys)

    def column(self, name):
        """The named column of every row: float32 [n, its dim], a view. KeyError where there is none such."""
        begin = 0
        for column, dim, _ in self.columns:
            if column == name:
                return self.data[:, begin : begin + dim]
            begin += dim
        raise KeyError(f"no column {name!r} among {[column for column, _, _ in self.columns]}")


# The options of a kept table, in its instance directory (docs/formats/instance.md): a line "multitier-table <format version>
# <crc32 of the rest, 8 hex digits>", then a JSON object. The matrix of an initializer is a file of its own.
_OPTIONS_FILE = "instance.table"
_MATRIX_FILE = "instance.matrix"
_OPTIONS_VERSION = 1


def _encode_options(options):
    """The files that hold `options`: a list of (name, bytes)."""
    options = dict(options)
    files = []
    matrix = options.pop("matrix")
    if matrix is not None:
        data = matrix.astype("<f4").tobytes()
        options["matrix"] = {"shape": list(matrix.shape), "crc32": zlib.crc32(data)}
        files.append((_MATRIX_FILE, data))
    text = json.dumps(options, indent=1).encode() + b"\n"
    files.append((_OPTIONS_FILE, b"multitier-table %d %08x\n" % (_OPTIONS_VERSION, zlib.crc32(text)) + text))
    return files


def _decode_options(path):
    """What `_encode_options` wrote in the instance directory `path`."""
    name = os.path.join(path, _OPTIONS_FILE)
    try:
        with open(name, "rb") as file:
            head, _, text = file.read().partition(b"\n")
    except FileNotFoundError:
        raise FailedPreconditionError(
            f"open of '{path}': {_OPTIONS_FILE} is missing: no engine.Table with keep=True made it"
        ) from None
    fields = head.split()
    if len(fields) != 3 or fields[0] != b"multitier-table" or not fields[1].isdigit():
        raise DataLossError(f"'{name}' at offset 0 is damaged")
    if int(fields[1]) > _OPTIONS_VERSION:
        raise NotImplementedError(
            f"'{name}' has format version {int(fields[1])}, this program reads up to {_OPTIONS_VERSION}"
        )
    if b"%08x" % zlib.crc32(text) != fields[2]:
        raise DataLossError(f"'{name}' at offset {len(head) + 1}: checksum does not match")
    options = json.loads(text)
    options["slots"] = _columns(options["slots"])
    matrix = options.setdefault("matrix", None)
    if matrix is not None:
        name = os.path.join(path, _MATRIX_FILE)
        try:
            with open(name, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise DataLossError(f"'{name}' is missing") from None
        if zlib.crc32(data) != matrix["crc32"]:
            raise DataLossError(f"'{name}' at offset 0: checksum does not match")
        options["matrix"] = np.frombuffer(data, "<f4").reshape(matrix["shape"]).astype(np.float32)
    return options


def _instance_of_name(storage_path, name):
    """The one kept instance of the table `name` below a storage path."""
    directory = _engine.path_of_name(os.fspath(storage_path), name)
    found = []
    if os.path.isdir(directory):
        found = sorted(i for i in os.listdir(directory) if os.path.exists(os.path.join(directory, i, _OPTIONS_FILE)))
    if not found:
        raise KeyError(f"open of table '{name}': no kept instance in '{directory}'")
    if len(found) > 1:
        raise ValueError(f"open of table '{name}': expected one kept instance in '{directory}', found {', '.join(found)}")
    return os.path.join(directory, found[0])


def _integers(name, values):
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max):
        raise ValueError(f"{name}: expected integers that fit int64, found {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape [n], found {list(array.shape)}")
    return np.ascontiguousarray(array, np.int64)


def _floats(name, values, shape):
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected numbers, found {array.dtype}")
    if list(array.shape) != list(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, found {list(array.shape)}")
    return np.ascontiguousarray(array, np.float32)


def _columns(columns):
    return [(str(name), int(dim), float(initial_value)) for name, dim, initial_value in columns]


def _rule_and_hyper(rule, hyper):
    """What `_engine.update_rules` says of a rule, and its hyperparameters in its order."""
    rules = _engine.update_rules()
    if rule not in rules:
        raise ValueError(f"rule: expected one of {', '.join(sorted(rules))}; found {rule!r}")
    spec = rules[rule]
    hyper = dict(hyper or {})
    if sorted(hyper) != sorted(spec["hyperparameters"]):
        raise ValueError(f"hyper of {rule}: expected {spec['hyperparameters']}, found {sorted(hyper)}")
    return spec, [float(hyper[name]) for name in spec["hyperparameters"]]


class Group:
    """One lookup in many tables, pooled by row, and the update that follows it.

        group = engine.Group([users, items], [user_ids, item_ids], [user_splits, item_splits], combiners="mean", train=True)
        group.values                                             # list of float32 [batch, dim]
        group.apply("sgd", grads, hyper={"learning_rate": 0.1})  # grads: a gradient of each of the values

    Each member gets what it would get alone. Distinct keys are read once, and updated once, with the sum of their gradients,
    without another search for them. Attributes: `values`; with train, `keys` and `counts`: lists of the members' distinct keys and
    occurrences, int64.
    """

    def __init__(self, tables, keys, row_splits=None, combiners="sum", weights=None, max_norms=None, train=False):
        """Looks up.

        Args:
          tables: list of `Table`. With train each table once: join its keys.
          keys: list of integers [n], one a member.
          row_splits: list of integers [batch + 1], rising from 0 to n: which keys each row pools; None: every key is a row.
          combiners: list of "sum", "mean" or "sqrtn", or one for all.
          weights: list of floats [n] or None, or None: all one.
          max_norms: list of numbers or None, or None: values with a larger norm are scaled down to it.
          train: whether `apply` will be called.

        Raises:
          ValueError: naming the member: lists or arrays that do not fit each other, an unknown combiner.
        """
        n = len(tables)
        splits = [None] * n if row_splits is None else list(row_splits)
        combiners = [combiners] * n if isinstance(combiners, str) else list(combiners)
        weights = [None] * n if weights is None else list(weights)
        max_norms = [None] * n if max_norms is None else list(max_norms)
        for name, values in (("keys", keys), ("row_splits", splits), ("combiners", combiners), ("weights", weights),
                             ("max_norms", max_norms)):
            if len(values) != n:
                raise ValueError(f"{name}: expected one for each of {n} tables, found {len(values)}")
        if train and len({id(table) for table in tables}) != n:
            raise ValueError("tables: a table may be there once where train is set: join its keys")
        keys = [_integers(f"keys of member {i}", k) for i, k in enumerate(keys)]
        splits = [np.arange(len(k) + 1) if s is None else s for k, s in zip(keys, splits)]
        splits = [_integers(f"row_splits of member {i}", s) for i, s in enumerate(splits)]
        for i, s in enumerate(splits):
            if len(s) < 1:
                raise ValueError(f"row_splits of member {i}: expected at least one number, found none")
        weights = [None if w is None else _floats(f"weights of member {i}", w, [len(k)])
                   for i, (w, k) in enumerate(zip(weights, keys))]
        self._tables = list(tables)
        self._group = _engine.Group([table._table for table in tables], keys, splits, combiners, weights,
                                    [-1.0 if m is None else float(m) for m in max_norms], bool(train))
        self._rows = [len(s) - 1 for s in splits]
        self._train = bool(train)
        self.values = self._group.values()
        self.keys = [self._group.keys(i) for i in range(n)] if train else None
        self.counts = [self._group.counts(i) for i in range(n)] if train else None

    def apply(self, rule, grads, hyper=None, slots=None, global_step=-1):
        """Updates every table, one after the other, each wholly or not at all.

        Args:
          grads: list of [batch, dim], the gradients of `values`.
          rule, hyper, slots, global_step: see `Table.apply`; slots: the same names in every table.

        Raises:
          ValueError: an argument does not fit, or the group was made without train; nothing has changed.
          ResourceExhaustedError: no room for a table's new rows; that table and those after it have not changed.
        """
        if not self._train:
            raise ValueError("apply: the group was looked up without train=True")
        spec, values = _rule_and_hyper(rule, hyper)
        if len(grads) != len(self._tables):
            raise ValueError(f"grads: expected one for each of {len(self._tables)} tables, found {len(grads)}")
        grads = [_floats(f"grads of member {i}", g, [rows, table.dim])
                 for i, (g, rows, table) in enumerate(zip(grads, self._rows, self._tables))]
        slots = [table._ensure_slots(rule, spec, slots) for table in self._tables]
        self._group.apply(rule, grads, values, slots, int(global_step))


class Table:
    """A hash table from int64 keys to rows [value | slot 1 | ... | slot n] of float32.

    A lookup never creates a key; an update does. Thread-safe: every method, from any thread; the GIL is released meanwhile.
    """

    def __init__(
        self,
        dim,
        initializer="constant",
        a=0.0,
        b=0.0,
        seed=0,
        matrix=None,
        slots=(),
        filter="none",
        filter_freq=0,
        filter_max_elements=0,
        filter_false_positive=0.01,
        filter_counter_bits=32,
        filter_probability=1.0,
        default_value_no_permission=0.0,
        steps_to_live=0,
        l2_weight_threshold=-1.0,
        storage_type="DRAM",
        storage_path=None,
        storage_size=(),
        cache_strategy="DEFAULT",
        drop_coldest=False,
        keep=False,
        on_corruption="error",
        num_shards=0,
        name="table",
    ):
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
          storage_type: name of a `StorageType` without HBM: the tiers, fastest first.
          storage_path: directory of the tiers that keep files; the table makes one of its own below it.
          storage_size: list of bytes of row data in each tier, fastest first, each > 0. One that is missing is 1 GiB, of the last
            tier: unbounded.
          cache_strategy: "DEFAULT", "LRU" or "LFU": which rows leave a tier first.
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
          KeyError: the storage path's parent does not exist.
          EngineError: the storage path may not be written.
        """
        if matrix is not None:
            matrix = _floats("matrix", matrix, [len(matrix), dim])
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed: expected 0 to 2**64 - 1, found {seed}")
        if filter_freq < 0:
            raise ValueError(f"filter_freq: expected at least 0, found {filter_freq}")
        self._make(
            {
                "name": name,
                "dim": int(dim),
                "initializer": initializer,
                "a": float(a),
                "b": float(b),
                "seed": int(seed),
                "matrix": matrix,
                "slots": _columns(slots),
                "filter": filter,
                "filter_freq": int(filter_freq),
                "filter_max_elements": int(filter_max_elements),
                "filter_false_positive": float(filter_false_positive),
                "filter_counter_bits": int(filter_counter_bits),
                "filter_probability": float(filter_probability),
                "default_value_no_permission": float(default_value_no_permission),
                "steps_to_live": int(steps_to_live),
                "l2_weight_threshold": float(l2_weight_threshold),
                "storage_type": storage_type,
                "storage_path": "" if storage_path is None else os.fspath(storage_path),
                "storage_sizes": [int(size) for size in storage_size],
                "cache_strategy": cache_strategy,
                "drop_coldest": bool(drop_coldest),
                "keep": bool(keep),
                "on_corruption": on_corruption,
                "num_shards": int(num_shards),
            }
        )

    def _make(self, options, recover=None):
        files = _encode_options(options) if options["keep"] and recover is None else []
        self._table = _engine.Table({**options, "recover": recover, "files": files})

    @classmethod
    def open(cls, path, name=None, recover=True, keep=True):
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
          KeyError: there is nothing at `path`.
          ValueError: there are several instances of that name; or `recover` is not True.
          FailedPreconditionError: the instance is in use (names the process), or was not made with keep=True.
          DataLossError: a file is damaged (names it); nothing was changed.
          NotImplementedError: a newer format.
        """
        if recover is not True:
            raise ValueError(f"open: expected recover=True, found {recover!r}: a table begins empty, or with what is recovered")
        path = os.fspath(path) if name is None else _instance_of_name(path, name)
        instance = _engine.Instance(path)
        try:
            options = _decode_options(path)
            options["keep"] = bool(keep)
            table = cls.__new__(cls)
            table._make(options, instance)
        finally:
            instance.release()
        return table

    def close(self):
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
    def path(self):
        """The instance directory, below the storage path; None where no tier keeps files."""
        return self._table.path or None

    @property
    def dim(self):
        """Elements of a value."""
        return self._table.dim

    @property
    def name(self):
        """The table's name."""
        return self._table.name

    @property
    def columns(self):
        """The row's columns: a list of (name, dim, initial value), the value first."""
        return self._table.columns()

    def lookup(self, keys):
        """The values of `keys` (integers [n]): float32 [n, dim]. An absent key reads as its initial value."""
        return self._table.lookup(_integers("keys", keys))

    def apply(self, rule, keys, grads, counts=None, hyper=None, slots=None, global_step=-1):
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
        spec, values = _rule_and_hyper(rule, hyper)
        keys = _integers("keys", keys)
        grads = _floats("grads", grads, [len(keys), self.dim])
        if counts is not None:
            counts = _integers("counts", counts)
            if len(counts) != len(keys):
                raise ValueError(f"counts: expected shape [{len(keys)}], found [{len(counts)}]")
        slots = self._ensure_slots(rule, spec, slots)
        self._table.apply(rule, keys, grads, counts, values, slots, int(global_step))

    def _ensure_slots(self, rule, spec, slots):
        """The names of the columns that serve as a rule's slots, which exist from then on."""
        slots = [name for name, _, _ in spec["slots"]] if slots is None else list(slots)
        if len(slots) != len(spec["slots"]):
            raise ValueError(f"slots of {rule}: expected {len(spec['slots'])} column names, found {slots}")
        known = {name for name, _, _ in self.columns}
        missing = [
            (name, 1 if per_row else self.dim, initial_value)
            for name, (_, per_row, initial_value) in zip(slots, spec["slots"])
            if name not in known
        ]
        if missing:
            self._table.add_slots(missing)
        return slots

    def add_slots(self, slots):
        """Makes sure the columns `slots`, a list of (name, dim, initial value), exist.

        Raises:
          AlreadyExistsError: a column of that name has another dim.
        """
        self._table.add_slots(_columns(slots))

    def frequency(self, keys):
        """Occurrences of each key trained on: int64 [n]; 0 without a row, or the count of a key that a filter counts."""
        return self._table.frequency(_integers("keys", keys))

    def version(self, keys):
        """Step of the last update of each key: int64 [n]; -1 without a row."""
        return self._table.version(_integers("keys", keys))

    def lookup_tier(self, keys):
        """The tier of each key: int32 [n]; 0 the first that the storage type names, and so on; -1 without a row."""
        return self._table.lookup_tier(_integers("keys", keys))

    def remove(self, keys):
        """Forgets keys; gives how many of them had a row."""
        return self._table.remove(_integers("keys", keys))

    def expire(self, step):
        """Removes the rows that steps_to_live and l2_weight_threshold call expired at `step`; gives how many."""
        return self._table.expire(int(step))

    def clear(self):
        """Removes every key."""
        self._table.clear()

    def export(self, all_columns=True):
        """Everything in the table as of one moment, in any order: `Rows`. all_columns False: the value column only."""
        return Rows(**self._table.export(bool(all_columns)))

    def scan(self, cursor=0, max_rows=65536, all_columns=True):
        """About max_rows rows (at most a bucket more) from `cursor` on: (`Rows`, next cursor), the next cursor 0 at the end.

        A key that is present from the first call to the last is given exactly once; others may be.
        """
        rows, following = self._table.scan(int(cursor), int(max_rows), bool(all_columns))
        return Rows(**rows), following

    def import_rows(self, rows):
        """Sets rows and counted keys, replacing what a key had. Columns that `rows` lacks get their initial value.

        Raises:
          ValueError: the value's dim is another, or sizes differ.
        """
        columns = _columns(rows.columns)
        elements = sum(dim for _, dim, _ in columns)
        arrays = {"columns": columns, "data": _floats("data", rows.data, [len(rows.keys), elements])}
        for name in ("keys", "frequencies", "versions"):
            arrays[name] = _integers(name, getattr(rows, name))
            if len(arrays[name]) != len(rows.keys):
                raise ValueError(f"{name}: expected shape [{len(rows.keys)}], found [{len(arrays[name])}]")
        for name in ("counted_keys", "counted_frequencies", "counted_versions"):
            arrays[name] = _integers(name, getattr(rows, name))
            if len(arrays[name]) != len(rows.counted_keys):
                raise ValueError(f"{name}: expected shape [{len(rows.counted_keys)}], found [{len(arrays[name])}]")
        self._table.import_rows(arrays)

    def total_count(self):
        """Number of keys that have a row."""
        return self._table.total_count()

    def __len__(self):
        return self.total_count()

    def stats(self):
        """Statistics as a dict: counts since the table was made, gauges as of now, "tiers": a list with one dict a tier."""
        return json.loads(self._table.stats_json())

    def flush(self):
        """Makes durable what was done before: writes rows that are only in memory to the last tier, and syncs it. They stay in
        memory too. Other operations run on meanwhile, but where the last tier's size is given.

        Raises:
          FailedPreconditionError: the last tier does not survive its process: DRAM, PMEM, or LEVELDB without keep=True.
          ResourceExhaustedError: the disk is full; nothing is lost.
        """
        self._table.flush()

    def drain(self):
        """Waits until the background work due now is done; raises its error where it failed."""
        self._table.drain()

    def prefetch(self, keys, timeout=10.0):
        """Brings rows of `keys` (integers [n]) up into DRAM and keeps them there until their next use, at most `timeout` seconds.

        A hint: it creates no key, and keeps no more than a quarter of the DRAM budget. Gives how many rows it keeps.
        """
        if not 0 <= timeout <= 1e9:
            raise ValueError(f"timeout: expected 0 to 1e9 seconds, found {timeout}")
        return self._table.prefetch(_integers("keys", keys), int(timeout * 1e6))

    def release_prefetched(self):
        """Lets go all rows that `prefetch` keeps."""
        self._table.release_prefetched()

    def pop_dropped(self):
        """Keys that a full last tier has dropped since the last call (see drop_coldest): int64 [n], at most the newest 2**20."""
        return self._table.pop_dropped()


@dataclasses.dataclass
class Salvaged:
    """What `salvage` found.

    Attributes:
      rows: `Rows`, of each key the newest that is whole.
      stale_keys: int64 [n], keys among them whose newest record is damaged: an older row is given.
      lost_keys: int64 [m], keys that are known to have had a row, and none of their records is whole.
      segments: number of files read.
      records: number of whole records in them, older ones and removals included.
      damaged_records: number of places that should hold a record and do not.
      damage: list of str, one for each file with damage.
    """

    rows: Rows
    stale_keys: np.ndarray
    lost_keys: np.ndarray
    segments: int
    records: int
    damaged_records: int
    damage: list


def salvage(path):
    """Reads what is whole in the SSDHASH files of an instance that `Table.open` refuses, or whose rows are damaged.

    Changes nothing. `Table.import_rows` of a new table takes the rows. (Of LEVELDB files: plyvel.repair_db, then `Table.open`.)

    Args:
      path: an instance directory (`Table.path`), or its directory `ssdhash`.

    Raises:
      KeyError: no such files there.
      FailedPreconditionError: the instance is in use (names the process).
    """
    path = os.fspath(path)
    below = os.path.join(path, "ssdhash")
    instance = None
    if os.path.isdir(below):
        instance = _engine.Instance(path)
    try:
        found = _engine.salvage(below if instance else path)
    finally:
        if instance:
            instance.release()
    return Salvaged(**{**found, "rows": Rows(**found["rows"])})
