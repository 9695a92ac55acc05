"""Prepares our own programs (`python3 -m tf_multitier...`). This module must not import TensorFlow.

TensorFlow reads these variables when it is imported, and `python3 -m tf_multitier.deeprec` imports `tf_multitier`, and so TensorFlow,
before the first line of the program. So they are set here: only in the process of such a program, and only those that the user has
not set.

  TF_USE_LEGACY_KERAS    for tf_multitier.deeprec: `tf.keras` and `tf.layers` are those of Keras 2 (the package tf_keras), which
                         TensorFlow 1's programs need
  TF_CPP_MIN_LOG_LEVEL   for the tools: no start-up messages of TensorFlow between their lines
  TF_ENABLE_ONEDNN_OPTS  likewise; the tools do no arithmetic in TensorFlow

The last two are not set for tf_multitier.deeprec: the script is the user's program, and prints what it would print without us. But its
command line is checked here, so that `--help` and errors come without messages of TensorFlow. tf_multitier.launch, which needs no
TensorFlow, runs here as a whole.
"""

import importlib.util
import os
import sys

from tf_multitier import launch
from tf_multitier._src.tensorflow import deeprec_command

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
_TOOLS = (
    "tf_multitier.checkpoint",
    "tf_multitier.inspect",
    "tf_multitier.tools.salvage",
)


def module_run(arguments):
    """The module of a command line `python3 [options] -m MODULE ...`, without `.__main__`; None for another command line."""
    options = arguments[1:]
    while options and options[0].startswith("-") and options[0] != "-":
        option = options.pop(0)
        if option.startswith("--"):
            options = options[option == "--check-hash-based-pycs" :]
            continue
        for end, letter in enumerate(option[1:], 2):
            if letter in "cmWX":  # its value is the rest, or the next argument
                value = option[end:] or "".join(options[:1])
                options = options[not option[end:] :]
                if letter in "cm":
                    return value.removesuffix(".__main__") if letter == "m" and value else None
                break
    return None


_module = module_run(sys.orig_argv)
if _module in _TOOLS:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
if _module == "tf_multitier.launch":
    sys.exit(launch.main(sys.argv[1:]))
if _module == "tf_multitier.deeprec":
    if (launched := deeprec_command.launched(sys.argv[1:])) is not None:
        sys.exit(launch.main(launched))
    deeprec_command.parse(sys.argv[1:])
    if LEGACY_KERAS not in os.environ and importlib.util.find_spec("tf_keras") is not None:
        os.environ[LEGACY_KERAS] = "1"
