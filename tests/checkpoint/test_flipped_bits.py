"""Files of rows with one flipped bit, bit after bit: the same rows, or an error that names the file."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier.data import arrow_reader


def flips(path, count, end=None):
    """Flips one bit of each of `count` bytes from all over a file (before `end`), one after the other. Yields which byte."""
    with open(path, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END) if end is None else end
        for i in np.unique(np.linspace(0, size - 1, count, dtype=int)).tolist():
            file.seek(i)
            [was] = file.read(1)
            for byte in (was ^ (1 << i % 8), was):
                file.seek(i)
                file.write(bytes([byte]))
                if byte != was:
                    yield i


def rows():
    """Rows of a type and keys that are not the default."""
    keys = np.arange(200, dtype=np.uint64) * np.uint64(2**57 - 1)
    data = np.random.default_rng(0).integers(-9, 9, (200, 5)).astype(np.float32)
    columns = [("value", 4, 0.0), ("slot", 1, 0.5)]
    return engine.Rows(columns, keys, np.arange(200), np.arange(200) % 7, data, dtype="bfloat16")


def content(source):
    read = source if isinstance(source, engine.Rows) else source.read()
    arrays = (read.keys, read.frequencies, read.versions, read.data)
    return [read.columns, read.dtype, read.keys.dtype, *(array.tolist() for array in arrays)]


def read_or_named(path, read):
    """What `read()` returns, or None if it raises an error that names the file."""
    try:
        return read()
    except ValueError as error:
        assert path in str(error), error
        return None


@pytest.mark.parametrize(
    "save, load",
    [
        (checkpoint.save_parquet, checkpoint.load_parquet),
        (checkpoint.save_npz, checkpoint.load_npz),
    ],
    ids=["parquet", "npz"],
)
def test_a_file_of_rows_gives_the_same_rows_or_is_named(tmp_path, save, load):
    path = str(tmp_path / "rows")
    save(rows(), path)
    whole = content(load(path))
    assert whole == content(rows())
    found = [read_or_named(path, lambda: content(load(path))) for _ in flips(path, 1500)]
    assert all(one in (None, whole) for one in found)
    assert found.count(None) > len(found) / 2


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "none"}])
def test_pages_with_checksums_are_verified(tmp_path, options):
    path = str(tmp_path / "file")
    columns = {
        "n": range(300),
        "text": [str(i % 50) for i in range(300)],
        "tags": [[i] * (i % 3) for i in range(300)],
    }
    pq.write_table(pa.table(columns), path, write_page_checksum=True, **options)
    fields = arrow_reader.complete_fields(path)

    def read():
        return [[a.tolist() for a in arrays] for arrays in arrow_reader.chunks(path, fields, 100)]

    whole = read()
    footer = os.path.getsize(path) - 8 - pq.read_metadata(path).serialized_size
    found = [read_or_named(path, read) for _ in flips(path, 1000, footer)]
    assert all(one in (None, whole) for one in found)
    assert found.count(None) > len(found) / 2
