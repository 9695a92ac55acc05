"""`CollectiveStrategy`, DeepRec's interface to synchronous training, for a program that trains in one process.

    from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy
    strategy = CollectiveStrategy()
    with strategy.scope():
        with strategy.embedding_scope():
            table = tf.get_variable("t", [1000, 3], partitioner=tf.fixed_size_partitioner(strategy.world_size()))
        ...
        strategy.export_saved_model(directory, tf.train.latest_checkpoint(checkpoints), signature)

A single process exchanges no values, so both scopes have no effect. If a launcher started several processes, they are refused,
because each would train a model of its own. `COLLECTIVE_STRATEGY` may be "sok" or "hb"; both mean the same here.
"""

import contextlib
import os
import time

import tensorflow as tf

from tf_multitier.deeprec import estimator as _estimator

_v1 = tf.compat.v1

# Environment variables in which launchers put the number of processes.
_WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")


def check_alone(what):
    """NotImplementedError if a launcher started this process as one of several."""
    for variable in _WORLD_SIZES:
        if os.environ.get(variable, "1") != "1":
            raise NotImplementedError(
                f"{what}: environment variable {variable}: expected 1 or unset, found {os.environ[variable]}: each process "
                "would train a model of its own; start one process"
            )


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
    """The strategy of a program that trains in one process. Source: DeepRec's class of that name.

    Attributes:
      world_size: 1; also a method.
      rank: 0; also a method.

    Raises:
      ValueError: the environment variable `COLLECTIVE_STRATEGY` is neither "sok" nor "hb".
      NotImplementedError: a launcher started several processes.
    """

    world_size = _Number(1)
    rank = _Number(0)

    def __init__(self):
        strategy = os.environ.get("COLLECTIVE_STRATEGY", "sok")
        if strategy not in ("sok", "hb"):
            raise ValueError(
                f"CollectiveStrategy: environment variable COLLECTIVE_STRATEGY: expected sok or hb, found {strategy!r}"
            )
        check_alone("CollectiveStrategy")

    @contextlib.contextmanager
    def scope(self, *args, **kwargs):
        """A context without effect. Arguments are ignored."""
        yield self

    embedding_scope = scope

    def estimator(self, model_fn, **kwargs):
        """`tf.estimator.Estimator(model_fn, **kwargs)`, which also has `train_and_evaluate(train_spec, eval_spec)` as a method."""
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
        """Writes a SavedModel with the variables of a checkpoint.

        Args:
          savedmodel_dir: parent directory. The SavedModel's directory in it is named after the time in seconds.
          checkpoint_dir: prefix of the checkpoint, as `tf.train.latest_checkpoint` returns it, or the checkpoint's directory.
          signature_def_fn: function that builds the graph of the model and returns its SignatureDef.
          assets_extra: {path within `assets.extra`: file to copy}.
          as_text, clear_devices, strip_default_attrs: see SavedModelBuilder.

        Returns:
          The directory of the SavedModel.

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
        target = _new_directory(savedmodel_dir)
        with tf.Graph().as_default():
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


def _new_directory(parent):
    """An unused path in `parent`, named after the time in seconds."""
    second = int(time.time())
    while tf.io.gfile.exists(os.path.join(parent, str(second))):
        second += 1
    return os.path.join(parent, str(second))
