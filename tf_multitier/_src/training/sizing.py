"""Computes upper bounds for the memory and disk of an embedding variable before it is made."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import typing

import tensorflow as tf

from tf_multitier import _engine
from tf_multitier import options
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import instance
from tf_multitier._src.options.storage_option import check_storage_available
from tf_multitier._src.options.storage_option import ENV_DEVICE
from tf_multitier._src.options.storage_option import storage_option_from_environment
from tf_multitier._src.options.storage_option import StorageOption
from tf_multitier._src.options.storage_types import CacheStrategy
from tf_multitier._src.training import rules
from tf_multitier.optimizers import RowOptimizer

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

_HEADER = 32  # bytes of the header of a row in DRAM
_HUGE_PAGE = 2 * _MIB
_DEFAULT_SIZE = _GIB  # bytes of a tier without a size that is not the last
_DEFAULT_EMULATED_HBM = _MIB  # bytes of HBM without a size, on the emulated device
_HBM_BUCKET = 128  # slots
_FIRST_HBM_ROWS = 1024  # of HBM alone
_ONE_SHARD_ROWS = (
    64 * _KIB
)  # tables with fewer rows of DRAM have one shard and an exact order of rows
_SHARDS = 8
_NEW_ROWS_BY_SCORE = 64 * 1024  # bytes of a shard: the list of new rows under CacheStrategy.SCORE
_MAX_LOAD, _LOAD_SPREAD = 0.70, 0.08  # of the index: the caps of the shards are that far apart
_READY_LOAD, _READY_SHARE = (
    0.875,
    0.1,
)  # of that cap: where the pages of the next doubling begin to come, and over how much
_BUCKETS_WITH_TIERS = 1024  # minimal number of buckets of a shard's index if a tier is below DRAM
_COUNTED_KEY = 24  # bytes of a key that a counter filter counts
_LOWER_ORDER = 96  # bytes per row of the replacement order of a lower tier that has a size
_BATCH_KEY = 100  # bytes per key of a running operation, without the row
_MOST_TIER_BYTES = 1 << 56  # of a tier, so that the engine's sums stay below 2^63
_LOWER = _engine.tier_kinds()  # {name: what the engine says of the tier}


@dataclasses.dataclass(frozen=True)
class TierMemory:
    """Upper bounds for one tier, summed over all partitions.

    Attributes:
      name: of the tier, as in the storage type: "DRAM", "SSDHASH".
      rows: maximal number of rows at a time.
      row_bytes: bytes of the data of those rows, as `storage_size` counts them.
      memory_bytes: bytes of resident memory. DRAM: rows, their headers and the replacement order. File tiers: the data in memory
        about the files.
      disk_bytes: bytes of its files.
      hbm_bytes: bytes of the GPU's memory: rows with their headers, and the index of HBM. All of it is taken when the table is made;
        HBM alone takes it as rows come.
    """

    name: str
    rows: int
    row_bytes: int
    memory_bytes: int
    disk_bytes: int
    hbm_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Memory:
    """The result of `memory`: upper bounds, summed over all partitions. `str()` formats it as a table.

    Attributes:
      rows: keys with a row: the given number, or what the tiers can hold if that is less.
      bytes_per_row: bytes of row data of one row: the value and each slot, rounded up to 16 bytes each.
      tiers: list of TierMemory, fastest first.
      index_bytes: bytes of the index over all tiers.
      filter_bytes: bytes of the admission filter.
      batch_bytes: bytes of running operations.
      memory_bytes: bytes of resident memory in total.
      disk_bytes: bytes of the files of all tiers.
      hbm_bytes: bytes of the GPU's memory, without running operations.
    """

    rows: int
    bytes_per_row: int
    tiers: list
    index_bytes: int
    filter_bytes: int
    batch_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of all tiers, the index, the filter and running operations."""
        return (
            sum(t.memory_bytes for t in self.tiers)
            + self.index_bytes
            + self.filter_bytes
            + self.batch_bytes
        )

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk of all tiers."""
        return sum(t.disk_bytes for t in self.tiers)

    @property
    def hbm_bytes(self) -> int:
        """Bytes of the GPU's memory."""
        return sum(t.hbm_bytes for t in self.tiers)

    def __str__(self):
        lines = [
            f"{self.rows:,} rows of {self.bytes_per_row} bytes",
            f"{'':10}{'rows':>16}{'row data':>12}{'memory':>12}{'disk':>12}",
        ]
        for t in self.tiers:
            lines.append(
                f"{t.name:10}{t.rows:16,}{_text(t.row_bytes):>12}{_text(t.memory_bytes):>12}{_text(t.disk_bytes):>12}"
            )
        for name, size in (
            ("index", self.index_bytes),
            ("filter", self.filter_bytes),
            ("batches", self.batch_bytes),
        ):
            if size:
                lines.append(f"{name:38}{_text(size):>12}")
        if self.hbm_bytes:
            lines.append(f"{'memory of the GPU':38}{_text(self.hbm_bytes):>12}")
        lines.append(f"{'at most':38}{_text(self.memory_bytes):>12}{_text(self.disk_bytes):>12}")
        return "\n".join(lines)


