"""ModeKeys, EstimatorSpec, TrainSpec and EvalSpec, the arguments of an Estimator. Names and arguments are TensorFlow 1's."""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


# The arguments that each mode requires.
_NEEDED = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


def _check_graph(what, given):
    """ValueError if a tensor or op of `given` is of another graph than the current one."""
    for value in tf.nest.flatten(given):
        graph = getattr(value, "graph", None)
        if graph is not None and graph is not tf.compat.v1.get_default_graph():
            raise ValueError(
                f"EstimatorSpec: {what}: expected a tensor or op of the current graph, found '{value.name}' of another graph: "
                "model_fn is called once for each graph; build it in each call"
            )


class EstimatorSpec:
    """The return value of a model_fn.

    Args:
      mode: one of ModeKeys.
      predictions: a Tensor or a dict of Tensors. Required to predict.
      loss: a scalar. Required to train and to evaluate.
      train_op: the op of a training step. Required to train.
      eval_metric_ops: {name: (value, update)}, as the functions of `tf.metrics` return them.
      export_outputs: {name of a signature: an output of tf.estimator.export}. None: the predictions.
      training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: SessionRunHooks.
      scaffold: a tf.train.Scaffold.

    Raises:
      ValueError: an unknown mode, an argument that the mode requires is missing, or a tensor of another graph.
      TypeError: bad eval_metric_ops.
    """

    def __init__(
        self,
        mode: str,
        predictions: typing.Any = None,
        loss: typing.Any = None,
        train_op: typing.Any = None,
        eval_metric_ops: dict[str, tuple] | None = None,
        export_outputs: dict[str, typing.Any] | None = None,
        training_chief_hooks: collections.abc.Sequence | None = None,
        training_hooks: collections.abc.Sequence | None = None,
        scaffold: typing.Any = None,
        evaluation_hooks: collections.abc.Sequence | None = None,
        prediction_hooks: collections.abc.Sequence | None = None,
    ) -> None:
        if mode not in _NEEDED:
            raise ValueError(
                f"EstimatorSpec: mode: expected one of {sorted(_NEEDED)}, found {mode!r}"
            )
        given = {"loss": loss, "train_op": train_op, "predictions": predictions}
        for name in _NEEDED[mode]:
            if given[name] is None:
                raise ValueError(
                    f"EstimatorSpec: {name}: expected a value in mode '{mode}', found None"
                )
        for name, value in {**given, "eval_metric_ops": eval_metric_ops}.items():
            _check_graph(name, value)
        for name, metric in (eval_metric_ops or {}).items():
            if not isinstance(metric, tuple) or len(metric) != 2:
                raise TypeError(
                    f"EstimatorSpec: eval_metric_ops: expected pairs (value, update) as tf.metrics gives them, found {metric!r} "
                    f"for '{name}'"
                )
        self.mode = mode
        self.predictions = predictions
        self.loss = None if loss is None else tf.reshape(loss, [])
        self.train_op = train_op
        self.eval_metric_ops = dict(eval_metric_ops or {})
        self.export_outputs = export_outputs
        self.training_chief_hooks = tuple(training_chief_hooks or ())
        self.training_hooks = tuple(training_hooks or ())
        self.evaluation_hooks = tuple(evaluation_hooks or ())
        self.prediction_hooks = tuple(prediction_hooks or ())
        self.scaffold = scaffold or tf.compat.v1.train.Scaffold()


class TrainSpec(typing.NamedTuple):
    """The training of `train_and_evaluate`. `max_steps` is the global step at which to stop. None: at the end of the data."""

    input_fn: collections.abc.Callable
    max_steps: int | None = None
    hooks: collections.abc.Sequence | None = None
    saving_listeners: collections.abc.Sequence | None = None


class EvalSpec(typing.NamedTuple):
    """The evaluations of `train_and_evaluate`. Each uses `steps` batches (None: all). At most one starts in `throttle_secs` seconds."""

    input_fn: collections.abc.Callable
    steps: int | None = 100
    name: str | None = None
    hooks: collections.abc.Sequence | None = None
    exporters: object | None = None
    start_delay_secs: int = 120
    throttle_secs: int = 600
