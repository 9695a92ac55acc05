"""`python3 -m tf_multitier.one_embedding PROGRAM [ARGS]`: runs a program of OneEmbedding's documents, which says `import oneflow`."""

from __future__ import annotations

import os
import runpy
import sys


def main() -> int:
    """Runs the program of the command line. 2: there is none."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-") or not os.path.isfile(sys.argv[1]):
        found = " ".join(sys.argv[1:]) or "nothing"
        print(
            f"usage: python3 -m tf_multitier.one_embedding PROGRAM [ARGS]: expected the path of a program, found {found}",
            file=sys.stderr,
        )
        return 2
    from tf_multitier.one_embedding import oneflow

    oneflow.install()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
