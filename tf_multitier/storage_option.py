"""StorageOption: the tiers of an embedding variable, their sizes and their directory.

It comes from the variable's arguments, or from environment variables (`storage_option_from_environment`).
"""

from __future__ import annotations

import collections.abc
import numbers
import os

from tf_multitier.config_pb2 import CacheStrategy, StorageType
from tf_multitier.option_values import boolean
from tf_multitier.option_values import did_you_mean
from tf_multitier.option_values import integer
from tf_multitier.option_values import one_of
from tf_multitier.option_values import Option

ENV_STORAGE_TYPE = "TF_MULTITIER_STORAGE_TYPE"
ENV_STORAGE_PATH = "TF_MULTITIER_STORAGE_PATH"
ENV_STORAGE_SIZE = "TF_MULTITIER_STORAGE_SIZE"
ENV_STORAGE_KEEP = "TF_MULTITIER_STORAGE_KEEP"
ENV_DEVICE = "TF_MULTITIER_DEVICE"  # "emulated": types with HBM work without a GPU, for tests

# Storage types for which this build has tiers on every machine. Other types are refused by name when a variable is made.
AVAILABLE_STORAGE_TYPES = tuple(t for t in StorageType if "HBM" not in t.tiers)

# Attributes of the handle op that StorageOption sets.
STORAGE_ATTRS = (
    "storage_type",
    "storage_path",
    "storage_sizes",
    "storage_rows",
    "initial_rows",
    "cache_strategy",
    "drop_coldest",
    "on_full",
    "dropped",
    "dropped_bytes",
    "removed_bytes",
    "refuse_colder",
    "on_corruption",
    "keep",
)

_ON_CORRUPTION = ("error", "reinit", "drop")

MAX_SIZE = 2**60  # bytes of a tier
MAX_ROWS = 2**32  # rows of a tier

_ON_FULL = ("error", "warn", "drop")
_DROPPED = ("none", "keys", "rows")

TIERS_WITH_FILES = ("PMEM", "LEVELDB", "SSDHASH")
_TIERS_THAT_KEEP = ("LEVELDB", "SSDHASH")


