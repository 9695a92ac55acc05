"""A store's dict as a folder and a StorageOption.

device_mem       a full cache on the device            DRAM             on a GPU: HBM
cached_host_mem  lru on the device, full on the host   DRAM                       HBM_DRAM
cached_ssd       lru on the device, lru on the host    DRAM_SSDHASH               HBM_DRAM_SSDHASH

<persistent_path>/0-1/              the folder of rank 0 of a world of 1; of rank 1 of 2: 1-2
  snapshots/<name>/                 lasts (snapshots.py)
  ...                               the tiers' files, deleted with the variable
"""

from __future__ import annotations

import collections.abc
import copy
import json
import math
import numbers
import os
import typing

from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.storage_option import StorageOption
from tf_multitier.one_embedding import options

_BUCKETS = 1024  # of keys, whole ones of which a rank has

# Bytes of DRAM between HBM and an SSD if the store has no host cache.
_LEAST_DRAM = 64 << 20
_MIB = 1 << 20


class Store:
    """A checked store of one embedding.

    Attributes:
      folder: the folder of this rank.
      capacity: rows that a full store holds in this rank; None: an SSD store, which has no bound.
      root: the folder of the folders of the ranks; None: each has a path of its own.
      options: the store as plain numbers, text, lists and dicts.
    """

    def __init__(self, store: typing.Any, embedding_dim: int, place: tuple = (0, 1)) -> None:
        """TypeError, ValueError: `store` is not what the make_..._store_options return."""
        store = options.checked_dict(
            "store_options", store, ("kv_store", "size_factor", "storage_dim")
        )
        kv_store = options.checked_dict(
            "kv_store", store["kv_store"], ("caches", "persistent_table")
        )
        table = options.checked_dict(
            "persistent_table",
            kv_store["persistent_table"],
            ("path", "physical_block_size", "capacity_hint"),
        )
        options.checked_row(
            store["size_factor"], store["storage_dim"], table["physical_block_size"]
        )
        integer("capacity_hint", table["capacity_hint"], 0)
        self.folder = _folder_of_rank(table["path"], place)
        self.root = os.path.dirname(self.folder) if _is_root(table["path"]) else None
        given = store["storage_dim"]
        self._storage_dim = store["size_factor"] * embedding_dim if given == -1 else given
        if self._storage_dim < embedding_dim:
            raise ValueError(
                f"storage_dim: expected at least {embedding_dim}, the elements of a value, found {given}"
            )
        caches = kv_store["caches"]
        if not isinstance(caches, (list, tuple)) or not 1 <= len(caches) <= 2:
            raise ValueError(f"caches: expected a list of one or two caches, found {caches!r}")
        self._caches = [_cache(f"caches[{i}]", cache) for i, cache in enumerate(caches)]
        kinds = tuple((policy, kind) for policy, kind, _ in self._caches)
        if kinds not in _KINDS:
            raise ValueError(
                "caches: expected those of make_device_mem_store_options, make_cached_host_mem_store_options or "
                f"make_cached_ssd_store_options; found {caches!r}"
            )
        full = [amount for policy, _, amount in self._caches if policy == "full"]
        self.capacity = _share(full[0], place[1]) if full else None
        table["path"] = options.checked_path(table["path"])
        kv_store = {"caches": [dict(cache) for cache in caches], "persistent_table": table}
        self.options = json.loads(json.dumps({**store, "kv_store": kv_store}, default=_plain))

    def option(self, on_gpu: bool) -> StorageOption:
        """The StorageOption of the variable. on_gpu: with HBM where the store has a cache on the device."""
        kinds = [(policy, kind) for policy, kind, _ in self._caches]
        amounts = [amount for _, _, amount in self._caches]
        on_gpu = on_gpu and kinds[0][1] == "device"
        if self.capacity is None:
            sizes = [int(mib * _MIB) for mib in amounts]
            if not on_gpu:
                return StorageOption("DRAM_SSDHASH", self.folder, [sum(sizes)])
            dram = sizes[1] if len(sizes) == 2 else _LEAST_DRAM
            return StorageOption("HBM_DRAM_SSDHASH", self.folder, [sizes[0], dram])
        if not on_gpu:
            return StorageOption("DRAM", storage_rows=[self.capacity])
        if len(kinds) == 1:
            return StorageOption("HBM", storage_rows=[self.capacity])
        cached = max(1, int(amounts[0] * _MIB) // (4 * self._storage_dim))
        return StorageOption("HBM_DRAM", storage_rows=[cached, self.capacity])


_KINDS = {
    (("full", "device"),),
    (("full", "host"),),
    (("lru", "device"), ("full", "host")),
    (("lru", "device"),),
    (("lru", "host"),),
    (("lru", "device"), ("lru", "host")),
}


def _cache(where, cache):
    """(policy, memory, capacity or MiB) of a cache."""
    policy = cache.get("policy") if isinstance(cache, collections.abc.Mapping) else None
    if policy not in ("lru", "full"):
        raise ValueError(f"{where}: expected a dict whose 'policy' is lru or full, found {cache!r}")
    amount = "capacity" if policy == "full" else "cache_memory_budget_mb"
    found = options.checked_dict(where, cache, ("policy", amount, "value_memory_kind"))
    if found["value_memory_kind"] not in ("device", "host"):
        raise ValueError(
            f"{where}: value_memory_kind: expected device or host, found {found['value_memory_kind']!r}"
        )
    if policy == "full":
        options.checked_capacity(f"{where}: capacity", found[amount])
    else:
        options.checked_budget(f"{where}: {amount}", found[amount])
    return policy, found["value_memory_kind"], found[amount]


def _plain(number):
    return int(number) if isinstance(number, numbers.Integral) else float(number)


def _share(capacity, size):
    """Rows of a rank. Keys are not divided evenly: six deviations more than the share."""
    if size == 1:
        return capacity
    share = -(-_BUCKETS // size) / _BUCKETS * capacity
    return min(capacity, math.ceil(share + 6 * math.sqrt(share)))


def folder_of(store: dict, place: tuple) -> str:
    """The folder of this rank of a checked store. place: (rank, size of the world)."""
    return _folder_of_rank(store["kv_store"]["persistent_table"]["path"], place)


def below(store: dict, name: str) -> dict:
    """A copy of a checked store whose folder is `name` below that of the store."""
    store = copy.deepcopy(store)
    table = store["kv_store"]["persistent_table"]
    path = table["path"]
    if _is_root(path):
        table["path"] = os.path.join(path, name)
    else:
        table["path"] = [os.path.join(each, name) for each in path]
    return store


def _is_root(path):
    return not isinstance(path, (list, tuple))


def _folder_of_rank(path, place):
    rank, size = place
    path = options.checked_path(path)
    if _is_root(path):
        return os.path.abspath(os.path.join(path, f"{rank}-{size}"))
    if len(path) != size:
        raise ValueError(
            f"persistent_path: expected a list of {size} {'path' if size == 1 else 'paths'}, one for each rank, found {len(path)}"
        )
    return os.path.abspath(path[rank])