def _text(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


def memory(
    rows: int,
    embedding_dim: int,
    optimizer: typing.Any = "adagrad",
    storage_option: StorageOption | None = None,
    num_partitions: int = 1,
    filter_option: typing.Any = None,
    waiting_keys: int = 0,
    batch_keys: int = 0,
    value_dtype: typing.Any = tf.float32,
) -> Memory:
    """Computes the rows, memory and disk that an embedding variable needs at most, for each tier.

        option = tf_multitier.StorageOption("DRAM_SSDHASH", "/ssd", storage_size=[4 << 30])
        print(tf_multitier.memory(100_000_000, 16, "adam", option))

    Memory means resident memory of the process. It does not include the page cache of files, which the system can reclaim, the
    memory for saving and restoring (docs/operations.md), and TensorFlow itself. Reserved address space that is not used does not
    count. The bounds assume that hashing spreads the keys over the partitions.

    Args:
      rows: number of keys that will have a row, > 0.
      embedding_dim: elements of an embedding.
      optimizer: the optimizers that train the variable: the name of an update rule ("adam"), an optimizer of
        tf_multitier.optimizers, tf_multitier.keras.with_rows, tf_multitier.train or tf.compat.v1.train, None (no training), or a list of
        these. Each has slots of its own; with use_ema, one more.
      storage_option: a StorageOption. None: from the environment variables; if they are not set, DRAM.
      num_partitions: number of partitions. Each partition has the sizes of `storage_size`.
      filter_option: CounterFilter, CBFFilter, ProbabilisticFilter or None.
      waiting_keys: number of keys that a CounterFilter counts and has not admitted.
      batch_keys: number of distinct keys in all lookups and updates that run at the same time.
      value_dtype: of the values: tf.float32, tf.bfloat16 or tf.float16. Slots are float32.

    Returns:
      A Memory.

    Raises:
      TypeError, ValueError: an argument is out of range. The message names it.
      NotImplementedError: the optimizer has no update rule, or this build has no tier for the storage type.
    """
    rows = _count("rows", rows, 1)
    dim = _count("embedding_dim", embedding_dim, 1)
    parts = _count("num_partitions", num_partitions, 1)
    waiting = _share(_count("waiting_keys", waiting_keys, 0), parts)
    batch = _share(_count("batch_keys", batch_keys, 0), parts)
    element = options.value_type("value_dtype", value_dtype).size
    row_bytes = _padded(dim, element) + sum(
        _padded(1 if per_row else dim) for per_row in _slots_of(optimizer)
    )
    if waiting and not isinstance(filter_option, options.CounterFilter):
        raise ValueError(
            f"waiting_keys: expected 0, because no CounterFilter counts them, found {waiting_keys}: give filter_option"
        )
    if storage_option is not None:
        instance("storage_option", storage_option, StorageOption)
    storage = storage_option or storage_option_from_environment()
    names = check_storage_available("of tf_multitier.memory", storage).tiers
    budgets = _budgets(storage, names, row_bytes)
    share = _share(rows, parts)
    if None not in budgets:  # a row is in one tier only, or has a copy in HBM
        share = min(share, sum(budgets))
    above, names, budgets = _above(rows, share, parts, row_bytes, storage, names, budgets)
    part = _Part(share, batch, row_bytes, storage, names, budgets)
    buffers = part.buffers()
    if above:  # rows on their way up and down, values and gradients, in powers of two
        buffers += batch * 2 * (2 * (row_bytes + 16) + 2 * _padded(dim) + _BATCH_KEY)
    return Memory(
        rows=min(rows, share * parts),
        bytes_per_row=row_bytes,
        tiers=above + part.tiers(rows, parts),
        index_bytes=parts * _index(share + waiting, part.shards, part.has_lower),
        filter_bytes=parts * _filter(filter_option, waiting),
        batch_bytes=parts * buffers,
    )


def _above(rows, share, parts, row_bytes, storage, names, budgets):
    """Takes HBM out of the tiers: (its TierMemory in a list, or none; names and budgets of the tiers below it)."""
    if names[0] != "HBM":
        return [], names, budgets
    if len(names) > 1:
        hbm = _hbm(rows, budgets[0], row_bytes, parts, storage, load=0.8)
        return [hbm], names[1:], budgets[1:]
    most = max(_FIRST_HBM_ROWS, 2 * share)  # it grows by doubling
    most = most if budgets[0] is None else min(most, budgets[0])
    hbm = _hbm(rows, most, row_bytes, parts, storage, load=0.5)
    return [hbm], ("DRAM",), [None]  # the host keeps copies


@dataclasses.dataclass(frozen=True)
class _Part:
    """One partition, below HBM: what the sizes of its tiers depend on.

    Attributes:
      share: the most rows that it has.
      batch: distinct keys of its running operations.
      row_bytes: bytes of the data of a row.
      storage: the StorageOption of the variable.
      names, budgets: of the tiers: the name, and the most rows (None: no bound).
    """

    share: int
    batch: int
    row_bytes: int
    storage: StorageOption
    names: tuple
    budgets: list

    @property
    def in_place(self):
        """Whether rows are used in place, in mapped files."""
        return "row_memory_bytes" in _LOWER.get(self.names[0], ())

    @property
    def has_lower(self):
        """Whether a tier is below DRAM, or in its place."""
        return len(self.names) > 1 or (self.names[0] in _LOWER and not self.in_place)

    @property
    def exact(self):
        """Whether the replacement order is exact, and all rows are in one shard."""
        rows = self.budgets[0] if self.names[0] == "DRAM" or self.in_place else 0
        return rows is not None and rows < _ONE_SHARD_ROWS

    @property
    def shards(self):
        return 1 if self.exact else _SHARDS

    def tiers(self, rows, parts):
        """A TierMemory for each tier, over all `parts` of a variable with that many rows."""
        evicting = self.storage if self.has_lower or self.storage.drop_coldest else None
        tiers = []
        for name, budget in zip(self.names, self.budgets):
            held = self.share if budget is None else min(self.share, budget)
            if name == "DRAM":
                resident, disk = self._dram(held, evicting), 0
            elif self.in_place:
                slots = self.shards * _share(held, self.shards)
                resident, disk = self._of_engine(name, "row_memory_bytes", slots, self.shards)
                resident += _order(slots, evicting, self.exact)
            else:
                resident, disk = self._of_engine(name, "bytes", held)
                if budget is not None:
                    resident += _LOWER_ORDER * held
            most = min(rows, held * parts)
            tiers.append(
                TierMemory(name, most, most * self.row_bytes, resident * parts, disk * parts)
            )
        return tiers

    def buffers(self):
        """Bytes of running operations, without those of HBM."""
        size = self.batch * (_BATCH_KEY + self.row_bytes + 2 * _HEADER)
        if self.names[0] != "DRAM" and not self.in_place:  # DRAM has only the rows of operations
            size += self._dram(0, self.storage)
        return size

    def _of_engine(self, name, what, rows, *more):
        """(memory, disk) of a tier with this number of rows or slots."""
        most = _MOST_TIER_BYTES // (self.row_bytes + 2 * _HEADER)
        if rows > most:
            raise ValueError(f"rows: expected at most {most} in tier {name}, found {rows}")
        return _LOWER[name][what](rows, self.row_bytes, *more)

    def _dram(self, rows, evicting):
        return _dram(rows, self.batch, self.row_bytes, self.shards, evicting, self.exact)


def _count(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an integer, found {value!r}")
    if value < minimum:
        raise ValueError(f"{name}: expected at least {minimum}, found {value}")
    return int(value)


def _share(n, parts):
    """Upper bound for the number of n hashed keys in one of several parts: the mean plus six standard deviations."""
    mean = n / parts
    return n if parts == 1 else min(n, math.ceil(mean + 6 * math.sqrt(mean)))


def _padded(elements, element=4):
    return -(-element * elements // 16) * 16


def _slots_of(optimizer):
    """For each slot of a rule, an optimizer or a list of them: True if it has one element per row, False if `embedding_dim`."""
    if optimizer is None:
        return []
    if isinstance(optimizer, (list, tuple)):
        return [slot for one in optimizer for slot in _slots_of(one)]
    if isinstance(optimizer, str):
        from tf_multitier.engine.rules import update_rules  # late: it loads the engine

        known = update_rules()
        if optimizer not in known:
            raise ValueError(
                f"optimizer: expected one of {', '.join(sorted(known))}, or an optimizer; found {optimizer!r}{did_you_mean(optimizer, known)}"
            )
        return [slot.per_row for slot in known[optimizer].slots]
    if isinstance(optimizer, RowOptimizer):
        average = [] if optimizer.ema_momentum is None else [False]
        return average + [slot.per_row for slot in optimizer._slots()]
    if hasattr(optimizer, "row_optimizer"):  # of Keras
        slots = [slot.per_row for slot in optimizer.row_optimizer._slots()]
        return [False, *slots] if getattr(optimizer, "use_ema", False) else slots
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            f"optimizer: expected the name of an update rule, an optimizer, None or a list of them; found {optimizer!r}"
        )
    binding = rules.find_binding(optimizer)
    if binding is None:
        raise NotImplementedError(
            f"{type(optimizer).__name__} has no update rule for embedding variables; supported: "
            f"{', '.join(rules.supported_optimizers())}"
        )
    return [slot.per_row for slot in binding.slots]


def _budgets(storage, names, bytes_per_row):
    """The number of rows that each tier may hold; None: no bound."""
    budgets = list(storage.storage_rows)
    for i in range(len(budgets), len(names)):
        given = i < len(storage.storage_size)
        if not given and i + 1 == len(names):
            budgets.append(None)
            continue
        emulated = names[i] == "HBM" and os.environ.get(ENV_DEVICE) == "emulated"
        default = _DEFAULT_EMULATED_HBM if emulated else _DEFAULT_SIZE
        size = storage.storage_size[i] if given else default
        if size < bytes_per_row:
            raise ValueError(
                f"storage_size[{i}]: expected at least {bytes_per_row} bytes (one row), found {size}"
            )
        budgets.append(size // bytes_per_row)
    return budgets


def _hbm(rows, budget, bytes_per_row, parts, storage, load):
    """The TierMemory of HBM. Its memory has room for `budget` rows, however many there are. `load`: rows a slot."""
    buckets = math.ceil(budget / load / _HBM_BUCKET)
    ranked = storage.cache_strategy in (CacheStrategy.LFU, CacheStrategy.SCORE)
    slot = 1 + 16 + 4 + (8 if ranked else 0)
    size = buckets * (_HBM_BUCKET * slot + 4) + budget * (bytes_per_row + 16 + 8) + _KIB
    most = min(rows, budget * parts)
    return TierMemory("HBM", most, most * bytes_per_row, 0, 0, size * parts)


def _pages(size, shards):
    """Resident bytes of a slab of `size` bytes in `shards` shards: small pages up to 2 MiB per shard, then huge pages.

    Shards take the next huge page one after the other, on average half a page before its first row.
    """
    early = (shards - 1) * _HUGE_PAGE // 2 if size // shards > _HUGE_PAGE else 0
    return size + early + shards * min(_HUGE_PAGE, max(4 * _KIB, size // shards + 4 * _KIB))


def _dram(rows, batch, bytes_per_row, shards, evicting, exact):
    """Bytes of rows in DRAM with their headers, of one batch more, and of the replacement order."""
    slots = shards * _share(rows + batch, shards)
    return _pages(slots * (bytes_per_row + _HEADER), shards) + _order(slots, evicting, exact)


def _order(slots, evicting, exact):
    """Bytes of the replacement order of rows."""
    if evicting is None:
        return 0
    if exact:
        return slots * 40  # a heap, and an array of places in it that doubles
    if evicting.cache_strategy == CacheStrategy.SCORE:
        return min(4 * slots, _SHARDS * _NEW_ROWS_BY_SCORE)
    # One byte per row, allocated a quarter ahead, and four more per new row. All rows may be new.
    return slots * 6 if evicting.cache_strategy is None else 0


def _index(keys, shards, has_lower):
    """Bytes of the buckets. A bucket has 64 bytes and eight keys. Their number doubles when they are about 70 % full.

    From 2 MiB on, the pages for that come one by one while the last eighth of the load does.
    """
    in_shard = _share(keys, shards)
    least = _BUCKETS_WITH_TIERS if has_lower else 1
    size = 0
    for shard in range(shards):
        load = _MAX_LOAD + _LOAD_SPREAD * (shard - (shards - 1) / 2) / shards
        buckets = max(least, 2 ** max(0, math.ceil(math.log2(max(1, in_shard / (8 * load))))))
        size += 64 * buckets
        full = in_shard / (8 * load * buckets)
        if 64 * buckets >= _HUGE_PAGE and full >= _READY_LOAD:
            pages = int((full - _READY_LOAD) / _READY_SHARE * (64 * buckets // _HUGE_PAGE))
            size += min(64 * buckets, pages * _HUGE_PAGE)
    return size


def _filter(option, waiting):
    if isinstance(option, options.CounterFilter):
        return waiting * _COUNTED_KEY + (_MIB if waiting else 0)
    if isinstance(option, options.CBFFilter):
        counters = math.ceil(
            -math.log(option.false_positive_probability)
            / math.log(2) ** 2
            * option.max_element_size
        )
        return counters * option.counter_bits // 8 + 4 * _KIB
    return 0
