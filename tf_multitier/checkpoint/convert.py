"""Converts rows between the files of several systems: python3 -m tf_multitier.checkpoint convert --from=KIND SOURCE --to=KIND TARGET

  python3 -m tf_multitier.checkpoint convert --from=deeprec /old/model-1000 --to=checkpoint /new/model-1000
  python3 -m tf_multitier.checkpoint convert --from=checkpoint /new/model-1000 --to=parquet out/ --tables=user,item
  python3 -m tf_multitier.checkpoint convert --from=tfra model/TFRADynamicEmbedding --dim=16 --to=checkpoint /new/model-0

Kinds:

  checkpoint     prefix or directory of a checkpoint, or a SavedModel
  deeprec        the same, written by DeepRec on TensorFlow 1.15; source only
  one_embedding  a snapshot of one table: <persistent_path>/<rank>-<size>/snapshots/<name>, with the folders of the other ranks next to it
  dynamicemb     directory of a dump
  tfra           directory with TFRA's files <table>_mht_...-keys and -values, and those of its slots
  raw            directory with a directory <table> for each table, with HugeCTR's files key and emb_vector
  parquet        directory with a file <table>.parquet for each table, or one such file
  npz            directory with a file <table>.npz for each table, or one such file

What the target has no place for is left out; the standard error says what. A checkpoint gets dense variables too where the source is a
checkpoint. A table of a tf.train.Checkpoint is written once, by the variable's name; --tables also takes its key in the checkpoint. `/`
in a table's name is %2F in a file's name, and _ in one of TFRA. A target that is a directory is new.
Exit status: 0: done. 2: it failed, and the standard error says why. Then there is no target.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import typing
from collections.abc import Iterator
from collections.abc import Mapping
from urllib.parse import unquote

import numpy as np
import tqdm

from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier._src.options import numpy_types
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.variable.working_folders import sync
from tf_multitier._src.variable.working_folders import working_folder
from tf_multitier.checkpoint.array_rows import dim_in
from tf_multitier.checkpoint.array_rows import left_out
from tf_multitier.checkpoint.source import blocks_of
from tf_multitier.checkpoint.source import file_name
from tf_multitier.checkpoint.source import key_dtype
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.source import value_dtype
from tf_multitier.checkpoint.writer import FROZEN_DTYPES
from tf_multitier.checkpoint.writer import repeated_key

# What a target that is no checkpoint has in addition to keys and values. None has dense variables.
_HOLDS: dict[str, tuple[str, ...]] = {
    "one_embedding": ("slots", "frequencies", "versions", "counted keys"),
    "dynamicemb": ("slots",),  # and what --scores says
    "tfra": ("slots", "frequencies"),
    "raw": (),
    "parquet": ("slots", "frequencies", "versions"),
    "npz": ("slots", "frequencies", "versions"),
}
_KINDS = ("checkpoint", "deeprec", *_HOLDS)
_SOURCE_ONLY = ("deeprec",)
_ENDINGS = {"parquet": ".parquet", "npz": ".npz", "raw": ""}
_SAVE = {
    "parquet": checkpoint.save_parquet,
    "npz": checkpoint.save_npz,
    "raw": checkpoint.save_raw,
}
_MODULES = {
    "one_embedding": "one_embedding_snapshots",
    "dynamicemb": "dynamicemb_dumps",
    "tfra": "tfra",
}
_SCORES = ("step", "time", "frequency")


def _module(kind) -> typing.Any:
    """The module of a kind. It is loaded when it is used."""
    return importlib.import_module(f"tf_multitier.checkpoint.{_MODULES[kind]}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for option, given, kind, kinds in (
        ("frozen", options.frozen, "to", ("checkpoint",)),
        ("partitions", options.partitions != 1, "to", ("checkpoint",)),
        ("scores", options.scores, "to", ("dynamicemb",)),
        ("initial_value", options.initial_value, "from", ("deeprec",)),
    ):
        found = options.to if kind == "to" else options.kind
        if given and found not in kinds:
            parser.error(
                f"--{option}: expected --{kind}={' or '.join(kinds)}, found --{kind}={found}"
            )
    options.scores = options.scores or _SCORES[0]
    try:
        source, tables = _read(options)
        check_names(options.source, [name for name in dims(options.dim) if name], tables)
        counts = _write(options, source, tables)
    except (engine.EngineError, ValueError, NotImplementedError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, count in counts.items():
        print(f"{name}: {count} rows, columns {', '.join(c[0] for c in tables[name].columns)}")
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="tf_multitier.checkpoint convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    targets = [kind for kind in _KINDS if kind not in _SOURCE_ONLY]
    parser.add_argument("--from", dest="kind", required=True, choices=_KINDS)
    parser.add_argument("source")
    parser.add_argument("--to", required=True, choices=targets)
    parser.add_argument("target")
    parser.add_argument(
        "--tables",
        help="comma-separated names; without it all tables. Where a source has one table without a name, its name",
    )
    parser.add_argument(
        "--partitions", type=int, default=1, help="parts of each table (checkpoint)"
    )
    parser.add_argument(
        "--frozen",
        choices=FROZEN_DTYPES,
        help="write keys and values alone, in this dtype, for serving (checkpoint)",
    )
    parser.add_argument(
        "--dim",
        metavar="N or TABLE=N,...",
        help="elements of a value, where a source does not say it: tfra, and tables of raw and dynamicemb without rows",
    )
    parser.add_argument(
        "--scores",
        choices=_SCORES,
        help="what scores of a dump are: versions that are steps (the default), versions that are times in microseconds, or frequencies (to dynamicemb)",
    )
    parser.add_argument(
        "--initial_value",
        action="append",
        default=[],
        metavar="SLOT=VALUE",
        help="what a new row's slot begins with, or none if it is a variable of its own (from deeprec)",
    )
    return parser


def check_names(path, names, tables):
    """ValueError if one of `names` is none of the tables of the file at `path`."""
    for name in names:
        if name not in tables:
            hint = did_you_mean(name, tables)
            raise ValueError(
                f"'{path}': expected one of the tables {', '.join(tables)}; found {name!r}{hint}"
            )


def _read(options):
    """(checkpoint or None, {name: rows})."""
    named = options.tables.split(",") if options.tables else None
    if options.kind in _ENDINGS:
        return None, _files(options, named)
    if options.kind in _MODULES:
        return None, _of_others(options, named)
    source = (
        checkpoint.load_deeprec(options.source, initial_values(options.initial_value))
        if options.kind == "deeprec"
        else checkpoint.load(options.source)
    )
    check_names(source.path, named or [], source.tables)
    tables = [source.tables[name] for name in named or source.tables]
    return source, {table.name: table for table in tables}


def _of_others(options, named):
    """{table: rows} of the files of another system. The one table of a snapshot has the name that --tables says."""
    module = _module(options.kind)
    if options.kind == "one_embedding":
        [(name, rows)] = module.tables_in(options.source).items()
        return {_one_name(options, named or [name]): rows}
    found = module.tables_in(options.source, dims(options.dim))
    check_names(options.source, named or [], found)
    return {name: found[name]() for name in named or found}


def _one_name(options, names):
    if len(names) != 1:
        raise ValueError(f"--tables: expected one name for '{options.source}', found {len(names)}")
    return names[0]


def dims(text: str | None) -> Mapping[str, int]:
    """{table: elements} of the option --dim, N or TABLE=N,...: "" stands for the tables that it does not name."""
    found = {}
    for setting in text.split(",") if text else []:
        table, _, dim = setting.rpartition("=")
        if not dim.isdecimal() or not int(dim):
            raise ValueError(f"--dim: expected N or TABLE=N, found {setting!r}")
        found[table] = int(dim)
    return found


def initial_values(settings: list[str]) -> dict[str, float | None]:
    """{slot: value} of the options --initial_value. ValueError if one is not SLOT=VALUE or SLOT=none."""
    found: dict[str, float | None] = {}
    for setting in settings:
        slot, equals, value = setting.partition("=")
        try:
            found[slot] = None if value == "none" else float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(
                f"--initial_value: expected SLOT=VALUE or SLOT=none, found {setting!r}"
            )
    return found


def _files(options, named):
    """{table: rows} of files. A path that is one file needs no name, or one name."""
    ending, source = _ENDINGS[options.kind], options.source
    one = os.path.isfile(source) if ending else os.path.isfile(os.path.join(source, "key"))
    if one:
        stem = os.path.basename(os.path.normpath(source))
        stem = stem[: -len(ending)] if ending and stem.endswith(ending) else stem
        paths = {_one_name(options, named or [unquote(stem)]): source}
    else:
        found = {
            unquote(name[: len(name) - len(ending)]): os.path.join(source, name)
            for name in sorted(os.listdir(source))
            if name.endswith(ending)
        }
        if not found:
            raise ValueError(f"'{source}': expected files *{ending}, found none")
        check_names(source, named or [], found)
        paths = {name: found[name] for name in named or found}
    return {name: _open(options, name, path) for name, path in paths.items()}


def _open(options, name, path):
    if options.kind == "parquet":
        return checkpoint.load_parquet(path)
    if options.kind == "npz":
        return checkpoint.load_npz(path)
    of_keys, of_values = (os.path.join(path, name) for name in ("key", "emb_vector"))
    if os.path.exists(slots := os.path.join(path, "slot_id")):
        left_out(slots, "the slots of keys")
    dim = dim_in(dims(options.dim), name)
    if dim is None and os.path.getsize(of_keys) >= 8:
        dim = os.path.getsize(of_values) // 4 // (os.path.getsize(of_keys) // 8)
    elif dim is None:
        raise ValueError(f"'{path}': expected --dim, because the files have no rows, found none")
    return checkpoint.load_raw(path, dim)


class _Watched(RowSource):
    """Rows that note what they have beyond keys and values while they are read: `seen`.

    is_checked: a key that the rows have twice is an error. That takes 16 bytes of memory for each key. A checkpoint has each key once.
    """

    def __init__(self, what, rows, is_checked):
        self._what, self._rows, self._is_checked = what, rows, is_checked
        self.seen = set()
        self.columns, self.dtype = rows.columns, value_dtype(rows)
        self.key_dtype = key_dtype(rows)
        self.num_rows = len(rows) if isinstance(rows, engine.Rows) else rows.num_rows
        self.applies = getattr(rows, "applies", 0)

    def blocks(self) -> Iterator[engine.Rows]:
        keys = []
        for block in blocks_of(self._rows):
            if self._is_checked:
                keys.append(numpy_types.to_int64(block.keys))
            for what, is_there in (
                ("frequencies", block.frequencies.any()),
                ("versions", (block.versions != -1).any()),
                ("counted keys", len(block.counted_keys)),
            ):
                if is_there:
                    self.seen.add(what)
            yield block
        if (repeated := repeated_key(keys)) is not None:
            [key] = numpy_types.from_int64(np.array([repeated]), self.key_dtype)
            raise ValueError(
                f"{self._what}: expected each key once, found key {key} again: remove one of its rows from the source"
            )


def _say_what_is_left_out(options, source, tables):
    """Says once, on the standard error, what the source has and the target has no place for."""
    holds = _HOLDS[options.to]
    if options.to == "dynamicemb":
        holds += ("frequencies" if options.scores == "frequency" else "versions",)
    missing = {what for rows in tables.values() for what in rows.seen if what not in holds}
    if source is not None and source.tensors:
        missing.add("dense variables")
    for rows in tables.values():
        slots = [name for name, _, _ in rows.columns[1:]]
        if "slots" in holds:
            judges = options.to in ("dynamicemb", "tfra")
            slots = _module(options.to).slots_left_out(rows) if judges else []
        missing |= {f"slot {name}" for name in slots}
    if missing:
        found = ", ".join(sorted(missing))
        print(
            f"'{options.target}': left out, as {options.to} has no place: {found}", file=sys.stderr
        )


def _write(options, source, tables):
    """Writes the target. Returns {table: its rows}."""
    if options.to == "checkpoint":
        return _write_checkpoint(options, source, tables)
    if not tables:
        raise ValueError(f"'{options.source}': expected embedding variables, found none")
    watched = {
        name: _Watched(f"'{options.source}', table '{name}'", rows, source is None)
        for name, rows in tables.items()
    }
    if options.to == "one_embedding":
        counts = _module(options.to).save(watched, options.target)
    else:
        with _new_folder(options.target) as made:
            if options.to == "dynamicemb":
                counts = _module(options.to).save(watched, made, options.scores)
            else:
                counts = _write_files(options, watched, made)
    _say_what_is_left_out(options, source, watched)
    return counts


@contextlib.contextmanager
def _new_folder(target) -> Iterator[str]:
    """Gives a folder to write into. At the end it gets the name `target`; after an error there is none.

    Raises:
      FileExistsError: there is something of that name.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target):
        raise FileExistsError(f"'{target}': expected a new folder, found one: choose another path")
    with working_folder(os.path.dirname(target)) as made:
        yield made
        for folder, _, names in os.walk(made):
            for name in names:
                sync(os.path.join(folder, name))
            sync(folder)
        os.rename(made, target)
        sync(os.path.dirname(target))


