"""DeepRec's arguments for incremental checkpoints, over `tf_multitier.train.IncrementalSaver` and its hook.

    tf.train.MonitoredTrainingSession(save_incremental_checkpoint_secs=)   a hook saves checkpoints and deltas, and restores both
    tf.train.CheckpointSaverHook(incremental_save_secs=)                   is that hook
    tf.train.Saver(incremental_save_restore=True)                          its saves are those that deltas continue
    incremental_saver._get_incremental_saver(True, saver)                  writes the deltas of that Saver
    tf.train.Scaffold(incremental_save_restore=)                           no effect: the session's hook does all of it

A delta is written next to the checkpoint that it continues, as `<checkpoint>.delta-0001` and so on. DeepRec writes deltas into a
folder `.incremental_checkpoint`; its reader would not understand these, nor this one DeepRec's.
"""

import functools
import inspect
import os

import tensorflow as tf

from tf_multitier._src.variable.partitioned import embedding_variables
from tf_multitier.train import IncrementalSaver
from tf_multitier.train import IncrementalSaverHook

_train = tf.compat.v1.train

_SESSION = inspect.signature(_train.MonitoredTrainingSession)
_DEFAULT = _SESSION.parameters["save_checkpoint_secs"].default


def _seconds(where, value):
    """None if deltas are off."""
    if value is None or value is False or value == 0:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise ValueError(
            f"{where}: expected more than 0 seconds, or None for no deltas; found {value!r}"
        )
    return value


class _Hook(IncrementalSaverHook):
    """Ends with a checkpoint of all rows, as DeepRec's hook does: programs export the latest checkpoint."""

    def end(self, session):
        if self._saves and session.run(self._step) != self._full.last_triggered_step():
            self._save(session, full=True)


@functools.wraps(_train.MonitoredTrainingSession)
def MonitoredTrainingSession(*args, save_incremental_checkpoint_secs=None, **kwargs):
    seconds = _seconds(
        "tf.train.MonitoredTrainingSession: save_incremental_checkpoint_secs",
        save_incremental_checkpoint_secs,
    )
    given = _SESSION.bind_partial(*args, **kwargs).arguments
    directory = given.get("checkpoint_dir")
    if seconds is None or not directory or not given.get("is_chief", True):
        return _train.MonitoredTrainingSession(**given)
    secs = given.pop("save_checkpoint_secs", _DEFAULT)
    steps = given.pop("save_checkpoint_steps", _DEFAULT)
    if secs is _DEFAULT:
        secs = 600 if steps is _DEFAULT else None
    steps = None if steps is _DEFAULT else steps
    if not secs and not steps:
        return _train.MonitoredTrainingSession(
            **given, save_checkpoint_secs=None, save_checkpoint_steps=None
        )
    hook = _Hook(
        directory,
        save_secs=secs or None,
        save_steps=steps or None,
        save_incremental_secs=seconds,
    )
    hooks = [*(given.pop("chief_only_hooks", None) or []), hook]
    return _train.MonitoredTrainingSession(
        **given,
        chief_only_hooks=hooks,
        save_checkpoint_secs=None,
        save_checkpoint_steps=None,
    )


def _checkpoint_saver_hook(original, argument):
    @functools.wraps(original)
    def init(self, *args, **kwargs):
        where = f"tf.train.CheckpointSaverHook: {argument}"
        seconds = _seconds(where, kwargs.pop(argument, None))
        original(self, *args, **kwargs)
        if seconds is None:
            return
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        if given.get("listeners"):
            raise NotImplementedError(
                f"{where} together with listeners is not supported: leave one of them out"
            )
        names = ("checkpoint_dir", "save_secs", "save_steps", "checkpoint_basename")
        self._deltas = _Hook(
            save_incremental_secs=seconds,
            **{name: given[name] for name in names if name in given},
        )

    return init


def _by_deltas(original):
    """A method of CheckpointSaverHook; of a hook that saves deltas, that of its IncrementalSaverHook."""

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        deltas = getattr(self, "_deltas", None)
        if deltas is None:
            return original(self, *args, **kwargs)
        return getattr(deltas, original.__name__)(*args, **kwargs)

    return method


def _saver(original, argument):
    @functools.wraps(original)
    def init(self, *args, **kwargs):
        deltas = kwargs.pop(argument, None)
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        if not deltas or given.get("saver_def") is not None or not embedding_variables():
            original(self, *args, **kwargs)
            return
        del given["self"]
        given.pop("defer_build", None)
        self._incremental = IncrementalSaver(**given)
        kept = {
            name: given[name] for name in ("max_to_keep", "save_relative_paths") if name in given
        }
        original(self, saver_def=self._incremental.saver.as_saver_def(), **kept)

    return init


def _save(original):
    @functools.wraps(original)
    def save(self, sess, save_path, global_step=None, *args, **kwargs):
        incremental = getattr(self, "_incremental", None)
        if incremental is None:
            return original(self, sess, save_path, global_step, *args, **kwargs)
        given = inspect.signature(original).bind(
            self, sess, save_path, global_step, *args, **kwargs
        )
        for name in ("self", "sess", "save_path", "global_step"):
            del given.arguments[name]
        return incremental.save(sess, save_path, global_step, **given.arguments)

    return save


def _scaffold(original, argument):
    @functools.wraps(original)
    def init(self, *args, **kwargs):
        kwargs.pop(argument, None)
        original(self, *args, **kwargs)

    return init


class _Deltas:
    """What `_get_incremental_saver` returns."""

    def __init__(self, incremental):
        self._incremental = incremental

    def incremental_save(self, sess, save_path, global_step=None, **_):
        """Saves what changed since the last save.

        Args:
          save_path, global_step: used if all rows have to be saved. A delta is named after the checkpoint that it continues.

        Returns:
          The prefix of the delta or checkpoint.
        """
        tf.io.gfile.makedirs(os.path.dirname(save_path) or ".")
        return self._incremental.save_incremental(sess, save_path, global_step)

    def incremental_restore(self, sess, full_ckpt_path, *_, **__):
        """Restores a checkpoint and the deltas that continue it."""
        self._incremental.restore(sess, full_ckpt_path)


def _get_incremental_saver(incremental_save_restore, saver):
    """Writes and restores the deltas of a Saver. None if `incremental_save_restore` is false.

    Raises:
      ValueError: the Saver was not made with incremental_save_restore=True in a graph with embedding variables.
    """
    if not incremental_save_restore:
        return None
    incremental = getattr(saver, "_incremental", None)
    if incremental is None:
        raise ValueError(
            "_get_incremental_saver: expected a tf.train.Saver(incremental_save_restore=True) that was made in a graph "
            f"with embedding variables, found {saver!r}"
        )
    return _Deltas(incremental)


def install():
    """Makes TensorFlow's classes in this process accept the arguments."""
    hook, saver, scaffold = _train.CheckpointSaverHook, _train.Saver, _train.Scaffold
    hook.__init__ = _checkpoint_saver_hook(hook.__init__, "incremental_save_secs")
    for name in ("begin", "after_create_session", "before_run", "after_run", "end"):
        setattr(hook, name, _by_deltas(getattr(hook, name)))
    saver.__init__ = _saver(saver.__init__, "incremental_save_restore")
    saver.save = _save(saver.save)
    scaffold.__init__ = _scaffold(scaffold.__init__, "incremental_save_restore")
