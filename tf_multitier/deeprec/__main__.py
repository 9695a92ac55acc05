"""`python3 -m tf_multitier.deeprec SCRIPT [ARGS]`: runs a DeepRec script as it is."""

import os
import sys

_USAGE = "usage: python3 -m tf_multitier.deeprec SCRIPT [ARGS]"


def main():
    script, arguments = sys.argv[1:2], sys.argv[2:]
    if script in ([], ["-h"], ["--help"]):
        print(f"{_USAGE}\n\nRuns a Python script written for DeepRec on this TensorFlow; ARGS are its own. See docs/deeprec.md.",
              file=sys.stdout if script else sys.stderr)
        return 0 if script else 2
    if not os.path.isfile(script[0]):
        print(f"{_USAGE}\nSCRIPT must be a file, found {script[0]!r}", file=sys.stderr)
        return 2
    from tf_multitier.deeprec import script as runner

    runner.run(script[0], arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
