"""The command line of `python3 -m tf_multitier.deeprec [--deprecations] SCRIPT [ARGS]`.

It is outside of tf_multitier/deeprec, whose import loads TensorFlow, so that `--help` and errors need no TensorFlow.
"""

import argparse
import os

_DESCRIPTION = """\
Runs a Python program that was written for DeepRec, unchanged, on this TensorFlow.

In the program and its own modules, `import tensorflow` gives TensorFlow 1's API with DeepRec's names. Installed packages
still get TensorFlow 2. docs/deeprec.md lists which names work and which are refused.
"""

_EPILOG = """\
example:
  python3 -m tf_multitier.deeprec train.py --data_location ./data --ev true --steps 1000

environment:
  TF_USE_LEGACY_KERAS      set to 1 if the package tf_keras is installed: tf.layers and tf.keras are then those of Keras 2
  TF_CPP_MIN_LOG_LEVEL     3, with TF_ENABLE_ONEDNN_OPTS=0, hides what TensorFlow prints when it starts. The second variable also
                           switches oneDNN off. Set them for the command: the program sets them too late, because the runner has
                           loaded TensorFlow before
  MALLOC_TRIM_THRESHOLD_   if this, MALLOC_TOP_PAD_, MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES is set, the runner does not tune malloc;
                           otherwise malloc keeps freed memory for the next step
  TF_MULTITIER_STORAGE_*   tiers of embedding variables that the program makes without a StorageOption: docs/options.md
"""


def parse(arguments):
    """Parses the command line: an argparse.Namespace with script, arguments and deprecations. Exits with status 2 on an error."""
    parser = argparse.ArgumentParser(
        "python3 -m tf_multitier.deeprec",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="python3 -m tf_multitier.deeprec [-h] [--deprecations] SCRIPT [ARGS]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--deprecations",
        action="store_true",
        help="print deprecation warnings of TensorFlow and Keras, which are hidden by default",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the program, a Python file")
    parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the program"
    ).required = False  # argparse says that it is, where SCRIPT is missing
    parsed = parser.parse_args(arguments)
    if not os.path.isfile(parsed.script):
        parser.error(f"SCRIPT: expected a file, found {parsed.script!r}")
    return parsed
