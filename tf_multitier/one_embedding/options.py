"""Initializers, tables and stores as the plain dicts of OneFlow's OneEmbedding: same names, order of arguments and defaults.

    make_uniform_initializer(low=-0.1, high=0.1)     {"type": "uniform", "low": -0.1, "high": 0.1}
    make_table_options(initializer)                  {"initializer": ...}; of a list of columns {"columns": [...]}
    make_cached_ssd_store_options(8142, "/ssd")      {"kv_store": {"caches": [...], "persistent_table": {...}}, ...}

Each function checks its arguments. `initializers_of`, and stores.py, check dicts that a program wrote itself. No function changes a
dict that it is given.
"""

from __future__ import annotations

import collections.abc
import os
import typing

from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.options.option_values import path_text
from tf_multitier._src.options.option_values import real

# {type of an initializer: its parameters}.
_PARAMETERS = {
    "uniform": ("low", "high"),
    "normal": ("mean", "std"),
    "constant": ("value",),
    "trunc_normal": ("mean", "std", "a", "b"),
}
MAX_TABLES = 65_535
BLOCK_SIZES = (512, 4096)
# Of a tier: a table has no more rows, and its sizes are a multiple of a byte.
_MOST_ROWS, _MOST_MIB, _BYTE = 2**32, 2**40, 2**-20


def checked_dict(where: str, value: typing.Any, keys: collections.abc.Collection[str]) -> dict:
    """`value`, a dict with these keys and no others. TypeError: no dict. ValueError: other keys."""
    if not isinstance(value, collections.abc.Mapping):
        raise TypeError(f"{where}: expected a dict with {', '.join(keys)}; found {value!r}")
    for key in keys:
        if key not in value:
            raise ValueError(f"{where}: expected the key {key!r}, found {sorted(map(str, value))}")
    for key in value:
        if key not in keys:
            raise ValueError(f"{where}: expected {', '.join(keys)}; found the key {key!r}")
    return dict(value)


def checked_initializer(where: str, initializer: typing.Any) -> dict:
    """A copy of an initializer. TypeError, ValueError: it is none, or its parameters are out of range."""
    kind = initializer.get("type") if isinstance(initializer, collections.abc.Mapping) else None
    if not isinstance(kind, str) or kind not in _PARAMETERS:
        raise (TypeError if kind is None else ValueError)(
            f"{where}: expected an initializer, a dict whose 'type' is {', '.join(_PARAMETERS)}; found {initializer!r}"
        )
    found = checked_dict(where, initializer, ("type", *_PARAMETERS[kind]))
    for name in _PARAMETERS[kind]:
        found[name] = real(f"{where}: {name}", found[name])
    if kind in ("normal", "trunc_normal") and found["std"] < 0:
        raise ValueError(f"{where}: std: expected at least 0, found {found['std']}")
    if kind == "trunc_normal" and found["std"] == 0:
        raise ValueError(f"{where}: std: expected more than 0, found 0")
    for low, high in (("low", "high"), ("a", "b")):
        if low in found and not found[low] < found[high]:
            raise ValueError(
                f"{where}: expected {low} < {high}, found {low}={found[low]} and {high}={found[high]}"
            )
    return found


def make_uniform_initializer(low: float = 0.0, high: float = 1.0) -> dict:
    """Initial values of a uniform distribution from low to high. ValueError: low >= high."""
    return checked_initializer(
        "make_uniform_initializer", {"type": "uniform", "low": low, "high": high}
    )


def make_normal_initializer(mean: float = 0.0, std: float = 1.0) -> dict:
    """Initial values of a normal distribution. ValueError: std < 0."""
    return checked_initializer(
        "make_normal_initializer", {"type": "normal", "mean": mean, "std": std}
    )


def make_constant_initializer(value: float) -> dict:
    """The same initial value for every element."""
    return checked_initializer("make_constant_initializer", {"type": "constant", "value": value})


