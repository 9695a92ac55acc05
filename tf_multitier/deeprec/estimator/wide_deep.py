"""DNNLinearCombinedClassifier: a wide and deep model over feature columns, for binary classification."""

from __future__ import annotations

import collections.abc
import math
import os
import typing

import tensorflow as tf

from tf_multitier.deeprec.estimator import export
from tf_multitier.deeprec.estimator.estimator import Estimator
from tf_multitier.deeprec.estimator.run_config import RunConfig
from tf_multitier.deeprec.estimator.spec import EstimatorSpec
from tf_multitier.deeprec.estimator.spec import ModeKeys

_v1 = tf.compat.v1


class DNNLinearCombinedClassifier(Estimator):
    """Adds the logits of a linear model and a DNN. Labels are 0 and 1. Names and arguments are TensorFlow 1's.

    Args:
      model_dir, config: see Estimator.
      linear_feature_columns, dnn_feature_columns: feature columns; at least one of the two.
      linear_optimizer, dnn_optimizer: a `tf.train` optimizer, or a function that makes one in the graph. Defaults: Ftrl with a
        learning rate of at most 0.2, and Adagrad with 0.05.
      dnn_hidden_units: sizes of the hidden layers.
      dnn_activation_fn, dnn_dropout: activation and dropout probability of each hidden layer.
      dnn_dtype: dtype in which the hidden layers are computed, for example tf.bfloat16. Weights stay float32.
      linear_sparse_combiner: "sum", "mean" or "sqrtn".
      loss_reduction: one of tf.losses.Reduction.
      n_classes: must be 2.
      weight_column, label_vocabulary, batch_norm, warm_start_from: must have their defaults.

    Raises:
      ValueError, NotImplementedError: a bad argument.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike | None = None,
        linear_feature_columns: collections.abc.Iterable | None = None,
        linear_optimizer: typing.Any = None,
        dnn_feature_columns: collections.abc.Iterable | None = None,
        dnn_optimizer: typing.Any = None,
        dnn_hidden_units: collections.abc.Sequence[int] | None = None,
        dnn_activation_fn: collections.abc.Callable = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: None = None,
        label_vocabulary: None = None,
        config: RunConfig | None = None,
        warm_start_from: None = None,
        loss_reduction: typing.Any = _v1.losses.Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        dnn_dtype: typing.Any = tf.float32,
    ) -> None:
        for name, value, expected in (
            ("n_classes", n_classes, 2),
            ("weight_column", weight_column, None),
            ("label_vocabulary", label_vocabulary, None),
            ("batch_norm", batch_norm, False),
        ):
            if value != expected:
                raise NotImplementedError(
                    f"DNNLinearCombinedClassifier: {name}: expected {expected!r}, found {value!r}: write a model_fn for "
                    "tf.estimator.Estimator"
                )
        if not linear_feature_columns and not dnn_feature_columns:
            raise ValueError(
                "DNNLinearCombinedClassifier: expected linear_feature_columns or dnn_feature_columns, found neither"
            )
        if dnn_feature_columns and not dnn_hidden_units:
            raise ValueError(
                "DNNLinearCombinedClassifier: expected dnn_hidden_units for dnn_feature_columns, found none"
            )
        self._linear_columns, self._dnn_columns = (
            list(linear_feature_columns or ()),
            list(dnn_feature_columns or ()),
        )
        self._linear_optimizer, self._dnn_optimizer = linear_optimizer, dnn_optimizer
        self._hidden_units, self._activation, self._dropout = (
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
        )
        self._combiner, self._reduction, self._dtype = (
            linear_sparse_combiner,
            loss_reduction,
            tf.as_dtype(dnn_dtype),
        )
        super().__init__(self._build_model, model_dir, config, warm_start_from=warm_start_from)

    def _build_model(self, features, labels, mode):
        logits = []
        if self._dnn_columns:
            logits.append(self._dnn(features, mode))
        if self._linear_columns:
            with _v1.variable_scope("linear"):
                logits.append(
                    _v1.feature_column.linear_model(
                        features, self._linear_columns, sparse_combiner=self._combiner
                    )
                )
        logits = tf.add_n(logits)
        probability = tf.sigmoid(logits)
        class_ids = tf.cast(logits > 0, tf.int64)
        predictions = {
            "logits": logits,
            "logistic": probability,
            "class_ids": class_ids,
            "classes": tf.strings.as_string(class_ids),
            "probabilities": tf.concat([1 - probability, probability], 1),
        }
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(
                mode, predictions, export_outputs={"predict": export.PredictOutput(predictions)}
            )
        labels = tf.reshape(tf.cast(labels, tf.float32), [-1, 1])
        loss = _v1.losses.sigmoid_cross_entropy(labels, logits, reduction=self._reduction)
        if mode == ModeKeys.EVAL:
            return EstimatorSpec(
                mode,
                predictions,
                loss,
                eval_metric_ops=_metrics(labels, logits, probability, class_ids),
            )
        _v1.summary.scalar("loss", loss)
        return EstimatorSpec(mode, predictions, loss, self._train(loss))

    def _dnn(self, features, mode):
        with _v1.variable_scope("dnn"):
            with _v1.variable_scope("input_from_feature_columns"):
                net = _v1.feature_column.input_layer(features, self._dnn_columns)
            for index, units in enumerate(self._hidden_units):
                net = self._activation(self._dense(f"hiddenlayer_{index}", net, units))
                if self._dropout and mode == ModeKeys.TRAIN:
                    net = tf.nn.dropout(net, self._dropout)
            return tf.cast(self._dense("logits", net, 1), tf.float32)

    def _dense(self, name, net, units):
        with _v1.variable_scope(name):
            kernel = _v1.get_variable(
                "kernel", [net.shape[1], units], initializer=_v1.glorot_uniform_initializer()
            )
            bias = _v1.get_variable("bias", [units], initializer=_v1.zeros_initializer())
            return tf.cast(net, self._dtype) @ tf.cast(kernel, self._dtype) + tf.cast(
                bias, self._dtype
            )

    def _train(self, loss):
        rate = min(0.2, 1 / math.sqrt(len(self._linear_columns) or 1))
        parts = [
            ("dnn", self._dnn_optimizer or _v1.train.AdagradOptimizer(0.05)),
            ("linear", self._linear_optimizer or _v1.train.FtrlOptimizer(rate)),
        ]
        steps = []
        for scope, optimizer in parts:
            variables = _v1.trainable_variables(scope + "/")
            if variables:
                steps.append(
                    (optimizer() if callable(optimizer) else optimizer).minimize(
                        loss, var_list=variables
                    )
                )
        with tf.control_dependencies([*steps, *_v1.get_collection(_v1.GraphKeys.UPDATE_OPS)]):
            return _v1.assign_add(_v1.train.get_global_step(), 1).op


def _metrics(labels, logits, probability, class_ids):
    metrics = _v1.metrics
    mean = metrics.mean(labels)
    return {
        "accuracy": metrics.accuracy(labels, class_ids),
        "auc": metrics.auc(labels, probability),
        "auc_precision_recall": metrics.auc(
            labels, probability, curve="PR", summation_method="careful_interpolation"
        ),
        "precision": metrics.precision(labels, class_ids),
        "recall": metrics.recall(labels, class_ids),
        "average_loss": metrics.mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)),
        "label/mean": mean,
        "prediction/mean": metrics.mean(probability),
        "accuracy_baseline": (tf.maximum(mean[0], 1 - mean[0]), mean[1]),
    }
