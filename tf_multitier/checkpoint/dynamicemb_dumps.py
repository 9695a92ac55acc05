"""Dumps of dynamicemb (dynamicemb/dump_files.py) as rows, and rows as a dump of one rank."""

from __future__ import annotations

import functools
import math
import os
import re
import typing
from collections.abc import Callable
from collections.abc import Mapping
from urllib.parse import unquote

import numpy as np

from tf_multitier._src.variable.working_folders import working_folder
from tf_multitier.checkpoint.array_rows import ArrayRows
from tf_multitier.checkpoint.source import blocks_of
from tf_multitier.checkpoint.array_rows import dim_of
from tf_multitier.checkpoint.source import file_name
from tf_multitier.checkpoint.array_rows import dim_in
from tf_multitier.checkpoint.array_rows import last_name
from tf_multitier.checkpoint.array_rows import left_out
from tf_multitier.checkpoint.array_rows import Shard
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.dynamicemb import dump_files as files
from tf_multitier.dynamicemb.dump_tables import now
from tf_multitier.dynamicemb.dump_tables import same_eviction
from tf_multitier.dynamicemb.dump_tables import Score
from tf_multitier._src.options import numpy_types
from tf_multitier.engine.rows import Rows

_MODEL = "model"  # the collection of tables whose names have none
_KEYS = re.compile(rf"(.+)_{files.KEYS}\.rank_\d+\.world_size_\d+", re.DOTALL)
_SCORES = {
    "step": Score("step", ("version",)),
    "time": Score("time", ("version",)),
    "frequency": Score("frequency", ("frequency",)),
}
SCORES = tuple(_SCORES)

# {optimizer in the file of arguments: [(our slot, elements; 0: those of the value)]}
_STATES = {
    "adam": [("Adam", 0), ("Adam_1", 0)],
    "exact_adagrad": [("Adagrad", 0)],
    "exact_row_wise_adagrad": [("RowwiseAdagrad", 1)],
}


def tables_in(folder: str, dims: Mapping[str, int]) -> dict[str, Callable[[], RowSource]]:
    """{table: a function that gives its rows} of a dump; of collections other than "model", <collection>/<table>. dims: see dim_in.

    Raises, also in the functions:
      ValueError: there are no tables, or files are missing, damaged, or do not fit.
    """
    manifest = files.manifest_of(folder) or {}
    inner = [name for name in sorted(os.listdir(folder)) if os.path.isdir(f"{folder}/{name}")]
    found: dict[str, Callable[[], RowSource]] = {}
    for collection in ("", *inner):
        path = os.path.join(folder, collection)
        names = {match[1] for name in os.listdir(path) if (match := _KEYS.fullmatch(name))}
        for name in sorted(names):
            table = unquote(name if collection in ("", _MODEL) else f"{collection}/{name}")
            found[table] = functools.partial(
                _table, folder, collection, name, table, manifest, dim_in(dims, table)
            )
    if not found:
        raise ValueError(f"'{folder}': expected files <table>_{files.KEYS}.rank_..., found none")
    return found


def _table(folder, collection, name, table, manifest, dim):
    path = os.path.join(folder, collection)
    worlds = files.ranks_of(path, name, files.KEYS)
    [(world, ranks), *others] = worlds.items()
    if others or sorted(ranks) != list(range(world)):
        raise ValueError(
            f"'{folder}', table '{table}': expected the keys of all ranks of one world, found {len(ranks)} of world size {world}"
        )

    def path_of(item, rank):
        return os.path.join(path, files.file_name(name, item, rank, world))

    def reader(item, rank, width):
        file = path_of(item, rank)
        entry = manifest.get(os.path.relpath(file, folder).replace(os.sep, "/"))
        return files.RawReader(file, item, width, entry)

    values = [path_of(files.VALUES, rank) for rank in range(world)]
    where = f"'{folder}', table '{table}'"
    width = dim_of(where, [ranks[rank] for rank in range(world)], values, dim)
    of_arguments = os.path.join(path, f"{name}_{files.ARGUMENTS}")
    arguments = files.read_json(of_arguments)
    columns = [("value", width, 0.0)]
    there = lambda item: [p for rank in range(world) if os.path.exists(p := path_of(item, rank))]
    kind = str(arguments.get("opt_type"))
    if states := there(files.STATES):
        initial = float(_number(of_arguments, arguments, "initial_accumulator_value"))
        slots = _STATES.get(kind, [])
        columns += [(f"{table}/{slot}", elements or width, initial) for slot, elements in slots]
        if not slots and any(map(files.size_of, states)):
            left_out(states[0], f"states of opt_type {kind}")
    for counted in there(files.COUNTED):
        if files.size_of(counted):
            left_out(counted, "counted keys")
    of_states = sum(elements for _, elements, _ in columns[1:])
    score, width_of_scores = _score(there(files.SCORES), arguments, ranks)
    shards = []
    for rank in range(world):
        floats = [reader(files.VALUES, rank, width)]
        floats += [reader(files.STATES, rank, of_states)] if of_states else []
        scores = reader(files.SCORES, rank, width_of_scores) if score else None
        shards.append(Shard(reader(files.KEYS, rank, 1), floats, scores))
    step, time = int(_number(of_arguments, arguments, "step_score")), now()

    def facts(keys, scores):
        if scores is None:
            return np.ones(len(keys), np.int64), np.full(len(keys), step, np.int64)
        return score.of_rows(scores, time, step)

    return ArrayRows(columns, shards, facts)


