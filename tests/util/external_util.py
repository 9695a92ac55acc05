"""External storages for tests: dictionaries that keep their rows for the next table, and that a test can make fail."""

import typing

import numpy as np

import tf_multitier
from tf_multitier import engine
from tf_multitier import external_storage


class Dict(external_storage.Storage):
    """The storage of the documents: a dictionary of rows."""

    def __init__(self):
        self.rows = {}

    def find(self, keys):
        return np.ones(len(keys), bool), np.stack([self.rows[key] for key in keys.tolist()])

    def insert(self, keys, rows):
        self.rows.update(zip(keys.tolist(), rows))

    def erase(self, keys):
        for key in keys.tolist():
            self.rows.pop(key, None)


def make_class(base=Dict):
    """A class of its own, with `made`, its instances, and `fault`: {method: function of (its result) that gives another one}."""

    class Store(base):
        made: typing.ClassVar[list] = []
        fault: typing.ClassVar[dict] = {}

        def __init__(self):
            super().__init__()
            self.made.append(self)

        def find(self, keys):
            return self._faulty("find", super().find(keys))

        def insert(self, keys, rows):
            self._faulty("insert", None)
            assert rows.dtype == np.float32 and keys.dtype == np.int64 and len(keys) == len(rows)
            super().insert(keys, rows)

        def erase(self, keys):
            self._faulty("erase", None)
            super().erase(keys)

        def _faulty(self, method, result):
            fault = self.fault.get(method)  # once: the background asks, too
            return result if fault is None else fault(result)

    return Store


def make_kept():
    """A class whose instances share rows, which stay when a table goes, as those of a database do."""

    class Kept(make_class()):
        kept: typing.ClassVar[dict] = {}

        def __init__(self):
            super().__init__()
            self.rows = self.kept

        def keys(self):
            return list(self.kept)

    return Kept


def broken(result):
    raise RuntimeError("no connection")


def option(kind, storage, path=None, rows=4, **options):
    tiers = kind.split("_")
    return tf_multitier.StorageOption(
        kind,
        str(path) if "PMEM" in kind else None,
        storage_rows=[rows] * (len(tiers) - 1),
        external_storage=storage,
        **options,
    )


def make_table(storage, kind="DRAM_EXTERNAL", rows=4, dim=4, **options):
    rows = [rows] * (len(kind.split("_")) - 1)
    return engine.Table(
        dim,
        "uniform",
        -1,
        1,
        seed=3,
        storage_type=kind,
        storage_rows=rows,
        external_storage=storage,
        **options,
    )


def train(table, keys, rule="sgd", **options):
    hyper = {"learning_rate": 0.5}
    return table.apply(rule, keys, np.ones((len(keys), table.dim)), hyper=hyper, **options)
