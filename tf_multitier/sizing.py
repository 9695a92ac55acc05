"""What a configuration needs of memory and disk, computed beforehand."""

from __future__ import annotations

import dataclasses
import math
import numbers
import typing

import tensorflow as tf

from tf_multitier import options
from tf_multitier import rules

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

_HEADER = 32                  # in front of a row in DRAM
_HUGE_PAGE = 2 * _MIB
_PIECE = 64 * _KIB            # of a slab in files
_DEFAULT_SIZE = _GIB          # of a tier that is not the last, where no size is given
_ONE_SHARD_ROWS = 64 * _KIB   # budgets below it have one shard, and an exact order of their rows
_SHARDS = 8
_MAX_LOAD = 0.70              # of the index
_BUCKETS_WITH_TIERS = 1024    # the least a shard's index has where there is a tier below DRAM
_COUNTED_KEY = 24
_LOWER_ORDER = 96             # a row of a lower tier with a given size: what says who leaves it first
_BATCH_KEY = 100              # a key of an operation in flight, beside its row


@dataclasses.dataclass(frozen=True)
class TierMemory:
    """Of one tier, all partitions together; bytes are upper bounds.

    Attributes:
      name: "DRAM", "PMEM", "LEVELDB" or "SSDHASH".
      rows: most rows it has at a time.
      row_bytes: of those rows' data: what `storage_size` counts.
      memory_bytes: resident memory: for DRAM the rows with their headers and what orders them; for a tier of files what is kept
        in memory about them.
      disk_bytes: of its files.
    """

    name: str
    rows: int
    row_bytes: int
    memory_bytes: int
    disk_bytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """What `memory` gives: upper bounds in bytes, all partitions together. `str()` of it is a table to read.

    Attributes:
      rows: keys with a row, as asked for, or what the tiers can hold where that is less.
      bytes_per_row: row data of one row: the value and its slots, each rounded up to 16 bytes.
      tiers: list of TierMemory, fastest first.
      index_bytes: of the index over all tiers.
      filter_bytes: of an admission filter.
      batch_bytes: of the operations in flight.
      memory_bytes: resident memory, everything together.
      disk_bytes: files, all tiers together.
    """

    rows: int
    bytes_per_row: int
    tiers: list
    index_bytes: int
    filter_bytes: int
    batch_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of all tiers, the index, filters and the batches in flight."""
        return sum(t.memory_bytes for t in self.tiers) + self.index_bytes + self.filter_bytes + self.batch_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk of all tiers."""
        return sum(t.disk_bytes for t in self.tiers)

    def __str__(self):
        lines = [f"{self.rows:,} rows of {self.bytes_per_row} bytes",
                 f"{'':10}{'rows':>16}{'row data':>12}{'memory':>12}{'disk':>12}"]
        for t in self.tiers:
            lines.append(f"{t.name:10}{t.rows:16,}{_text(t.row_bytes):>12}{_text(t.memory_bytes):>12}{_text(t.disk_bytes):>12}")
        for name, size in (("index", self.index_bytes), ("filter", self.filter_bytes), ("batches", self.batch_bytes)):
            if size:
                lines.append(f"{name:38}{_text(size):>12}")
        lines.append(f"{'at most':38}{_text(self.memory_bytes):>12}{_text(self.disk_bytes):>12}")
        return "\n".join(lines)


