"""Shows what a checkpoint, a SavedModel, a DeepRec checkpoint or a storage directory has.

  python3 -m tf_multitier.inspect /models/model-1000             variables, dims, slots, rows, bytes
  python3 -m tf_multitier.inspect /models --histograms           and histograms of frequency, version and norm
  python3 -m tf_multitier.inspect /models --verify               reads and checks every byte
  python3 -m tf_multitier.inspect /models --variable=user --keys=7,-7 --top=10
  python3 -m tf_multitier.inspect /models/model-2000 --diff=/models/model-1000
  python3 -m tf_multitier.inspect /models/model-1000.delta-0003  the rows of model-1000 with its deltas 1 to 3
  python3 -m tf_multitier.inspect /ssd/embeddings                the tables below a storage path

A checkpoint's deltas are listed, and --verify checks them. All other options show the rows of the save that PATH names.
Exit status: 0: done. 1: something is damaged, or --diff found a difference. 2: nothing could be shown, and the standard error
says why.
"""

import argparse
import sys

from tf_multitier.checkpoint import convert
from tf_multitier import engine
from tf_multitier.inspect import collect
from tf_multitier.inspect import plot
from tf_multitier.inspect import render
from tf_multitier.inspect import rows
from tf_multitier.inspect import storage


def main(arguments=None):
    """Runs the command. Returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        if storage.is_storage(options.path):
            return _show_storage(options)
        return _show_checkpoint(options)
    except (engine.EngineError, ValueError, NotImplementedError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog="tf_multitier.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path")
    parser.add_argument("--variable", help="one embedding variable; without it all")
    parser.add_argument("--verify", action="store_true", help="read all rows and check them")
    parser.add_argument("--histograms", action="store_true", help="of frequency, version and norm")
    parser.add_argument("--keys", type=_keys, default=[], help="show the rows of these keys")
    parser.add_argument("--top", type=_count, metavar="N", help="show the N hottest rows")
    parser.add_argument("--diff", metavar="OTHER", help="compare the rows with another checkpoint")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object; numbers that JSON lacks are the strings NaN, Infinity and -Infinity",
    )
    parser.add_argument(
        "--initial_value",
        action="append",
        default=[],
        metavar="SLOT=VALUE",
        help="as for tf_multitier.checkpoint convert (DeepRec checkpoints)",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the histograms")
    return parser


def _keys(text):
    try:
        keys = [int(key) for key in text.split(",")]
        if all(-(2**63) <= key < 2**64 for key in keys):
            return keys
        raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected int64 or uint64 numbers with commas, found {text!r}"
        ) from None


def _count(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number, at least 1, found {text!r}")
    return int(text)


def _show_storage(options):
    for name in ("variable", "histograms", "keys", "top", "diff", "plot", "initial_value"):
        if getattr(options, name):
            raise ValueError(
                f"'{options.path}': expected --verify or --json for a storage directory, found --{name}"
            )
    found = storage.describe(options.path, options.verify)
    print(render.as_json(found) if options.json else render.storage(found))
    damaged = any("damage" in i or i.get("ssdhash", {}).get("damage") for i in found["instances"])
    return 1 if damaged else 0


def _show_checkpoint(options):
    initial_values = convert.initial_values(options.initial_value)
    found = collect.open_checkpoint(options.path, initial_values)
    compared = collect.open_checkpoint(options.diff, initial_values) if options.diff else None
    if initial_values and not any(map(collect.is_deeprec, (found, compared))):
        raise ValueError(
            f"--initial_value: expected a checkpoint of DeepRec, found none in '{options.path}': leave it out"
        )
    convert.check_names(found.path, [options.variable] if options.variable else [], found.tables)
    names = [found.tables[options.variable].name] if options.variable else list(found.tables)
    tables = {name: found.tables[name] for name in names}
    described = _describe(found, names, options.verify)
    for name, table in tables.items():
        entry = described["tables"][name]
        if options.verify:
            collect.verify(table, entry)
        if entry.get("damage"):
            continue
        if options.histograms or options.plot:
            entry["histograms"] = collect.histograms(table)
        if options.keys:
            entry["keys"] = rows.of_keys(table, options.keys)
        if options.top:
            entry["top"] = rows.hottest(table, options.top)
    if options.verify and not options.variable:
        described["damage"] += found.damage()
    entries = [described, *described["deltas"]]
    damaged = bool(described["damage"]) or any(
        table.get("damage") for entry in entries for table in entry["tables"].values()
    )
    if compared is not None:
        other = compared.tables
        whole = {n: t for n, t in tables.items() if not described["tables"][n].get("damage")}
        described["difference"] = _difference(tables, whole, other, not options.variable)
        damaged |= any(_differs(d) for d in described["difference"].values())
    _print(options, described)
    if options.plot:
        plot.draw({n: t for n, t in described["tables"].items() if "histograms" in t}, options.plot)
    return 1 if damaged else 0


def _describe(found, names, verify):
    """The checkpoint and its deltas. "damage" has what is wrong with these."""
    try:
        deltas, damage = collect.deltas_of(found), []
    except engine.EngineError as error:
        deltas, damage = [], [str(error)]
    described = collect.describe(found, deltas, names) | {"damage": damage}
    if verify and found.path not in [delta.path for delta in deltas]:  # a chain reads them
        for delta, entry in zip(deltas, described["deltas"]):
            described["damage"] += delta.damage()
            for name in names:
                collect.verify(delta.tables[name], entry["tables"][name])
    return described


def _difference(tables, whole, there, is_all):
    """{table: its difference}. is_all: `tables` are all of the checkpoint. A table is known by each of its names."""
    found, seen = {}, set()
    for name, table in tables.items():
        other = next((there[n] for n in getattr(table, "names", [name]) if n in there), None)
        if other is None:
            found[name] = "only here"
            continue
        seen.add(other.name)
        found[name] = rows.difference(table, other) if name in whole else "damaged"
    return found | {name: "only there" for name in there if is_all and name not in seen}


def _differs(found):
    if isinstance(found, str):
        return True
    return "key_dtype" in found or any(
        found[n] is None or found[n]
        for n in ("only_here", "only_there", "other_value", "other_row")
    )


def _print(options, described):
    if options.json:
        print(render.as_json(described))
        return
    print(render.checkpoint(described))
    for name, entry in described["tables"].items():
        for what, title in (("keys", "keys"), ("top", "hottest rows")):
            if what in entry:
                print(f"\n{name}: {title}\n{render.rows(entry[what])}")
    if "difference" in described:
        print(f"\nCompared with {options.diff}\n{render.difference(described['difference'])}")


if __name__ == "__main__":
    sys.exit(main())