class StorageOption(Option):
    """The tiers of a variable. Source: DeepRec's `tf.StorageOption`.

    Args:
      storage_type: a `StorageType`, its number or its name. None: DRAM. Types with HBM need a build with CUDA
        and a GPU, and are refused without; for tests, the environment variable TF_MULTITIER_DEVICE=emulated makes them work
        on any machine.
      storage_path: directory for the files of PMEM, LEVELDB and SSDHASH tiers, on the machine that holds the variable. Required by
        every type with such a tier. It is created if its parent exists. Variables, partitions, sessions and processes may share it.
      storage_size: bytes of row data in each tier, fastest first: an integer or a list, each > 0, at most one per tier. A tier
        without a size gets 1 GiB; the last tier without a size has no bound. Each partition of a partitioned variable gets these
        sizes. `tf_multitier.memory` computes the bytes of a row.
      storage_rows: rows in each tier, fastest first, in place of storage_size: an integer or a list. The number of rows stays when
        an optimizer adds slots; with storage_size, fewer of the wider rows fit. Not in DeepRec.
      initial_rows: the table starts with an index for this number of rows, and with address space for those that DRAM may hold. The
        rows themselves take memory when they are first used. `reserve` does the same later. Not in DeepRec.
      cache_strategy: a `CacheStrategy`: which rows leave a full tier first. None: with 65,536 rows of DRAM or more, by recency and
        frequency, so that many rows that are used once do not push out the others; with fewer, the least recently used. SCORE: the
        lowest score, of equal ones the least recently used (see EmbeddingVariableOption.score); not with HBM.
      drop_coldest: what an update with new keys does when the last tier is full. False: see on_full. True: the table drops its
        coldest rows for good, and `pop_dropped()` returns their keys. Every tier needs a size. Not with HBM. Not in DeepRec.
      on_full: what an update does with new keys when the last tier is full. "error": it fails with ResourceExhausted and changes
        nothing. "warn": they get no row and their gradients are not used; a warning is logged once, and `refused` in the statistics
        counts them. "drop": as drop_coldest=True. "warn" and "drop" not with HBM. Not in DeepRec.
      dropped: what is kept of dropped rows until `pop_dropped`: "none", "keys", or "rows": values, slots, frequency and version. With
        "rows", dropping a row of a file tier first reads it. Not in DeepRec.
      dropped_bytes: bytes of memory for that, in each partition. The newest stay; `dropped_lost` in the statistics counts the
        others. Not in DeepRec.
      removed_bytes: bytes of memory, in each partition, for the notes of `removed_since`: 16 bytes for each key that leaves. Further
        notes go to a file in storage_path; a variable without files forgets the oldest. 0: no notes. Not in DeepRec.
      refuse_colder: True: in a full table, a new key whose score (LFU: frequency) is less than that of every row of its shard gets
        no row. Its gradient is not used, it reads as its initial value, and `refused` in the statistics counts it. Needs
        drop_coldest=True and CacheStrategy.SCORE or LFU. With 65,536 rows of DRAM or more, the highest score that last left DRAM
        stands for the lowest in it. With LFU, fewer rows of DRAM and drop_coldest=True, it is always so. Not in DeepRec.
      on_corruption: what happens to a row whose record in a file tier is damaged. "error": operations that need the row, including
        saving, fail with DataLoss that names key, file and offset, until `remove` removes the key. "reinit": the key starts again
        from its initial value. "drop": the key is removed, and `pop_dropped()` returns it. `corrupt` in the statistics counts each
        case. Not in DeepRec.
      keep: True: the rows stay in the files when the session is closed or the variable deleted. The next process of the same
        program goes on from them: its initializer opens them, and a restore reads the checkpoint only if the rows are not
        exactly those of this checkpoint. The last tier must be LEVELDB or SSDHASH. Not in DeepRec.

    Raises:
      TypeError, ValueError: a bad value, or a missing storage_path or size.
    """

    # Of configurations that older versions wrote.
    refuse_colder = False
    storage_rows: tuple = ()
    initial_rows = 0
    on_full = "error"
    dropped = "keys"
    dropped_bytes = 8 << 20
    removed_bytes = 1 << 20

    def __init__(
        self,
        storage_type: str | StorageType | None = None,
        storage_path: str | None = None,
        storage_size: collections.abc.Sequence[int] | None = None,
        cache_strategy: str | CacheStrategy | None = None,
        *,
        drop_coldest: bool = False,
        storage_rows: collections.abc.Sequence[int] | None = None,
        initial_rows: int = 0,
        on_full: str = "error",
        dropped: str = "keys",
        dropped_bytes: int = 8 << 20,
        removed_bytes: int = 1 << 20,
        refuse_colder: bool = False,
        on_corruption: str = "error",
        keep: bool = False,
    ) -> None:
        self.storage_type = _storage_type("StorageOption.storage_type", storage_type)
        self.storage_path = _path(storage_path, self.storage_type)
        self.storage_size = _sizes("StorageOption.storage_size", storage_size, self.storage_type)
        self.storage_rows = _sizes(
            "StorageOption.storage_rows", storage_rows, self.storage_type, MAX_ROWS
        )
        if self.storage_rows and self.storage_size:
            raise ValueError(
                "StorageOption: expected storage_size or storage_rows, found both: "
                f"{list(self.storage_size)} and {list(self.storage_rows)}"
            )
        self.initial_rows = integer("StorageOption.initial_rows", initial_rows, 0, MAX_ROWS)
        self.cache_strategy = _cache_strategy("StorageOption.cache_strategy", cache_strategy)
        self._set_what_happens_when_full(drop_coldest, on_full, refuse_colder)
        self.dropped = one_of("StorageOption.dropped", dropped, _DROPPED)
        self.dropped_bytes = integer("StorageOption.dropped_bytes", dropped_bytes, 0, MAX_SIZE)
        self.removed_bytes = integer("StorageOption.removed_bytes", removed_bytes, 0, MAX_SIZE)
        self.on_corruption = one_of("StorageOption.on_corruption", on_corruption, _ON_CORRUPTION)
        self.keep = boolean("StorageOption.keep", keep)
        if keep and self.storage_type.tiers[-1] not in _TIERS_THAT_KEEP:
            raise ValueError(
                f"StorageOption.keep=True: expected a storage type whose last tier is {' or '.join(_TIERS_THAT_KEEP)}, found "
                f"{self.storage_type.name}"
            )

    def _set_what_happens_when_full(self, drop_coldest, on_full, refuse_colder):
        self.on_full = one_of("StorageOption.on_full", on_full, _ON_FULL)
        if boolean("StorageOption.drop_coldest", drop_coldest) and on_full == "warn":
            raise ValueError(
                "StorageOption.on_full: expected 'drop' or 'error' with drop_coldest=True, found 'warn'"
            )
        self.drop_coldest = drop_coldest or on_full == "drop"
        sizes, tiers = self.storage_rows or self.storage_size, self.storage_type.tiers
        if self.drop_coldest and len(sizes) < len(tiers):
            raise ValueError(
                f"StorageOption.{'storage_rows' if self.storage_rows else 'storage_size'}: expected {len(tiers)} sizes with "
                f"drop_coldest, one for each tier of {self.storage_type.name}; found {list(sizes)}"
            )
        self.refuse_colder = boolean("StorageOption.refuse_colder", refuse_colder)
        ranked = self.cache_strategy in (CacheStrategy.SCORE, CacheStrategy.LFU)
        if refuse_colder and not (self.drop_coldest and ranked):
            raise ValueError(
                "StorageOption.refuse_colder: expected drop_coldest=True and CacheStrategy.SCORE or LFU with it, found "
                f"drop_coldest={self.drop_coldest} and {self.cache_strategy!r}"
            )


