"""What must be settled before TensorFlow is imported, so this module imports none of it.

`python3 -m tf_multitier.deeprec` imports `tf_multitier`, and with it TensorFlow, before a line of the runner's own is run. TensorFlow
reads TF_USE_LEGACY_KERAS while it is imported: it decides whether `tf.keras` and `tf.layers` are those of Keras 2 (the package
tf_keras), which TensorFlow 1's programs need. Only the runner's process gets the variable, and only where the user has not set it.
"""

import importlib.util
import os
import sys

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


def runs_deeprec(arguments):
    """Whether a command line is `python3 [options] -m tf_multitier.deeprec ...`."""
    options = arguments[1:]
    while options and options[0].startswith("-") and options[0] != "-m":
        takes_value = options[0] in ("-W", "-X", "--check-hash-based-pycs")
        options = options[2 if takes_value else 1 :]
    return options[:2] in (["-m", "tf_multitier.deeprec"], ["-m", "tf_multitier.deeprec.__main__"])


if (
    LEGACY_KERAS not in os.environ
    and runs_deeprec(sys.orig_argv)
    and importlib.util.find_spec("tf_keras") is not None
):
    os.environ[LEGACY_KERAS] = "1"