def _write_checkpoint(options, source, tables):
    counts: dict = {}
    with checkpoint.Writer(options.target) as writer:
        for name, rows in _with_progress(tables):
            initializer = getattr(rows, "initializer", None)
            matrix = rows.matrix() if initializer and initializer["kind"] == "matrix" else None
            applies = getattr(rows, "applies", 0)
            counts[name] = writer.add_table(
                name, rows, options.partitions, initializer, applies, matrix, options.frozen
            )
            for other in getattr(rows, "names", [name])[1:]:
                writer.add_name(other, name)
        for name in source.tensors if source else []:
            writer.add_tensor(name, source.tensor(name))
    return counts


def _write_files(options, tables, folder):
    counts = {}
    if options.to == "tfra":
        _module("tfra").check_tables(tables)
    for name, rows in _with_progress(tables):
        if options.to == "tfra":
            counts[name] = _module("tfra").save(rows, folder, name)
        else:
            path = os.path.join(folder, file_name(name) + _ENDINGS[options.to])
            counts[name] = _SAVE[options.to](rows, path)
    return counts


def _with_progress(tables):
    """The items of `tables`, with a progress bar of rows where there is a terminal."""
    total = sum(
        len(rows) if isinstance(rows, engine.Rows) else rows.num_rows or 0
        for rows in tables.values()
    )
    with tqdm.tqdm(total=total, unit=" rows", unit_scale=True, disable=None) as bar:
        for name, rows in tables.items():
            yield name, rows
            bar.update(len(rows) if isinstance(rows, engine.Rows) else rows.num_rows or 0)


if __name__ == "__main__":
    sys.exit(main())
