"""External storage: a class of yours that holds the rows of the last tier of embedding variables and tables.

    class PyDictStorage(external_storage.Storage):
        def __init__(self):
            self.rows = {}

        def find(self, keys):
            return np.ones(len(keys), bool), np.stack([self.rows[key] for key in keys.tolist()])

        def insert(self, keys, rows):
            self.rows.update(zip(keys.tolist(), rows))

        def erase(self, keys):
            for key in keys.tolist():
                self.rows.pop(key, None)

    option = tf_multitier.StorageOption("DRAM_EXTERNAL", storage_rows=[100_000], external_storage=PyDictStorage)

The tier is cc/tier/external. This module makes the table of C functions (external_storage.h there) of a class, and registers it in both
libraries: the ops' and the engine's.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import typing
import weakref

import numpy as np

from tf_multitier._src.options import numpy_types

__all__ = ["Storage", "check", "load", "register"]

_VERSION = 1
_ERROR_BYTES = 2048


class Storage:
    """Base class of external storages: where the rows of one table are. Each table makes an instance, without arguments.

    `keys` is int64 [n]; keys of a uint64 table are the int64 of the same bits. `rows` is float32 [n, dim + states]: the value of each
    key, then the states of the optimizer, whatever type values have in the table. The rows of a call have the same width. Those that
    were inserted before an optimizer added its states are narrower, and are asked for alone. All arrays are the storage's own.

    The table has hot rows above, and writes them here when they leave DRAM, and all of them when it is flushed or closed. Version and
    frequency of rows are not here: the table has them in memory.

    An exception fails the operation that needs the storage, which names class and method, and nothing has changed. So does a result
    of a wrong type or shape. `insert` stores all rows or none. An update that hands rows down has ended when `insert` fails: the rows
    stay in memory, the error is printed to stderr at once, and operations that need room there fail until it works again. Any
    thread may call any method, also several at once; of one key, `insert` and `erase` come one after the other. A method may not use
    the table whose storage it is.

    Attributes:
      table: the name of the table. It is set before `__init__`.
    """

    table: str = ""

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(found, rows): bool [n], and float32 [n, dim + states]. Rows of keys that are not found are not used.

        It is asked for keys that were inserted, or that `keys` listed. One that is not found is lost: DataLossError (see `StorageOption.on_corruption`).
        """
        raise NotImplementedError

    def insert(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Stores the row of each key, in place of the one that it has. No key is twice in a call."""
        raise NotImplementedError

    def erase(self, keys: np.ndarray) -> None:
        """Forgets keys. Some may have no row."""
        raise NotImplementedError

    def keys(self) -> typing.Any:
        """The keys that have rows when the table is made: integers [n], each once. They are in the table from its start.

        Their version is -1, their frequency 0. Their rows are expected as wide as those of the table when they are first read.
        """
        return np.empty(0, np.int64)

    def flush(self) -> None:
        """Makes the rows durable that were inserted before, if the storage is. Called by `flush` and when the table is closed."""


def check(storage: typing.Any, where: str = "external_storage") -> None:
    """TypeError unless `storage` is a class derived from Storage with its own find, insert and erase."""
    if not isinstance(storage, type) or not issubclass(storage, Storage):
        given = (
            f"an instance of {type(storage).__name__}: give the class"
            if isinstance(storage, Storage)
            else repr(storage)
        )
        raise TypeError(
            f"{where}: expected a class derived from external_storage.Storage, found {given}"
        )
    for method in ("find", "insert", "erase"):
        if getattr(storage, method) is getattr(Storage, method):
            raise TypeError(
                f"{where}: expected class {storage.__name__} to have a method {method}, found none"
            )


_DTYPES = ("float32", "bfloat16", "float16")  # by number


class _Column(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("offset", ctypes.c_uint64),
    ]


class _RowLayout(ctypes.Structure):
    _fields_ = [
        ("row_bytes", ctypes.c_uint64),
        ("num_columns", ctypes.c_uint64),
        ("columns", ctypes.POINTER(_Column)),
    ]


_P, _N, _C = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
_LAYOUT = ctypes.POINTER(_RowLayout)
_ADD = ctypes.CFUNCTYPE(None, _P, _P, _N)
_WORK = ctypes.CFUNCTYPE(None, _P)
_FUNCTIONS = {
    "open": ctypes.CFUNCTYPE(_P, _P, ctypes.c_char_p, _P),
    "find": ctypes.CFUNCTYPE(_C, _P, _P, _N, _LAYOUT, _P, _P, _P),
    "insert": ctypes.CFUNCTYPE(_C, _P, _P, _N, _LAYOUT, _P, _P),
    "erase": ctypes.CFUNCTYPE(_C, _P, _P, _N, _P),
    "keys": ctypes.CFUNCTYPE(_C, _P, _ADD, _P, _P),
    "flush": ctypes.CFUNCTYPE(_C, _P, _P),
    "close": ctypes.CFUNCTYPE(None, _P),
    "unlocked": ctypes.CFUNCTYPE(None, _P, _WORK, _P),
}


class _Functions(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int32), ("context", _P), *_FUNCTIONS.items()]


def _array(address, dtype, shape):
    """The memory of the engine at `address` as an array, until the call ends."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if n == 0:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_uint8 * n).from_address(address), dtype).reshape(shape)


class _Rows:
    """Rows of the engine, [n, row_bytes], as float32 [n, width]: the columns without the bytes between them."""

    def __init__(self, layout):
        self.row_bytes = layout.row_bytes
        columns = layout.columns[: layout.num_columns]
        self.columns = [(c.offset, c.dim, numpy_types.of_name(_DTYPES[c.dtype])) for c in columns]
        self.width = sum(dim for _, dim, _ in self.columns)
        packed = all(dtype == np.float32 for _, _, dtype in self.columns)
        self.is_packed = packed and 4 * self.width == self.row_bytes

    def _each(self, memory):
        """(the elements of a column in the engine's memory, their place in a row of float32)."""
        at = 0
        for offset, dim, dtype in self.columns:
            elements = memory[:, offset : offset + dim * dtype.itemsize].view(dtype)
            yield elements, slice(at, at + dim)
            at += dim

    def read(self, address, n):
        """A copy of rows."""
        if self.is_packed:
            return _array(address, np.float32, (n, self.width)).copy()
        rows = np.empty((n, self.width), np.float32)
        for elements, place in self._each(_array(address, np.uint8, (n, self.row_bytes))):
            rows[:, place] = elements
        return rows

    def write(self, address, rows):
        if self.is_packed:
            _array(address, np.float32, rows.shape)[:] = rows
            return
        for elements, place in self._each(_array(address, np.uint8, (len(rows), self.row_bytes))):
            elements[:] = rows[:, place]


def _result(what, value, dtype, shape):
    """A result of a method as an array of that type and shape."""
    array = np.asarray(value)
    if array.dtype != dtype or array.shape != shape:
        raise TypeError(
            f"expected {what} as {np.dtype(dtype).name} {list(shape)}, found {array.dtype.name} {list(array.shape)}"
        )
    return array


def _listed(keys):
    array = np.asarray(keys if hasattr(keys, "dtype") else list(keys))
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"expected keys as integers [n], found {array.dtype.name} {list(array.shape)}"
        )
    return np.ascontiguousarray(array).astype(np.int64, casting="unsafe")


