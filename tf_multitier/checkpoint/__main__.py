"""Works on checkpoints as files: python3 -m tf_multitier.checkpoint COMMAND

  merge SOURCE TARGET   writes a base and the deltas that continue it as one checkpoint of all rows
  convert --from=KIND SOURCE --to=KIND TARGET   converts rows from one system's files to another's: `convert --help`

Of merge, SOURCE is the prefix of the base or a directory with a `checkpoint` file: with all deltas; or the prefix of a delta: with those up to
it. TARGET is the prefix of the new checkpoint. `python3 -m tf_multitier.inspect SOURCE` shows the chain before.
Exit status: 0: done. 2: it failed, and the standard error says why. Then there is no target, and the source is as it was.
"""

from __future__ import annotations

import argparse
import sys

from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier.checkpoint import convert


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["convert"]:
        return convert.main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="tf_multitier.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    merge = commands.add_parser("merge", help="base and deltas to one checkpoint of all rows")
    merge.add_argument("source")
    merge.add_argument("target")
    commands.add_parser("convert", help="rows from one system's files to another's")
    options = parser.parse_args(arguments)
    try:
        rows = checkpoint.merge(options.source, options.target)
    except (engine.EngineError, ValueError, NotImplementedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.target}: {rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
