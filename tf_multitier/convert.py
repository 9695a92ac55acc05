"""Converts rows between checkpoints, Parquet, NumPy and raw files: python3 -m tf_multitier.convert --from=KIND SOURCE --to=KIND TARGET

  python3 -m tf_multitier.convert --from=deeprec /old/model-1000 --to=checkpoint /new/model-1000
  python3 -m tf_multitier.convert --from=checkpoint /new/model-1000 --to=parquet out/ --tables=user,item
  python3 -m tf_multitier.convert --from=parquet user.parquet --to=checkpoint /new/model-0 --tables=user

Kinds:

  checkpoint  prefix or directory of a checkpoint, or a SavedModel
  deeprec     the same, written by DeepRec on TensorFlow 1.15
  parquet     directory with a file <table>.parquet for each table, or one such file
  npz         directory with a file <table>.npz for each table, or one such file
  raw         directory with a directory <table> for each table, with the files key and emb_vector

A checkpoint gets dense variables too where the source is a checkpoint. A table of a tf.train.Checkpoint is written once, by the
variable's name; --tables also takes its key in the checkpoint. `/` in a table's name is %2F in a file's name.
Exit status: 0: done. 2: it failed, and the standard error says why. Then there is no checkpoint; files of the tables before the
one that failed are complete.
"""

from __future__ import annotations

import argparse
import os
import sys
from urllib.parse import quote
from urllib.parse import unquote

import tqdm

from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier.checkpoint.writer import FROZEN_DTYPES

_CHECKPOINTS = {"checkpoint": checkpoint.load, "deeprec": checkpoint.load_deeprec}
_ENDINGS = {"parquet": ".parquet", "npz": ".npz", "raw": ""}
_SAVE = {
    "parquet": checkpoint.save_parquet,
    "npz": checkpoint.save_npz,
    "raw": checkpoint.save_raw,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.frozen and options.to != "checkpoint":
        parser.error(f"--frozen: expected --to=checkpoint, found --to={options.to}")
    try:
        source, tables = _read(options)
        if options.to == "checkpoint":
            counts = _write_checkpoint(options, source, tables)
        else:
            counts = _write_files(options, tables)
    except (engine.EngineError, ValueError, NotImplementedError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, count in counts.items():
        print(f"{name}: {count} rows, columns {', '.join(c[0] for c in tables[name].columns)}")
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="tf_multitier.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = [*_CHECKPOINTS, *_ENDINGS]
    parser.add_argument("--from", dest="kind", required=True, choices=kinds)
    parser.add_argument("source")
    parser.add_argument("--to", required=True, choices=["checkpoint", *_ENDINGS])
    parser.add_argument("target")
    parser.add_argument("--tables", help="comma-separated names; without it all tables")
    parser.add_argument(
        "--partitions", type=int, default=1, help="parts of each table (checkpoint)"
    )
    parser.add_argument(
        "--frozen",
        choices=FROZEN_DTYPES,
        help="write keys and values alone, in this dtype, for serving (checkpoint)",
    )
    parser.add_argument("--dim", type=int, help="elements of a value (raw)")
    parser.add_argument(
        "--initial_value",
        action="append",
        default=[],
        metavar="SLOT=VALUE",
        help="what a new row's slot begins with, or none if it is a variable of its own (deeprec)",
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
    if options.kind not in _CHECKPOINTS:
        return None, _files(options, named)
    source = (
        checkpoint.load_deeprec(options.source, initial_values(options.initial_value))
        if options.kind == "deeprec"
        else checkpoint.load(options.source)
    )
    check_names(source.path, named or [], source.tables)
    tables = [source.tables[name] for name in named or source.tables]
    return source, {table.name: table for table in tables}


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
        names = named or [unquote(stem)]
        if len(names) != 1:
            raise ValueError(f"--tables: expected one name for '{source}', found {len(names)}")
        paths = {names[0]: source}
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
    return {name: _open(options, path) for name, path in paths.items()}


def _open(options, path):
    if options.kind == "parquet":
        return checkpoint.load_parquet(path)
    if options.kind == "npz":
        return checkpoint.load_npz(path)
    if options.dim is None:
        raise ValueError("--dim: expected the number of elements of a value, which raw files lack")
    return checkpoint.load_raw(path, options.dim)


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


def _write_files(options, tables):
    os.makedirs(options.target, exist_ok=True)
    ending = _ENDINGS[options.to]
    return {
        name: _SAVE[options.to](rows, os.path.join(options.target, _file_name(name) + ending))
        for name, rows in _with_progress(tables)
    }


def _file_name(table):
    """`/` and other characters as %2F; "." and ".." are names of directories."""
    name = quote(table, safe="")
    return name.replace(".", "%2E") if name in (".", "..") else name


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
