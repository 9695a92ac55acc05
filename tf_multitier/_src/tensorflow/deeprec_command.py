"""The command line of `python3 -m tf_multitier.deeprec [--deprecations] SCRIPT [ARGS]`.

It is outside of tf_multitier/deeprec, whose import loads TensorFlow, so that `--help` and errors need no TensorFlow.
"""

import argparse
import os

_LAUNCHER = "tensorflow.python.distribute.launch"
_GPUS = "/proc/driver/nvidia/gpus"  # a folder for each GPU of the machine

_DESCRIPTION = """\
Runs a Python program that was written for DeepRec, unchanged, on this TensorFlow.

In the program and its own modules, `import tensorflow` gives TensorFlow 1's API with DeepRec's names. Installed packages
still get TensorFlow 2. docs/deeprec_names.md lists which names work and which are refused.
"""

_EPILOG = """\
example:
  python3 -m tf_multitier.deeprec train.py --data_location ./data --ev true --steps 1000
  CUDA_VISIBLE_DEVICES=0,1 python3 -m tf_multitier.deeprec -m tensorflow.python.distribute.launch python3 train.py
                           DeepRec's launcher: a process for each GPU. --workers=N in front of python3: N processes

environment:
  TF_USE_LEGACY_KERAS      set to 1 if the package tf_keras is installed: tf.layers and tf.keras are then those of Keras 2
  TF_CPP_MIN_LOG_LEVEL     3, with TF_ENABLE_ONEDNN_OPTS=0, hides what TensorFlow prints when it starts. The second variable also
                           switches oneDNN off. Set them for the command: the program sets them too late, because the runner has
                           loaded TensorFlow before
  MALLOC_TRIM_THRESHOLD_   if this, MALLOC_TOP_PAD_, MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES is set, the runner does not tune malloc;
                           otherwise malloc keeps freed memory for the next step
  TF_MULTITIER_STORAGE_*   tiers of embedding variables that the program makes without a StorageOption: docs/environment.md
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


def launched(arguments):
    """The arguments of tf_multitier.launch for `-m tensorflow.python.distribute.launch [--workers=N ...] [python3] SCRIPT [ARGS]`.

    Without --workers there is a process for each device of CUDA_VISIBLE_DEVICES, if that is not set for each GPU of the machine, and at
    least one. None for another command line. Exits with status 2 on an error.
    """
    if arguments[:2] != ["-m", _LAUNCHER]:
        return None
    command = arguments[2:]
    options = []
    while command and command[0].startswith("--"):
        options.append(command.pop(0))
    if command and os.path.basename(command[0]).startswith("python"):
        command = command[1:]
    parse(command)
    if not any(option.startswith("--workers") for option in options):
        options.append(f"--workers={max(1, _devices())}")
    return [*options, "-m", "tf_multitier.deeprec", *command]


def _devices():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(os.listdir(_GPUS)) if os.path.isdir(_GPUS) else 0
    return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
