"""Saves the undamaged rows of an SSDHASH instance: python3 -m tf_multitier.tools.salvage INSTANCE OUT.npz

The .npz has the arrays of `engine.Rows` (keys, frequencies, versions, data) and `columns`, a JSON list of [name, dim, initial value].
The standard output lists what was found and what is damaged. `tf_multitier.checkpoint.load_npz`
reads the rows back.

Exit status: 0: nothing was damaged. 1: something was damaged, and the other rows are saved. 2: nothing could be saved.
"""

import argparse
import os
import sys
import tempfile

from tf_multitier import checkpoint
from tf_multitier import engine


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tf_multitier.tools.salvage", description=__doc__.split("\n")[0]
    )
    parser.add_argument("instance", help="instance directory, or its directory ssdhash")
    parser.add_argument("out", help=".npz file to write")
    parser.add_argument(
        "--key_dtype",
        choices=["int64", "uint64", "uint32"],
        help="type of the keys; needed only if the instance's file of options is lost, damaged or of another version",
    )
    options = parser.parse_args(arguments)
    try:
        _check_writable(options.out)
    except OSError as error:
        return _cannot_write(options.out, error)
    try:
        found = engine.salvage(options.instance, options.key_dtype)
    except (engine.EngineError, ValueError) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    rows = found.rows
    try:
        checkpoint.save_npz(rows, options.out)
    except OSError as error:
        return _cannot_write(options.out, error)
    print(
        f"{len(rows)} rows saved, {len(found.stale_keys)} of them older than their key's newest; {len(found.lost_keys)} keys lost; "
        f"{found.segments} files, {found.records} whole records, {found.damaged_records} damaged; "
        f"{found.missing_segments} files missing"
    )
    for line in found.damage:
        print(line)
    return 1 if found.damage else 0


def _check_writable(out):
    """Raises OSError if a file `out` cannot be made: reading all rows first would be in vain."""
    if os.path.isdir(out):
        raise IsADirectoryError("it is a directory")
    with tempfile.TemporaryFile(dir=os.path.dirname(out) or "."):
        pass


def _cannot_write(out, error):
    print(f"OUT '{out}' cannot be written: {error.strerror or error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