def _number(path, arguments, name):
    """A number of a file of arguments; 0 if it has none."""
    found = arguments.get(name, 0)
    if not isinstance(found, (int, float)) or not math.isfinite(found):
        raise ValueError(f"{path}: {name}: expected a number, found {found!r}")
    return found


def _score(paths, arguments, ranks):
    """(what the scores say, or None; numbers of a row). Those of a pair do not say which of them is the frequency: they are left out."""
    if len(paths) < len(ranks):
        if paths:
            left_out(paths[0], f"scores of {len(paths)} ranks of {len(ranks)}")
        return None, 0
    rows = sum(files.size_of(path) for path in ranks.values())
    if sum(files.size_of(path) for path in paths) == 2 * rows and rows:
        left_out(paths[0], "scores of two numbers")
        return None, 0
    said = arguments.get("evict_strategy", "KCustomized")
    found = next((s for s in _SCORES.values() if same_eviction(said, s.eviction)), None)
    if found is None:
        left_out(paths[0], f"scores of evict_strategy {said}")
    return found, 1


def slots_left_out(rows: RowSource | Rows) -> list[str]:
    """The slots that `save` leaves out: those of optimizers that dynamicemb does not have."""
    return [] if _optimizer(rows) != "sgd" else [name for name, _, _ in rows.columns[1:]]


def _optimizer(rows):
    dim = rows.columns[0][1]
    found = [(last_name(name), elements) for name, elements, _ in rows.columns[1:]]
    for kind, slots in _STATES.items():
        if found == [(slot, elements or dim) for slot, elements in slots]:
            return kind
    return "sgd"


def save(tables: Mapping[str, RowSource | Rows], folder: str, scores: str) -> dict[str, int]:
    """Writes tables as a dump of one rank into a new folder. Returns {table: rows}.

    Args:
      scores: what scores say: one of SCORES.
    """
    entries: dict[str, typing.Any] = {}
    counts, places = {}, []
    with working_folder(folder) as made:
        for name, rows in tables.items():
            collection, _, table = name.rpartition("/")
            places.append((file_name(collection) or _MODEL, file_name(table)))
            os.makedirs(os.path.join(made, places[-1][0]), exist_ok=True)
            counts[name] = _save(rows, made, *places[-1], _SCORES[scores], entries)
        files.publish(made, folder, places, entries)
    return counts


def _save(rows, made, collection, table, score, entries):
    dim, kind = rows.columns[0][1], _optimizer(rows)
    items = [files.KEYS, files.VALUES, files.SCORES, *([] if kind == "sgd" else [files.STATES])]
    path_of = lambda name: os.path.join(made, collection, name)
    writers = {item: files.RawWriter(path_of(files.file_name(table, item))) for item in items}
    count, newest, time = 0, 0, now()
    for block in blocks_of(rows):
        keys = numpy_types.to_int64(block.keys)
        writers[files.KEYS].add(keys)
        writers[files.VALUES].add(block.data[:, :dim])
        writers[files.SCORES].add(score.in_file(block.frequencies, block.versions, time))
        if kind != "sgd":
            writers[files.STATES].add(block.data[:, dim:])
        count += len(block)
        newest = max(newest, int(block.versions.max(initial=0)))
    for item, writer in writers.items():
        writer.close()
        entries[f"{collection}/{files.file_name(table, item)}"] = {
            "size": writer.size,
            "crc32": writer.checksum,
        }
    arguments = {"opt_type": kind, "evict_strategy": score.eviction, "dist_type": "roundrobin"}
    arguments["step_score"] = newest + 1
    if kind.startswith("exact"):
        arguments["initial_accumulator_value"] = rows.columns[1][2]
    if kind == "adam" and (applies := getattr(rows, "applies", 0)):
        arguments["iters"] = applies
    name = f"{table}_{files.ARGUMENTS}"
    entries[f"{collection}/{name}"] = files.write_json(path_of(name), arguments)
    return count
