"""Serves a model by HTTP: python3 -m tf_multitier.serving MODEL_DIR --name=click --port=8501

MODEL_DIR has a folder for each version. `help(tf_multitier.serving.Server)` describes the folders, the paths and the options.
Exit status: 0: SIGTERM or SIGINT ended it. 1: it failed later. 2: it could not start. The standard error says why.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import sys

from tf_multitier import engine
from tf_multitier.serving.server import Server


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="tf_multitier.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="MODEL_DIR")
    parameters = list(inspect.signature(Server).parameters.values())[1:]
    for each in parameters:
        kind = str if each.default is None else type(each.default)
        parser.add_argument(
            f"--{each.name}", type=kind, default=each.default, help=f"default: {each.default!r}"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        server = Server(**vars(parser.parse_args(arguments)))
    except (engine.EngineError, ValueError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    status = server.run(lambda: print(f"serving at {server.address}", flush=True))
    if not server.is_freed:  # a thread that reads files would outlive what it uses
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
