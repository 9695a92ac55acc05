"""Refuses DeepRec's arguments for incremental checkpoints.

The arguments are `incremental_save_restore=` of Saver and Scaffold, `incremental_save_secs=` of CheckpointSaverHook, and
`save_incremental_checkpoint_secs=` of MonitoredTrainingSession. They are accepted only if they are off (None, False or 0). Writing
full checkpoints instead would cost the time that the program wants to save, so that is left to the user.
"""

import functools

import tensorflow as tf

_train = tf.compat.v1.train


def _refuse(where, argument, value):
    if value:
        raise NotImplementedError(
            f"{where}: {argument} is not supported, found {value!r}: leave it out, and use tf_multitier.train.IncrementalSaverHook "
            "or save full checkpoints more often (save_checkpoint_secs=)"
        )


def _with(original, where, argument):
    """The function `original`, with the additional argument `argument`."""

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
    """Makes TensorFlow's classes in this process accept the arguments."""
    for made, argument in (
        (_train.Saver, "incremental_save_restore"),
        (_train.Scaffold, "incremental_save_restore"),
        (_train.CheckpointSaverHook, "incremental_save_secs"),
    ):
        made.__init__ = _with(made.__init__, f"tf.train.{made.__name__}", argument)