def _path(value, storage_type):
    """A storage_path as a string, or None. Types with a tier that keeps files need one."""
    where = "StorageOption.storage_path"
    if value is not None and (not isinstance(value, (str, os.PathLike)) or not os.fspath(value)):
        raise TypeError(f"{where}: expected the path of a directory or None, found {value!r}")
    path = None if value is None else os.fspath(value)
    if "\0" in (path or ""):
        raise ValueError(f"{where}: expected a path without null characters, found {value!r}")
    with_files = [tier for tier in storage_type.tiers if tier in TIERS_WITH_FILES]
    if with_files and path is None:
        raise ValueError(
            f"{where}: expected the path of a directory for storage type {storage_type.name}, found None: its "
            f"{' and '.join(with_files)} tier keeps files"
        )
    return path


def _storage_type(where, value):
    known = f"one of {', '.join(StorageType.__members__)}"
    if value is None:
        return StorageType.DEFAULT
    if isinstance(value, str):
        if value not in StorageType.__members__:
            hint = did_you_mean(value, StorageType.__members__)
            raise ValueError(f"{where}: expected {known}; found {value!r}{hint}")
        return StorageType[value]
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where}: expected {known}; found {value!r}")
    try:
        return StorageType(value)
    except ValueError:
        raise ValueError(f"{where}: expected {known}; found {value!r}") from None


def _cache_strategy(where, value):
    known = "CacheStrategy.LRU, CacheStrategy.LFU, CacheStrategy.SCORE or None"
    if value is None:
        return None
    if isinstance(value, str) and value in CacheStrategy.__members__:
        return CacheStrategy[value]
    if (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and value in CacheStrategy.values()
    ):
        return CacheStrategy(value)
    hint = did_you_mean(value, CacheStrategy.__members__)
    raise ValueError(f"{where}: expected {known}; found {value!r}{hint}")


def _sizes(where, value, storage_type, most=MAX_SIZE):
    if value is None:
        return ()
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    sizes = tuple(integer(f"{where}[{i}]", v, 1, most) for i, v in enumerate(values))
    if len(sizes) > len(storage_type.tiers):
        raise ValueError(
            f"{where}: expected at most {len(storage_type.tiers)} sizes, one for each tier of "
            f"{storage_type.name}; found {len(sizes)}"
        )
    return sizes


