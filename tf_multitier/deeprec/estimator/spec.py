"""What programs hand to an Estimator: ModeKeys, EstimatorSpec, TrainSpec, EvalSpec. Names and arguments are TensorFlow 1's."""

from typing import NamedTuple

import tensorflow as tf


class ModeKeys:
    """What a model_fn is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


# What each mode cannot do without.
_NEEDED = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


class EstimatorSpec:
    """What a model_fn returns.

    Args:
      mode: one of ModeKeys.
      predictions: a Tensor or a dict of them; needed to predict.
      loss: a scalar; needed to train and evaluate.
      train_op: what a training step runs.
      eval_metric_ops: {name: (value, update)}, as those of `tf.metrics`.
      export_outputs: {name of a signature: an output of tf.estimator.export}; None: the predictions.
      training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: SessionRunHooks.
      scaffold: a tf.train.Scaffold.

    Raises:
      ValueError: a bad mode, or what the mode needs is missing.
      TypeError: bad eval_metric_ops.
    """

    def __init__(
        self,
        mode,
        predictions=None,
        loss=None,
        train_op=None,
        eval_metric_ops=None,
        export_outputs=None,
        training_chief_hooks=None,
        training_hooks=None,
        scaffold=None,
        evaluation_hooks=None,
        prediction_hooks=None,
    ):
        if mode not in _NEEDED:
            raise ValueError(
                f"EstimatorSpec: mode must be one of {sorted(_NEEDED)}, found {mode!r}"
            )
        given = {"loss": loss, "train_op": train_op, "predictions": predictions}
        for name in _NEEDED[mode]:
            if given[name] is None:
                raise ValueError(f"EstimatorSpec: mode '{mode}' needs {name}, found None")
        for name, metric in (eval_metric_ops or {}).items():
            if not isinstance(metric, tuple) or len(metric) != 2:
                raise TypeError(
                    f"EstimatorSpec: eval_metric_ops must be pairs (value, update) as tf.metrics gives them, found {metric!r} "
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


class TrainSpec(NamedTuple):
    """The training of `train_and_evaluate`: `max_steps` is the global step to train to; None: to the end of the data."""

    input_fn: object
    max_steps: int | None = None
    hooks: list | None = None
    saving_listeners: list | None = None


class EvalSpec(NamedTuple):
    """The evaluations of `train_and_evaluate`: of `steps` batches (None: all), at most one in `throttle_secs` seconds."""

    input_fn: object
    steps: int | None = 100
    name: str | None = None
    hooks: list | None = None
    exporters: object | None = None
    start_delay_secs: int = 120
    throttle_secs: int = 600
