"""What a run of a script prints that is not the script's own: no deprecation warnings, and errors without the runner's frames.

A DeepRec program is written against TensorFlow 1. TensorFlow 2.21 and Keras answer many of its calls with a warning to use another API, which
its user cannot do without rewriting it; `without_deprecations` leaves those out. Warnings of the program itself stay.
"""

import contextlib
import re
import sys
import types
import warnings

from tensorflow.python.util import deprecation

# How the deprecation warnings of TensorFlow, Keras and libraries below them begin.
_DEPRECATED = (r"`?(tf|layer|keras|model|Model)\.\S+`? (is|are) deprecated", r".*is deprecated and will be removed in a future version",
               r".*pkg_resources is deprecated", r"`\S+` is deprecated and (is not needed|will be removed)")

# Files of the runner, whose frames say nothing about the script. `__import__` of script.py stands between any two.
_RUNNER = re.compile(r"<frozen runpy>|.*/tf_multitier/deeprec/(__main__|script|messages)\.py")
_FRAME_LINE = re.compile(r'^\s*File "(?P<file>[^"]*)", line \d+, in .*\n?', re.MULTILINE)


@contextlib.contextmanager
def without_deprecations():
    """A context in which TensorFlow and Keras do not say that an API is deprecated."""
    with warnings.catch_warnings(), deprecation.silence():
        for message in _DEPRECATED:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(tensorflow|keras|tf_keras|tf_multitier|google)(\.|$)")
        yield


def _without_frames(traceback):
    """`traceback` without the frames of the runner; None where nothing is left."""
    if traceback is None:
        return None
    rest = _without_frames(traceback.tb_next)
    if _RUNNER.fullmatch(traceback.tb_frame.f_code.co_filename):
        return rest
    return types.TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def without_runner(error):
    """Takes the runner's frames out of an exception and of those that led to it, and out of the text of TensorFlow's errors."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _without_frames(error.__traceback__)
        message = getattr(error, "_message", None)  # tf.errors.OpError: says where the op was made
        if isinstance(message, str):
            error._message = _FRAME_LINE.sub(lambda line: "" if _RUNNER.fullmatch(line["file"]) else line[0], message)
        error = error.__cause__ or error.__context__


def report(error):
    """Prints an exception that the script did not catch as Python does, without the runner's frames."""
    without_runner(error)
    sys.excepthook(type(error), error, error.__traceback__)