class _Bridge:
    """The C functions of a class. It lives as long as the process: tables have its addresses."""

    def __init__(self, cls):
        self._cls = cls
        self._stores = {}  # number: instance; its operations are atomic
        self._numbers = itertools.count(1)
        self._known = {}  # (num_columns, row_bytes, dtype): _Rows
        kept = {name: kind(self._guarded(name)) for name, kind in _FUNCTIONS.items()}
        self.functions = _Functions(_VERSION, None, *kept.values())

    def _guarded(self, name):
        method = getattr(self, "_" + name)
        if name in ("close", "unlocked"):
            return method

        def call(*arguments):
            try:
                return method(*arguments[:-1]) or 0
            except BaseException as error:  # noqa: BLE001 it must not pass through C
                text = f"{type(error).__name__}: {error}".encode(errors="replace")
                ctypes.memmove(
                    arguments[-1],
                    text[: _ERROR_BYTES - 1] + b"\0",
                    min(len(text) + 1, _ERROR_BYTES),
                )
                return 0 if name == "open" else 1

        return call

    def _rows(self, layout):
        columns = layout.contents
        known = (columns.num_columns, columns.row_bytes, columns.columns[0].dtype)
        key = known + tuple(c.dim for c in columns.columns[: columns.num_columns])
        if key not in self._known:
            self._known[key] = _Rows(columns)
        return self._known[key]

    def _open(self, _, table):
        store = self._cls.__new__(self._cls)
        store.table = table.decode(errors="surrogateescape")
        store.__init__()
        number = next(self._numbers)
        self._stores[number] = store
        return number

    def _find(self, number, keys, n, layout, found, rows):
        asked = self._rows(layout)
        result = self._stores[number].find(_array(keys, np.int64, (n,)).copy())
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"expected (found, rows), found {type(result).__name__}")
        is_found = _result("found", result[0], np.bool_, (n,))
        if not is_found.any():
            return
        values = _result("rows", result[1], np.float32, (n, asked.width))
        _array(found, np.bool_, (n,))[:] = is_found
        asked.write(rows, values)

    def _insert(self, number, keys, n, layout, rows):
        self._stores[number].insert(
            _array(keys, np.int64, (n,)).copy(), self._rows(layout).read(rows, n)
        )

    def _erase(self, number, keys, n):
        self._stores[number].erase(_array(keys, np.int64, (n,)).copy())

    def _keys(self, number, add, list_):
        keys = _listed(self._stores[number].keys())
        add(list_, keys.ctypes.data, len(keys))

    def _flush(self, number):
        self._stores[number].flush()

    def _close(self, number):
        self._stores.pop(number, None)

    def _unlocked(self, _, work, argument):
        work(argument)  # ctypes releases the GIL


