"""`CollectiveStrategy`, DeepRec's interface to synchronous training.

    from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy
    strategy = CollectiveStrategy()
    with strategy.scope():
        with strategy.embedding_scope():
            table = tf.get_embedding_variable("t", 3)
        ...
        strategy.export_saved_model(directory, tf.train.latest_checkpoint(checkpoints), signature)

`python3 -m tf_multitier.launch` and TF_CONFIG say how many processes train together: those of
`tf_multitier.distribute.CollectiveStrategy`. Embedding variables that are made in a scope are divided among them, and all optimizers
use the mean of their gradients. A single process exchanges no values: there scopes have no effect. `COLLECTIVE_STRATEGY` may be "sok"
or "hb"; both mean the same here.
"""

import contextlib
import os
import time

import tensorflow as tf

from tf_multitier import distribute
from tf_multitier._src.processes import world as _worlds
from tf_multitier.deeprec import estimator as _estimator

_v1 = tf.compat.v1


def of_process():
    """The tf_multitier.distribute.CollectiveStrategy that has connected this process, else a new one."""
    world = _worlds.connected()
    return distribute.CollectiveStrategy() if world is None or world.size == 1 else world.strategy


def train_together():
    """The strategy of this process. From now on, its optimizers use the gradients of all processes."""
    strategy = of_process()
    strategy.reduce_all()
    return strategy


def enter_scope(strategy):
    """Enters the scope of a strategy for the rest of the program."""
    scope = strategy.scope()
    scope.__enter__()
    _entered.append(scope)


_entered: list = []


class _Number(int):
    """An integer that can also be called: programs write `strategy.world_size` and `strategy.world_size()`."""

    def __call__(self):
        return int(self)


class _Estimator(_estimator.Estimator):
    """The Estimator of a strategy. It has the functions of `tf.estimator` as methods."""

    def train_and_evaluate(self, train_spec, eval_spec):
        """`tf.estimator.train_and_evaluate(self, train_spec, eval_spec)`."""
        return _estimator.train_and_evaluate(self, train_spec, eval_spec)


class CollectiveStrategy:
    """The strategy of a program. Source: DeepRec's class of that name.

    Attributes:
      world_size: the number of processes; also a method.
      rank: the number of this process; also a method.

    Raises:
      ValueError: the environment variable `COLLECTIVE_STRATEGY` is neither "sok" nor "hb"; or a launcher that sets no TF_CONFIG started
        several processes.
    """

    def __init__(self):
        strategy = os.environ.get("COLLECTIVE_STRATEGY", "sok")
        if strategy not in ("sok", "hb"):
            raise ValueError(
                f"CollectiveStrategy: environment variable COLLECTIVE_STRATEGY: expected sok or hb, found {strategy!r}"
            )
        self._strategy = train_together()
        self._is_exporting = False
        self.world_size = _Number(self._strategy.world_size())
        self.rank = _Number(self._strategy.rank())

    @contextlib.contextmanager
    def scope(self, *args, **kwargs):
        """A context in which new embedding variables are divided among the processes. Arguments are ignored."""
        with _worlds.scope(None) if self._is_exporting else self._strategy.scope():
            yield self

    embedding_scope = scope

    def estimator(self, model_fn, **kwargs):
        """`tf.estimator.Estimator(model_fn, **kwargs)`, which also has `train_and_evaluate(train_spec, eval_spec)` as a method.

        Raises:
          NotImplementedError: several processes train together.
        """
        if self.world_size > 1:
            raise NotImplementedError(
                f"CollectiveStrategy.estimator: expected one process, found {self.world_size}: build the model, and train it in a "
                "tf.train.MonitoredTrainingSession"
            )
        return _Estimator(model_fn, **kwargs)

    def export_saved_model(
        self,
        savedmodel_dir,
        checkpoint_dir=None,
        signature_def_fn=None,
        assets_extra=None,
        as_text=False,
        clear_devices=True,
        strip_default_attrs=True,
    ):
        """Writes a SavedModel with the variables of a checkpoint. Of several processes, rank 0 writes it.

        Args:
          savedmodel_dir: parent directory. The SavedModel's directory in it is named after the time in seconds.
          checkpoint_dir: prefix of the checkpoint, as `tf.train.latest_checkpoint` returns it, or the checkpoint's directory.
          signature_def_fn: function that builds the graph of the model and returns its SignatureDef.
          assets_extra: {path within `assets.extra`: file to copy}.
          as_text, clear_devices, strip_default_attrs: see SavedModelBuilder.

        Returns:
          The directory of the SavedModel. On other ranks None.

        Raises:
          ValueError: signature_def_fn is not a function, or there is no checkpoint.
        """
        if not callable(signature_def_fn):
            raise ValueError(
                "export_saved_model: signature_def_fn: expected a function that builds the model and returns its "
                f"SignatureDef, found {signature_def_fn!r}"
            )
        checkpoint = checkpoint_dir and (
            tf.train.latest_checkpoint(checkpoint_dir) or checkpoint_dir
        )
        if not checkpoint or not tf.io.gfile.exists(f"{checkpoint}.index"):
            raise ValueError(f"export_saved_model: expected a checkpoint, found {checkpoint_dir!r}")
        if self.rank != 0:
            return None
        target = _new_directory(savedmodel_dir)
        with tf.Graph().as_default(), self._alone():
            signature = signature_def_fn()
            with _v1.Session() as session:
                _v1.train.Saver().restore(session, checkpoint)
                builder = _v1.saved_model.Builder(target)
                builder.add_meta_graph_and_variables(
                    session,
                    [_v1.saved_model.tag_constants.SERVING],
                    {
                        _v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature
                    },
                    _v1.get_collection(_v1.GraphKeys.ASSET_FILEPATHS),
                    clear_devices=clear_devices,
                    main_op=_v1.train.Scaffold.default_local_init_op(),
                    strip_default_attrs=strip_default_attrs,
                )
                builder.save(as_text=as_text)
        for inside, source in (assets_extra or {}).items():
            copy = os.path.join(target, "assets.extra", inside)
            tf.io.gfile.makedirs(os.path.dirname(copy))
            tf.io.gfile.copy(source, copy)
        return target

    @contextlib.contextmanager
    def _alone(self):
        """A context in which new variables are those of this process, also in scopes of the strategy."""
        self._is_exporting = True
        try:
            with _worlds.scope(None):
                yield
        finally:
            self._is_exporting = False


def _new_directory(parent):
    """An unused path in `parent`, named after the time in seconds."""
    second = int(time.time())
    while tf.io.gfile.exists(os.path.join(parent, str(second))):
        second += 1
    return os.path.join(parent, str(second))
