"""Cleans the output of a script's run: hides deprecation warnings, and removes the runner's frames from errors.

A DeepRec program uses TensorFlow 1's API. TensorFlow 2.21 and Keras answer many of its calls with a deprecation warning, which its
user cannot act on without rewriting it. `without_deprecations` hides these warnings. Warnings of the program itself stay.
"""

import contextlib
import re
import sys
import types
import warnings

from tf_multitier._src.tensorflow.internals import deprecations_silenced


# The beginnings of the deprecation warnings of TensorFlow, Keras and the libraries that they use.
_DEPRECATED = (
    r"`?(tf|layer|keras|model|Model)\.\S+`? (is|are) deprecated",
    r".*is deprecated and will be removed in a future version",
    r".*pkg_resources is deprecated",
    r"`\S+` is deprecated and (is not needed|will be removed)",
)

# Files of the runner, whose frames do not belong to the script. `__import__` of script.py is between any two frames of imports.
_RUNNER = re.compile(r"<frozen runpy>|.*/tf_multitier/deeprec/(__main__|script|messages)\.py")
_FRAME_LINE = re.compile(r'^\s*File "(?P<file>[^"]*)", line \d+, in .*\n?', re.MULTILINE)


@contextlib.contextmanager
def without_deprecations():
    """A context that hides deprecation warnings of TensorFlow and Keras."""
    with warnings.catch_warnings(), deprecations_silenced():
        for message in _DEPRECATED:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        warnings.filterwarnings(
            "ignore",
            category=DeprecationWarning,
            module=r"(tensorflow|keras|tf_keras|tf_multitier|google)(\.|$)",
        )
        yield


def _without_frames(traceback):
    """`traceback` without the frames of the runner, or None if no frame is left."""
    if traceback is None:
        return None
    rest = _without_frames(traceback.tb_next)
    if _RUNNER.fullmatch(traceback.tb_frame.f_code.co_filename):
        return rest
    return types.TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def without_runner(error):
    """Removes the runner's frames from an exception, from the exceptions that caused it, and from the text of TensorFlow's errors."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _without_frames(error.__traceback__)
        message = getattr(
            error, "_message", None
        )  # of a tf.errors.OpError: has a traceback of the op's creation
        if isinstance(message, str):
            error._message = _FRAME_LINE.sub(
                lambda line: "" if _RUNNER.fullmatch(line["file"]) else line[0], message
            )
        error = error.__cause__ or error.__context__


def report(error):
    """Prints an uncaught exception of the script in Python's format, without the runner's frames."""
    without_runner(error)
    sys.excepthook(type(error), error, error.__traceback__)
