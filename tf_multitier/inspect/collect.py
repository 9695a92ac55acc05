"""Reads what a checkpoint has into a dict that `json.dumps` takes."""

from __future__ import annotations

import math
import os

import numpy as np

from tf_multitier import checkpoint
from tf_multitier._engine import EngineError
from tf_multitier.checkpoint.deeprec import DeepRecCheckpoint

_BINS = 12


Found = checkpoint.Checkpoint | checkpoint.Chain | DeepRecCheckpoint


def open_checkpoint(path: str, initial_values: dict) -> Found:
    """The checkpoint at `path`, ours or DeepRec's. The prefix of a delta gives the base with the deltas up to that one."""
    found = checkpoint.load(path)
    if found.tables or not any(name.endswith("-keys") for name in found.tensors):
        return found
    deeprec = checkpoint.load_deeprec(path, initial_values)
    return deeprec if deeprec.tables else found


def is_deeprec(found: Found | None) -> bool:
    """Whether a checkpoint is of DeepRec."""
    return isinstance(found, DeepRecCheckpoint)


def deltas_of(found: Found) -> list[checkpoint.Delta]:
    """The deltas that continue a checkpoint; of a chain, those that it has.

    Raises:
      EngineError: one is missing, damaged, or of another chain.
    """
    if isinstance(found, checkpoint.Chain):
        return found.deltas
    return [] if is_deeprec(found) else checkpoint.load_chain(found.path).deltas


def _kind(found):
    if is_deeprec(found):
        return "DeepRec checkpoint"
    return "base and deltas" if isinstance(found, checkpoint.Chain) else "checkpoint"


def describe(found: Found, deltas: list[checkpoint.Delta], names: list[str]) -> dict:
    """What a checkpoint and its deltas have, without reading rows. Rows of a chain are None: reading them tells their number."""
    elements = {name: math.prod(shape) for name, (_, shape) in found.tensors.items()}
    return {
        "kind": _kind(found),
        "path": found.path,
        "tables": {name: _table(found.tables[name]) for name in names},
        "deltas": [_delta(delta, names) for delta in deltas],
        "dense": {
            name: {
                "dtype": dtype.name,
                "shape": shape,
                "bytes": elements[name] * dtype.size if dtype.name != "string" else None,
            }
            for name, (dtype, shape) in found.tensors.items()
        },
    }


def _table(table):
    described = {
        "names": getattr(table, "names", [table.name]),
        "dim": table.dim,
        "rows": table.num_rows,
        "value_dtype": table.dtype,
        "key_dtype": table.key_dtype,
        "columns": [
            {"name": name, "dim": dim, "initial_value": value} for name, dim, value in table.columns
        ],
    }
    if isinstance(table, checkpoint.SavedTable):
        described["initializer"] = table.initializer
        described |= _files(table.parts)
    elif isinstance(table, checkpoint.ChainTable):
        described["initializer"] = table.initializer
        described |= _files([p for save in (table.base, *table.deltas) for p in save.parts])
        described["partitions"] = table.num_partitions
    return described


def _files(parts):
    paths = [path for part in parts for path in part.files]
    sizes = {path: os.path.getsize(path) for path in paths if os.path.exists(path)}
    described = {
        "parts": [
            {
                "file": os.path.basename(part.path),
                "rows": part.num_rows,
                "bytes": sizes.get(part.path),
            }
            | _linked(part, sizes)
            for part in parts
        ],
        "bytes": sum(sizes.values()),
    }
    absent = [os.path.basename(path) for path in paths if path not in sizes]
    if absent:
        described["damage"] = f"missing: {', '.join(absent)}"
    return described


def _linked(part, sizes):
    linked = [{"file": os.path.basename(path), "bytes": sizes.get(path)} for path in part.linked]
    return {"linked": linked} if linked else {}


def _delta(delta, names):
    described = {"path": delta.path, "tables": {}}
    for name in names:
        table = delta.tables[name]
        found = {"rows": table.num_rows, "removed": table.num_removed} | _files(table.parts)
        described["tables"][name] = found
    return described


def verify(table: checkpoint.RowSource, described: dict) -> None:
    """Reads all rows. Sets "damage" to what is damaged; or "verified", and "rows" to their number if it was not known."""
    rows = 0
    try:
        for block in table.blocks():
            rows += len(block)
    except (EngineError, ValueError, OSError) as error:
        described["damage"] = str(error)
        return
    described["verified"] = "verified"
    if described["rows"] is None:
        described["rows"] = rows


def histograms(table: checkpoint.RowSource) -> dict:
    """{"frequency", "version", "norm"}: counts and edges of the rows' frequencies, versions and L2 norms of values.

    Reads the rows twice. Memory does not grow with their number. "not_finite" is the number of rows with a NaN or infinite norm; they
    are in no bin.
    """
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    for block in table.blocks():
        for name, values in _quantities(block, table.dim).items():
            if len(values):
                low[name] = min(low.get(name, values.min()), values.min())
                high[name] = max(high.get(name, values.max()), values.max())
    edges = {name: _edges(name, low[name], high[name]) for name in low}
    counts = {name: np.zeros(len(e) - 1, np.int64) for name, e in edges.items()}
    rows = 0
    for block in table.blocks():
        rows += len(block)
        for name, values in _quantities(block, table.dim).items():
            if len(values):
                counts[name] += _count(name, values, edges[name])
    found = {name: {"edges": edges[name], "rows": counts[name].tolist()} for name in edges}
    if "norm" in found:
        found["norm"]["not_finite"] = rows - sum(found["norm"]["rows"])
    return found


def _quantities(block, dim):
    norms = np.linalg.norm(block.data[:, :dim].astype(np.float64), axis=1)
    return {
        "frequency": block.frequencies,
        "version": block.versions,
        "norm": norms[np.isfinite(norms)],
    }


def _edges(name, low, high):
    """Powers of two for frequencies, equal steps for the others, of whole numbers for versions."""
    if name == "frequency":
        edges = [0.0, 1.0]
        while edges[-1] <= high:
            edges.append(edges[-1] * 2)
        return edges
    if name == "version":
        step = -(-(int(high) - int(low) + 1) // _BINS)
        return list(range(int(low), int(high) + step + 1, step))
    return np.linspace(low, high if high > low else low + 1, _BINS + 1).tolist()


def _count(name, values, edges):
    """The number of values in each bin."""
    if name != "version":
        return np.histogram(values, edges)[0]
    # Exact where a difference of two int64 does not fit int64.
    above = values.view(np.uint64) - np.int64(edges[0]).view(np.uint64)
    bins = above // np.uint64(edges[1] - edges[0])
    return np.bincount(bins.astype(np.int64), minlength=len(edges) - 1)
