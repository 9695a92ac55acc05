"""`python3 -m tf_multitier.deeprec [--deprecations] SCRIPT [ARGS]`: runs a DeepRec script unchanged.

_src/tensorflow/start.py has refused a wrong command line before this module runs, and before TensorFlow was imported.
"""

import sys

from tf_multitier._src.tensorflow.deeprec_command import parse


def main():
    parsed = parse(sys.argv[1:])
    from tf_multitier.deeprec import memory
    from tf_multitier.deeprec import script

    memory.keep_freed_memory()
    return script.run(parsed.script, parsed.arguments, parsed.deprecations)


if __name__ == "__main__":
    sys.exit(main())