def _text(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


def memory(rows: int, embedding_dim: int, optimizer: typing.Any = "adagrad", storage_option: options.StorageOption | None = None, num_partitions: int = 1, filter_option: typing.Any = None, waiting_keys: int = 0,
           batch_keys: int = 0) -> Memory:
    """What an embedding variable needs at most, before it is made: rows, memory and disk of every tier.

        option = tf_multitier.StorageOption("DRAM_SSDHASH", "/ssd", storage_size=[4 << 30])
        print(tf_multitier.memory(100_000_000, 16, "adam", option))

    Memory is what the process has resident for the variable. Not in it: the page cache of files, which the system takes back
    when it needs to; the memory of saving and restoring (docs/operations.md); TensorFlow itself. Reserved but unused address
    space is no memory. Bounds hold for keys spread by their hash, as all are, over the partitions.

    Args:
      rows: keys that will have a row, > 0.
      embedding_dim: elements of an embedding.
      optimizer: what trains it: the name of an update rule ("adam"), an optimizer object, None (nothing does), or a list of
        them, each with slots of its own.
      storage_option: StorageOption; None: what the environment says, else DRAM.
      num_partitions: partitions of the variable; a size of `storage_size` is that of each.
      filter_option: CounterFilter, CBFFilter, ProbabilisticFilter or None.
      waiting_keys: keys that a CounterFilter counts and has not admitted.
      batch_keys: distinct keys of all lookups and updates that run at a time.

    Returns:
      A Memory.

    Raises:
      TypeError, ValueError: for an argument out of range, naming it.
      NotImplementedError: for an optimizer without a rule, or a storage type that this build lacks.
    """
    rows = _count("rows", rows, 1)
    dim = _count("embedding_dim", embedding_dim, 1)
    parts = _count("num_partitions", num_partitions, 1)
    waiting = _share(_count("waiting_keys", waiting_keys, 0), parts)
    batch = _share(_count("batch_keys", batch_keys, 0), parts)
    bytes_per_row = _padded(dim) + sum(_padded(1 if per_row else dim) for per_row in _slots_of(optimizer))
    storage = storage_option or options.storage_option_from_environment()
    names = options.check_storage_available("of tf_multitier.memory", storage).tiers
    budgets = _budgets(storage, names, bytes_per_row)
    share = _share(rows, parts)
    if None not in budgets:  # a row stands in one tier only
        share = min(share, sum(budgets))
    in_place = names[0] == "PMEM"  # its files are the memory of the rows
    has_lower = len(names) > 1 or (names[0] in _LOWER and not in_place)
    in_dram = budgets[0] if names[0] == "DRAM" or in_place else 0
    exact = in_dram is not None and in_dram < _ONE_SHARD_ROWS
    shards = 1 if exact else _SHARDS
    evicting = storage if has_lower or storage.drop_coldest else None

    tiers = []
    for name, budget in zip(names, budgets):
        held = share if budget is None else min(share, budget)
        if name == "DRAM":
            resident, disk = _dram(held, batch, bytes_per_row, shards, evicting, exact), 0
        elif in_place:
            resident, disk = _pmem_in_place(held, bytes_per_row, shards, evicting, exact)
        else:
            resident, disk = _LOWER[name](held, bytes_per_row)
            if budget is not None:
                resident += _LOWER_ORDER * held
        most = min(rows, held * parts)
        tiers.append(TierMemory(name, most, most * bytes_per_row, resident * parts, disk * parts))
    buffers = batch * (_BATCH_KEY + bytes_per_row + 2 * _HEADER)
    if names[0] != "DRAM" and not in_place:  # DRAM then has the rows of operations in flight and no others
        buffers += _dram(0, batch, bytes_per_row, shards, storage, exact)
    return Memory(
        rows=min(rows, share * parts), bytes_per_row=bytes_per_row, tiers=tiers,
        index_bytes=parts * _index(share + waiting, shards, has_lower),
        filter_bytes=parts * _filter(filter_option, waiting),
        batch_bytes=parts * buffers)


def _count(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, found {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, found {value}")
    return int(value)


def _share(n, parts):
    """Most of n hashed keys that one of several parts gets: their mean and six standard deviations."""
    mean = n / parts
    return n if parts == 1 else min(n, math.ceil(mean + 6 * math.sqrt(mean)))


def _padded(elements):
    return -(-4 * elements // 16) * 16


def _slots_of(optimizer):
    """Whether each slot of a rule, an optimizer or several has one element a row (else `embedding_dim`)."""
    if optimizer is None:
        return []
    if isinstance(optimizer, (list, tuple)):
        return [slot for one in optimizer for slot in _slots_of(one)]
    if isinstance(optimizer, str):
        from tf_multitier import engine  # loads its library, which nothing else here needs

        known = engine.update_rules()
        if optimizer not in known:
            raise ValueError(f"optimizer must be one of {', '.join(sorted(known))}, or an optimizer; found {optimizer!r}")
        return [per_row for _, per_row, _ in known[optimizer].slots]
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(f"optimizer must be the name of an update rule, an optimizer, None or a list of them; found {optimizer!r}")
    binding = rules.find_binding(optimizer)
    if binding is None:
        raise NotImplementedError(f"{type(optimizer).__name__} has no update rule for embedding variables; supported: "
                                  f"{', '.join(rules.supported_optimizers())}")
    return [slot.per_row for slot in binding.slots]


def _budgets(storage, names, bytes_per_row):
    """Rows that each tier may hold; None: unbounded."""
    budgets = []
    for i in range(len(names)):
        given = i < len(storage.storage_size)
        if not given and i + 1 == len(names):
            budgets.append(None)
            continue
        size = storage.storage_size[i] if given else _DEFAULT_SIZE
        if size < bytes_per_row:
            raise ValueError(f"storage_size[{i}] must hold at least one row of {bytes_per_row} bytes, found {size}")
        budgets.append(size // bytes_per_row)
    return budgets


def _pages(size, shards):
    """Resident bytes of a slab in that many shards: small pages up to 2 MiB a shard, then huge ones."""
    return size + shards * min(_HUGE_PAGE, max(4 * _KIB, size // shards + 4 * _KIB))


def _dram(rows, batch, bytes_per_row, shards, evicting, exact):
    """Bytes of rows in DRAM with their headers, room for a batch more, and what says who leaves first."""
    slots = shards * _share(rows + batch, shards)
    return _pages(slots * (bytes_per_row + _HEADER), shards) + _order(slots, evicting, exact)


def _order(slots, evicting, exact):
    """Bytes of what says which rows leave first."""
    if evicting is None:
        return 0
    if exact:
        return slots * 40  # a heap and the places in it, which double
    # A byte a row, a quarter ahead; four more for one that is new, as all may be.
    return slots * 6 if evicting.cache_strategy is None else 0


def _index(keys, shards, has_lower):
    """Bytes of the buckets: eight keys of 64 bytes, doubled when 70 % full."""
    in_shard = _share(keys, shards)
    buckets = 2 ** max(0, math.ceil(math.log2(max(1, in_shard / (8 * _MAX_LOAD)))))
    return shards * 64 * max(buckets, _BUCKETS_WITH_TIERS if has_lower else 1)


def _filter(option, waiting):
    if isinstance(option, options.CounterFilter):
        return waiting * _COUNTED_KEY + (_MIB if waiting else 0)
    if isinstance(option, options.CBFFilter):
        counters = math.ceil(-math.log(option.false_positive_probability) / math.log(2) ** 2 * option.max_element_size)
        return counters * option.counter_bits // 8 + 4 * _KIB
    return 0


def _ssdhash(rows, bytes_per_row):
    """docs/formats/ssdhash.md: records in blocks, footers, one and a half times that and four segments."""
    record = bytes_per_row + 36
    in_block = 4096 // record
    if in_block and (4096 - in_block * record) * 10 < 4096:
        record = math.ceil(4096 / in_block)
    footer = 31
    live = rows * (record + footer)
    segment = min(max(live // 64, _MIB), 256 * _MIB)
    disk = live * 3 // 2 + 4 * segment + 4 * _KIB * (6 + live // segment)
    slots = disk // record
    # Two open segments and one each behind them, of which 32 bytes a record are kept, or what waits to be written of smaller ones;
    # footers that three threads are writing.
    buffers = 2 * min(segment, 4 * _MIB) + 4 * 32 * segment // record + min(live, 8 * _MIB) + 3 * footer * segment // record
    return slots // 4 + buffers, disk


def _leveldb(rows, bytes_per_row):
    """docs/formats/leveldb.md: entries of which some are stale; write buffers, block cache, filters, places of entries."""
    entry = bytes_per_row + 24 + 8 + 16
    disk = 2 * rows * entry + 96 * _MIB
    return (2 * 16 + 8 + 8) * _MIB + 28 * rows, disk


def _pmem(rows, bytes_per_row):
    """docs/formats/pmem.md: files that double up to 1 GiB."""
    slot = -(-(bytes_per_row + 32) // 64) * 64
    data = rows * slot
    disk = data + min(data, _GIB) + max(data // 8, 1024 * slot) + _MIB
    return 24 * (disk // slot), disk


def _pmem_in_place(rows, bytes_per_row, shards, evicting, exact):
    """Rows in pieces of 64 KiB, cut from files that double up to 1 GiB."""
    slots = shards * _share(rows, shards)
    in_piece = 1 << max(0, _PIECE // (bytes_per_row + _HEADER)).bit_length() - 1
    piece = -(-in_piece * (bytes_per_row + _HEADER) // (4 * _KIB)) * 4 * _KIB
    data = (slots // in_piece + shards) * piece
    return 64 * (data // piece) + _order(slots, evicting, exact), data + min(data, _GIB) + piece


_LOWER = {"PMEM": _pmem, "LEVELDB": _leveldb, "SSDHASH": _ssdhash}
