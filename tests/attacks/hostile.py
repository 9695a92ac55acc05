"""Hostile files: what a reader may be given whose checksums are right. Their writers are known, so anyone can make such a file.

mutations   changes one place of a JSON value: a member dropped or doubled, or given another type, a huge number, a deep nesting
repack      files of a kept table and of a checkpoint with another content, and the checksums that fit it
"""

import copy
import json
import os
import zlib

import numpy as np
import tensorflow as tf

_DEEP = "@deep@"
_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)

VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2,
    1.5,
    1e300,
    2**20 + 1,
    2**31,
    2**32,
    2**40 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
    -(2**63),
    float("nan"),
    float("inf"),
    "",
    "x",
    "../x",
    "a/b",
    "matrix",
    "uint32",
    "float16",
    "a\0b",
    "\ud800",
    "y" * 5000,
    [],
    {},
    [1],
    [[["value", 4, 0.0]]],
    {"a": 1},
    _DEEP,
]


def _places(value, place=()):
    """The places of all values in a JSON value, each a tuple of names and indexes."""
    yield place
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _places(item, (*place, name))


def _parent(value, place):
    for name in place[:-1]:
        value = value[name]
    return value


def mutations(value):
    """Yields (what was changed, JSON text) for each change of one place of a JSON value."""
    for place in list(_places(value)):
        for new in VALUES:
            changed = copy.deepcopy(value)
            if place:
                _parent(changed, place)[place[-1]] = new
            else:
                changed = new
            yield f"{place} = {str(new)[:40]!r}", text_of(changed)
        if not place:
            continue
        changed = copy.deepcopy(value)
        del _parent(changed, place)[place[-1]]
        yield f"without {place}", text_of(changed)
        changed = copy.deepcopy(value)
        of = _parent(changed, place)
        if isinstance(of, list):
            of.append(copy.deepcopy(of[place[-1]]))
            yield f"{place} twice", text_of(changed)


def text_of(value):
    """JSON, with the nesting that `json.dumps` could not write."""
    text = value if isinstance(value, str) and value == _DEEP else json.dumps(value)
    return text.replace(f'"{_DEEP}"', _DEEP).replace(_DEEP, "[" * 100_000 + "]" * 100_000)


def crc32c(data, crc=0):
    """The CRC-32C of bytes that follow those of `crc`."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def write_options(path, text):
    """instance.table of an engine.Table with keep=True."""
    body = text.encode("utf-8", "surrogatepass")
    with open(os.path.join(path, "instance.table"), "wb") as file:
        file.write(b"multitier-table 1 %08x\n" % zlib.crc32(body) + body)


def write_facts(path, text):
    """instance.variable of a variable with keep=True."""
    body = text.encode("utf-8", "surrogatepass") + b"\n"
    with open(os.path.join(path, "instance.variable"), "wb") as file:
        file.write(b"multitier-variable 1 %08x\n" % crc32c(body) + body)


def tensors_of(prefix):
    """{name: value} of a checkpoint's bundle."""
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write_bundle(prefix, tensors):
    """A checkpoint's bundle with these tensors. `partition_of_bucket` is written as a Saver does."""
    names = sorted(tensors)
    slices = ["1024 0,1024" if name.endswith("/partition_of_bucket") else "" for name in names]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=slices,
        tensors=[tensors[name] for name in names],
    )


def block(kind, entries, payload, said_bytes=None):
    """A block of a part file. said_bytes: the size in its head, where that is wrong."""
    size = len(payload) if said_bytes is None else said_bytes
    head = np.array([kind, entries], "<u4").tobytes() + np.array([size], "<u8").tobytes()
    return head + payload + np.array([crc32c(head + payload)], "<u4").tobytes()


def write_segment(path, change):
    """Changes the header of a segment: `change` gets its contents, without the checksums of its sectors, as a bytearray."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    [sectors] = np.frombuffer(data, "<u4", 1, 504)
    contents = bytearray(b"".join(data[512 * i : 512 * i + 504] for i in range(int(sectors))))
    change(contents)
    seed = crc32c(contents[16:40])
    for i in range(int(sectors)):
        sector = contents[504 * i : 504 * (i + 1)] + np.array([sectors], "<u4").tobytes()
        index = np.array([i], "<u4").tobytes()
        crc = crc32c(sector, crc32c(index, seed))
        data[512 * i : 512 * (i + 1)] = sector + np.array([crc], "<u4").tobytes()
    with open(path, "wb") as file:
        file.write(data)