class _Registered:
    """The storages of the process by name, each with what keeps it alive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.classes: dict[str, type] = {}
        self.kept: list[typing.Any] = []  # tables have addresses in them
        self.libraries: list[typing.Any] = []

    def add(self, name, functions):
        """Registers C functions in both libraries."""
        if not self.libraries:
            from tf_multitier import _engine
            from tf_multitier._src.tensorflow.library import get_library_path

            self.libraries = [ctypes.CDLL(path) for path in (_engine.__file__, get_library_path())]
        encoded = name.encode(errors="surrogateescape")
        for library in self.libraries:
            error = ctypes.create_string_buffer(_ERROR_BYTES)
            if library.multitier_register_storage(encoded, functions, error):
                raise ValueError(error.value.decode(errors="replace"))
            # At the end of the process, finalizers run in the order opposite to that in which they were made: first those that close
            # variables and tables, then this.
            weakref.finalize(self, library.multitier_end_storage, encoded)


_REGISTERED = _Registered()


def register(storage: type[Storage], name: str | None = None) -> str:
    """Registers a class in this process, and returns the name by which options, SavedModels and checkpoints have it.

    `StorageOption(external_storage=cls)` does it. A process that loads a SavedModel calls it first: the model has the name alone. A
    server of parameters does, too.

    Args:
      storage: a class derived from Storage.
      name: None: its module and qualified name. A class of that name that was registered before is replaced; a class inside of a function
        gets a number if there is one.

    Raises:
      TypeError: `storage` is not such a class.
    """
    check(storage, "storage")
    with _REGISTERED.lock:
        given = name or f"{storage.__module__}.{storage.__qualname__}"
        found = given
        for number in itertools.count(2):
            known = _REGISTERED.classes.get(found)
            if known is storage:
                return found
            if known is None or name is not None or "<locals>" not in given:
                break
            found = f"{storage.__module__}#{number}.{storage.__qualname__}"
        bridge = _Bridge(storage)
        _REGISTERED.add(found, ctypes.byref(bridge.functions))
        _REGISTERED.kept.append(bridge)
        _REGISTERED.classes[found] = storage
        return found


def load(path: str, name: str) -> str:
    """Registers the storage of a shared library, which exports `const multitier_storage* multitier_storage_get(void)`.

    The functions are those of cc/tier/external/external_storage.h. Returns the name, for `StorageOption(external_storage=name)`.

    Raises:
      OSError: the library cannot be loaded. AttributeError: it exports no such function.
      ValueError: its table of functions is of another version, or lacks functions.
    """
    library = ctypes.CDLL(path)
    get = library.multitier_storage_get
    get.restype = _P
    functions = get()
    if not functions:
        raise ValueError(f"'{path}': multitier_storage_get: expected a storage, found NULL")
    with _REGISTERED.lock:
        _REGISTERED.add(name, ctypes.c_void_p(functions))
        _REGISTERED.classes.pop(name, None)
        _REGISTERED.kept.append(library)
    return name


def name_of(option: str, value: typing.Any) -> str:
    """The name of a storage in the record of options, from its class or its name."""
    if isinstance(value, str):
        return value
    check(value, option)
    return register(value)
