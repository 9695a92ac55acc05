"""DeepRec's arguments for incremental checkpoints, refused in one sentence.

`incremental_save_restore=` of Saver and Scaffold, `incremental_save_secs=` of CheckpointSaverHook, and `save_incremental_checkpoint_secs=` of
MonitoredTrainingSession. A full checkpoint in their place would cost what the program wanted to save, so they are refused unless they
are off (None, False or 0).
"""

import functools

import tensorflow as tf

_train = tf.compat.v1.train


def _refuse(where, argument, value):
    if value:
        raise NotImplementedError(
            f"{where}: {argument} is not supported, found {value!r}: leave it out and save full checkpoints more "
            "often (save_checkpoint_secs=)"
        )


def _with(original, where, argument):
    """The function `original` that takes `argument`, too."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        _refuse(where, argument, kwargs.pop(argument, None))
        return original(*args, **kwargs)

    return function


MonitoredTrainingSession = _with(
    _train.MonitoredTrainingSession,
    "tf.train.MonitoredTrainingSession",
    "save_incremental_checkpoint_secs",
)


def install():
    """From now on the classes of the process take the arguments."""
    for made, argument in (
        (_train.Saver, "incremental_save_restore"),
        (_train.Scaffold, "incremental_save_restore"),
        (_train.CheckpointSaverHook, "incremental_save_secs"),
    ):
        made.__init__ = _with(made.__init__, f"tf.train.{made.__name__}", argument)
