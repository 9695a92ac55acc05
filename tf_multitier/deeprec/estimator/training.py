"""train_and_evaluate, for a single process and for one task of a cluster in TF_CONFIG."""

from __future__ import annotations

import time

import tensorflow as tf

from tf_multitier.deeprec.estimator.estimator import Estimator
from tf_multitier.deeprec.estimator.spec import EvalSpec
from tf_multitier.deeprec.estimator.spec import TrainSpec

_v1 = tf.compat.v1


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict, list] | None:
    """Trains and evaluates. Source: `tf.estimator.train_and_evaluate` of TensorFlow 1.

    A single process evaluates after checkpoints, at most once in `throttle_secs` seconds, and at the end. In a cluster, "ps" tasks
    serve until the process ends, "chief" and "worker" tasks train, and an "evaluator" task evaluates each new checkpoint.

    Returns:
      (results of the last evaluation, []) if this process evaluates, otherwise None.

    Raises:
      NotImplementedError: exporters are given.
    """
    if eval_spec.exporters:
        raise NotImplementedError(
            "train_and_evaluate: exporters are not supported: call estimator.export_saved_model afterwards"
        )
    config = estimator.config
    if not config.cluster_spec.jobs or config.task_type == "evaluator" or not config.master:
        evaluates_alone = config.task_type == "evaluator"
        return (_evaluate_each_checkpoint if evaluates_alone else _train_alone)(
            estimator, train_spec, eval_spec
        )
    server = tf.distribute.Server(
        config.cluster_spec,
        config.task_type,
        config.task_id,
        protocol=config.protocol or "grpc",
        config=config.session_config,
    )
    if config.task_type == "ps":
        server.join()
    estimator.train(
        train_spec.input_fn,
        list(train_spec.hooks or ()),
        max_steps=train_spec.max_steps,
        saving_listeners=train_spec.saving_listeners,
    )
    return None


class _EvaluateAfterSaving(_v1.train.CheckpointSaverListener):
    """Evaluates each saved checkpoint except the last, if `throttle_secs` seconds have passed."""

    def __init__(self, evaluate, eval_spec):
        self._evaluate, self._throttle = evaluate, eval_spec.throttle_secs
        self._last = time.monotonic()

    def after_save(self, session, global_step_value):
        if time.monotonic() - self._last >= self._throttle:
            self._evaluate()
            self._last = time.monotonic()


def _train_alone(estimator, train_spec, eval_spec):
    def evaluate():
        return estimator.evaluate(
            eval_spec.input_fn, eval_spec.steps, eval_spec.hooks, name=eval_spec.name
        )

    listeners = [*(train_spec.saving_listeners or ()), _EvaluateAfterSaving(evaluate, eval_spec)]
    estimator.train(
        train_spec.input_fn,
        list(train_spec.hooks or ()),
        max_steps=train_spec.max_steps,
        saving_listeners=listeners,
    )
    return evaluate(), []


def _evaluate_each_checkpoint(estimator, train_spec, eval_spec):
    results = None
    for checkpoint in tf.train.checkpoints_iterator(
        estimator.model_dir, min_interval_secs=eval_spec.throttle_secs
    ):
        results = estimator.evaluate(
            eval_spec.input_fn, eval_spec.steps, eval_spec.hooks, checkpoint, eval_spec.name
        )
        if train_spec.max_steps is not None and results["global_step"] >= train_spec.max_steps:
            break
    return results, []