def make_trunc_normal_initializer(
    mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> dict:
    """Initial values of a normal distribution between a and b, which are values and no multiples of std.

    Raises:
      ValueError: std <= 0, or a >= b.
    """
    return checked_initializer(
        "make_trunc_normal_initializer",
        {"type": "trunc_normal", "mean": mean, "std": std, "a": a, "b": b},
    )


def make_column_options(initializer: dict) -> dict:
    """One column of a table of MultiTableMultiColumnEmbedding. TypeError, ValueError: no initializer."""
    return {"initializer": checked_initializer("make_column_options", initializer)}


def make_table_options(param: typing.Any) -> dict:
    """One table.

    Args:
      param: an initializer, for all its columns; or a list of make_column_options, one for each column.

    Raises:
      TypeError, ValueError: it is neither.
    """
    if isinstance(param, (list, tuple)):
        return {"columns": [_column(f"make_table_options: column {i}", c) for i, c in _each(param)]}
    return {"initializer": checked_initializer("make_table_options", param)}


def make_table(param: typing.Any) -> dict:
    """The same as make_table_options."""
    return make_table_options(param)


def _each(columns):
    if not columns:
        raise ValueError("make_table_options: expected at least one column, found none")
    return enumerate(columns)


def _column(where, column):
    given = checked_dict(where, column, ("initializer",))
    return {"initializer": checked_initializer(where, given["initializer"])}


def initializers_of(tables: typing.Any, default: dict | None, num_columns: int) -> list[list]:
    """For each table, the checked initializers of its columns.

    Args:
      tables: a list of make_table_options, or None: one table of `default`.
      default: an initializer; None: normal, with mean 0 and standard deviation 0.05.
      num_columns: of each table.

    Raises:
      TypeError, ValueError: a bad table or initializer; no table, or more than 65,535; a table with another number of columns.
    """
    default = make_normal_initializer(0.0, 0.05) if default is None else default
    default = checked_initializer("default_initializer", default)
    if tables is None:
        return [[default] * num_columns]
    if not isinstance(tables, (list, tuple)):
        raise TypeError(f"tables: expected a list of make_table_options or None, found {tables!r}")
    if not 1 <= len(tables) <= MAX_TABLES:
        raise ValueError(f"tables: expected 1 to {MAX_TABLES} tables, found {len(tables)}")
    return [_columns_of(f"tables[{i}]", table, num_columns) for i, table in enumerate(tables)]


def _columns_of(where, table, num_columns):
    is_dict = isinstance(table, collections.abc.Mapping)
    if not is_dict or ("initializer" in table) == ("columns" in table):
        raise (ValueError if is_dict else TypeError)(
            f"{where}: expected a dict with either 'initializer' or 'columns', found {table!r}"
        )
    if "initializer" in table:
        table = checked_dict(where, table, ("initializer",))
        return [checked_initializer(where, table["initializer"])] * num_columns
    columns = checked_dict(where, table, ("columns",))["columns"]
    if not isinstance(columns, (list, tuple)) or len(columns) != num_columns:
        raise ValueError(
            f"{where}: expected a list of {num_columns} columns, one for each of embedding_dim, found {columns!r}"
        )
    return [_column(f"{where}: column {i}", c)["initializer"] for i, c in enumerate(columns)]


# ---- stores


def checked_budget(where: str, value: typing.Any, may_be_none: bool = False) -> typing.Any:
    """A number of MiB above 0, or 0 where there need be no cache. TypeError, ValueError: another value."""
    number = real(where, value)
    if number < 0 or (number < _BYTE and not (number == 0 and may_be_none)):
        least = "0 or more" if may_be_none else "more"
        raise ValueError(f"{where}: expected {least} than a byte in MiB, found {value}")
    if number > _MOST_MIB:
        raise ValueError(f"{where}: expected at most {_MOST_MIB} MiB, found {value}")
    return value


def checked_capacity(where: str, value: typing.Any) -> int:
    """The rows that a full cache holds. TypeError, ValueError: another value."""
    return integer(where, value, 1, _MOST_ROWS)


def lru_cache(budget_mb: float, kind: str) -> dict:
    """A cache that holds `budget_mb` MiB of rows."""
    return {"policy": "lru", "cache_memory_budget_mb": budget_mb, "value_memory_kind": kind}


def full_cache(capacity: int, kind: str) -> dict:
    """A cache that holds all rows, `capacity` of them."""
    return {"policy": "full", "capacity": capacity, "value_memory_kind": kind}


def checked_path(path: typing.Any) -> typing.Any:
    """A path, or a list with the path of each rank; how long it has to be is checked where the number of ranks is known.

    Raises:
      TypeError, ValueError: another value, or an empty path, or one that is no text in UTF-8.
    """
    paths = path if isinstance(path, (list, tuple)) else [path]
    for each in paths:
        if not isinstance(each, (str, os.PathLike)):
            raise TypeError(
                f"persistent_path: expected a path or a list of paths, one for each rank; found {path!r}"
            )
    found = [path_text("persistent_path", each) for each in paths]
    return found if isinstance(path, (list, tuple)) else found[0]


def checked_row(size_factor: typing.Any, storage_dim: typing.Any, block: typing.Any) -> None:
    """TypeError, ValueError: one of these options of a store has a bad value."""
    integer("size_factor", size_factor, 1)
    if integer("storage_dim", storage_dim, -1) != -1:
        integer("storage_dim", storage_dim, 1)
    one_of("physical_block_size", integer("physical_block_size", block, 1), BLOCK_SIZES)


def _store(caches, path, capacity, size_factor, storage_dim, block):
    checked_row(size_factor, storage_dim, block)
    return {
        "kv_store": {
            "caches": caches,
            "persistent_table": {
                "path": checked_path(path),
                "physical_block_size": block,
                "capacity_hint": capacity,
            },
        },
        "size_factor": size_factor,
        "storage_dim": storage_dim,
    }


def make_device_mem_store_options(
    persistent_path: typing.Any,
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict:
    """A store that has all rows in the memory of the device.

    Args:
      persistent_path: the folder of temporary files and snapshots, in which each rank has a folder; or a list with the folder of each
        rank.
      capacity: rows in all, 1 to 2**32. Training a further key is ResourceExhausted.
      size_factor: elements of a row, with the states of the optimizer, per element of its value: 1 for SGD, 2 for momentum and Adagrad,
        3 for Adam and Ftrl. It turns the budget of a cache on a GPU into rows; elsewhere rows follow from the optimizer.
      storage_dim: in place of size_factor, the elements of a row; -1: size_factor times embedding_dim.
      physical_block_size: 512 or 4096. It has no effect here.

    Raises:
      TypeError, ValueError: a bad value.
    """
    capacity = checked_capacity("capacity", capacity)
    caches = [full_cache(capacity, "device")]
    return _store(caches, persistent_path, capacity, size_factor, storage_dim, physical_block_size)


def make_cached_host_mem_store_options(
    cache_budget_mb: float,
    persistent_path: typing.Any,
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict:
    """A store that has all rows in the memory of the host, and a cache on the device.

    Args:
      cache_budget_mb: MiB of the cache of each rank, more than 0. On a CPU there is no cache above the memory of the host.
      persistent_path, capacity, size_factor, storage_dim, physical_block_size: see make_device_mem_store_options.

    Raises:
      TypeError, ValueError: a bad value.
    """
    capacity = checked_capacity("capacity", capacity)
    budget = checked_budget("cache_budget_mb", cache_budget_mb)
    caches = [lru_cache(budget, "device"), full_cache(capacity, "host")]
    return _store(caches, persistent_path, capacity, size_factor, storage_dim, physical_block_size)


def make_cached_host_mem_store_option(
    cache_budget_mb: float,
    persistent_path: typing.Any,
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict:
    """The same as make_cached_host_mem_store_options."""
    return make_cached_host_mem_store_options(
        cache_budget_mb, persistent_path, capacity, size_factor, storage_dim, physical_block_size
    )


def make_cached_ssd_store_options(
    cache_budget_mb: float,
    persistent_path: typing.Any,
    capacity: int | None = None,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
    host_cache_budget_mb: float = 0,
) -> dict:
    """A store that has rows on an SSD below persistent_path, and caches on the device and in the memory of the host.

    Args:
      cache_budget_mb, host_cache_budget_mb: MiB of the caches of each rank; one of them may be 0. On a CPU, one cache has their sum.
      capacity: a hint. It reserves nothing, and further rows are no error. None: no hint.
      persistent_path, size_factor, storage_dim, physical_block_size: see make_device_mem_store_options.

    Raises:
      TypeError, ValueError: a bad value, or both caches are 0.
    """
    capacity = 0 if capacity is None else integer("capacity", capacity, 1)
    checked_budget("cache_budget_mb", cache_budget_mb, may_be_none=True)
    checked_budget("host_cache_budget_mb", host_cache_budget_mb, may_be_none=True)
    caches = [
        lru_cache(budget, kind)
        for budget, kind in ((cache_budget_mb, "device"), (host_cache_budget_mb, "host"))
        if budget > 0
    ]
    if not caches:
        raise ValueError(
            "cache_budget_mb and host_cache_budget_mb: expected one of them above 0, found 0 and 0"
        )
    return _store(caches, persistent_path, capacity, size_factor, storage_dim, physical_block_size)