def storage_option_from_environment(environ=None):
    """The StorageOption of variables that are made without one. It is read from TF_MULTITIER_STORAGE_TYPE, _PATH, _SIZE and _KEEP.

    Args:
      environ: mapping to read; None: `os.environ`. _TYPE is a name of `StorageType`, _PATH a directory, _SIZE a
        comma-separated list of bytes, _KEEP 0 or 1.

    Returns:
      A StorageOption; the default one if none of the four is set.

    Raises:
      ValueError: a bad value. The message names the environment variable, what was expected and what was found.
    """
    environ = os.environ if environ is None else environ
    storage_type, path, size = (
        environ.get(k) for k in (ENV_STORAGE_TYPE, ENV_STORAGE_PATH, ENV_STORAGE_SIZE)
    )
    kind = _storage_type(f"environment variable {ENV_STORAGE_TYPE}", storage_type)
    sizes = None
    if size is not None:
        try:
            sizes = [int(s) for s in size.split(",")]
            sizes = list(_sizes(f"environment variable {ENV_STORAGE_SIZE}", sizes, kind))
        except ValueError as error:
            if "environment variable" in str(error):
                raise
            raise ValueError(
                f"environment variable {ENV_STORAGE_SIZE}: expected a comma-separated list of bytes, "
                f"found {size!r}"
            ) from None
    if path is not None and not path:
        raise ValueError(
            f"environment variable {ENV_STORAGE_PATH}: expected the path of a directory, found ''"
        )
    if path is None and any(t in TIERS_WITH_FILES for t in kind.tiers):
        raise ValueError(
            f"environment variable {ENV_STORAGE_PATH}: expected the path of a directory with {ENV_STORAGE_TYPE}={kind.name}, "
            "found it unset"
        )
    keep = environ.get(ENV_STORAGE_KEEP, "0")
    if keep not in ("0", "1"):
        raise ValueError(
            f"environment variable {ENV_STORAGE_KEEP}: expected 0 or 1, found {keep!r}"
        )
    if keep == "1" and kind.tiers[-1] not in _TIERS_THAT_KEEP:
        raise ValueError(
            f"environment variable {ENV_STORAGE_KEEP}=1: expected a {ENV_STORAGE_TYPE} whose last tier is "
            f"{' or '.join(_TIERS_THAT_KEEP)}, found {kind.name}"
        )
    return StorageOption(storage_type=kind, storage_path=path, storage_size=sizes, keep=keep == "1")


# Storage types for which the handle op and the engine use another name.
_SAME_TIERS = {
    StorageType.DEFAULT: StorageType.DRAM,
    StorageType.PMEM_MEMKIND: StorageType.PMEM,
    StorageType.PMEM_LIBPMEM: StorageType.PMEM,
}


def _built_with_cuda():
    """Whether types with HBM are left to the machine that holds the variable: it refuses them where it has no GPU."""
    try:
        from tf_multitier import _build_info
    except ImportError:
        return False
    return getattr(_build_info, "CUDA_VERSION", None) is not None


def check_storage_available(name, storage):
    """The storage type that the variable gets. Types with the same tiers give the same type.

    Raises:
      NotImplementedError: this build has no tiers for the type. The message names the type, the reason and the available types.
    """
    kind = _SAME_TIERS.get(storage.storage_type, storage.storage_type)
    if os.environ.get(ENV_DEVICE) == "emulated" or _built_with_cuda():
        return kind
    if kind not in AVAILABLE_STORAGE_TYPES:
        available = ", ".join(t.name for t in AVAILABLE_STORAGE_TYPES if t not in _SAME_TIERS)
        raise NotImplementedError(
            f"embedding variable '{name}': storage_type: expected one of {available}, because this build has no GPU "
            f"tier; found {kind.name}"
        )
    return kind


def storage_attrs(name, storage):
    """{attribute: value} of STORAGE_ATTRS for the handle and initialize ops.

    Args:
      name: the variable's name, for error messages.
      storage: the StorageOption to use.

    Raises:
      NotImplementedError: this build has no tiers for the storage type.
    """
    return {
        "storage_type": check_storage_available(name, storage).name,
        "storage_path": storage.storage_path or "",
        "storage_sizes": list(storage.storage_size),
        "storage_rows": list(storage.storage_rows),
        "initial_rows": storage.initial_rows,
        "cache_strategy": (
            "DEFAULT" if storage.cache_strategy is None else storage.cache_strategy.name
        ),
        "drop_coldest": storage.drop_coldest,
        "on_full": "drop" if storage.drop_coldest else storage.on_full,
        "dropped": storage.dropped,
        "dropped_bytes": storage.dropped_bytes,
        "removed_bytes": storage.removed_bytes,
        "refuse_colder": storage.refuse_colder,
        "on_corruption": storage.on_corruption,
        "keep": storage.keep,
    }
