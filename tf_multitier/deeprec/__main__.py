"""`python3 -m tf_multitier.deeprec [--deprecations] SCRIPT [ARGS]`: runs a DeepRec script as it is."""

import argparse
import os
import sys

_DESCRIPTION = """\
Runs a Python program written for DeepRec on this TensorFlow, without a change.

In the program, and in the modules that it brings along, `import tensorflow` is TensorFlow 1's API with DeepRec's names.
Packages that are installed see TensorFlow 2. docs/deeprec.md says which names work and which are refused.
"""

_EPILOG = """\
example:
  python3 -m tf_multitier.deeprec train.py --data_location ./data --ev true --steps 1000

environment:
  TF_USE_LEGACY_KERAS      set to 1 where the package tf_keras is installed: tf.layers and tf.keras are those of Keras 2
  TF_CPP_MIN_LOG_LEVEL     1 hides what TensorFlow's C++ code reports at its start, 2 its warnings too
  TF_MULTITIER_STORAGE_*   tiers of embedding variables that the program makes without a StorageOption: docs/options.md
"""


def parse(arguments):
    """The command line as an argparse.Namespace of script, arguments and deprecations. Exits with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        "python3 -m tf_multitier.deeprec", description=_DESCRIPTION, epilog=_EPILOG,
        usage="python3 -m tf_multitier.deeprec [-h] [--deprecations] SCRIPT [ARGS]",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deprecations", action="store_true",
                        help="print the warnings of TensorFlow and Keras that an API is deprecated, which are left out otherwise")
    parser.add_argument("script", metavar="SCRIPT", help="the program, a Python file")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the program, as they are")
    parsed = parser.parse_args(arguments)
    if not os.path.isfile(parsed.script):
        parser.error(f"SCRIPT must be a file, found {parsed.script!r}")
    return parsed


def main():
    parsed = parse(sys.argv[1:])
    from tf_multitier.deeprec import script

    return script.run(parsed.script, parsed.arguments, parsed.deprecations)


if __name__ == "__main__":
    sys.exit(main())
