"""`tf.estimator` for DeepRec programs: a small layer over MonitoredTrainingSession.

TensorFlow 2.21 has no Estimators. This package has the part of TensorFlow 1's API for programs with a `model_fn`:

    run_config.py   RunConfig: when to save, and the cluster that TF_CONFIG names
    spec.py         ModeKeys, EstimatorSpec, TrainSpec, EvalSpec
    estimator.py    Estimator: train, evaluate, predict, export_saved_model
    training.py     train_and_evaluate
    wide_deep.py    DNNLinearCombinedClassifier, the one ready-made model that DeepRec's samples use
    export.py       ServingInputReceiver, and the outputs of a SavedModel

All other names of `tf.estimator` raise an error that says what to do. Checkpoints are those of `tf.train.Saver`. So a program may train
in its own session and export with an Estimator, as DeepRec's model zoo does.
"""

import types
import typing

import tensorflow as tf

from tf_multitier.deeprec.estimator import export
from tf_multitier.deeprec.estimator.estimator import Estimator
from tf_multitier.deeprec.estimator.run_config import RunConfig
from tf_multitier.deeprec.estimator.spec import EstimatorSpec
from tf_multitier.deeprec.estimator.spec import EvalSpec
from tf_multitier.deeprec.estimator.spec import ModeKeys
from tf_multitier.deeprec.estimator.spec import TrainSpec
from tf_multitier.deeprec.estimator.training import train_and_evaluate
from tf_multitier.deeprec.estimator.wide_deep import DNNLinearCombinedClassifier

__all__ = [
    "DNNLinearCombinedClassifier",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "export",
    "train_and_evaluate",
]


def __dir__():
    return sorted(__all__)


_train = tf.compat.v1.train

NAMES = {
    "DNNLinearCombinedClassifier": DNNLinearCombinedClassifier,
    "Estimator": Estimator,
    "EstimatorSpec": EstimatorSpec,
    "EvalSpec": EvalSpec,
    "ModeKeys": ModeKeys,
    "RunConfig": RunConfig,
    "TrainSpec": TrainSpec,
    "train_and_evaluate": train_and_evaluate,
    **{
        name: getattr(_train, name)
        for name in (
            "CheckpointSaverHook",
            "CheckpointSaverListener",
            "FeedFnHook",
            "FinalOpsHook",
            "GlobalStepWaiterHook",
            "LoggingTensorHook",
            "NanLossDuringTrainingError",
            "NanTensorHook",
            "ProfilerHook",
            "SecondOrStepTimer",
            "SessionRunArgs",
            "SessionRunContext",
            "SessionRunHook",
            "SessionRunValues",
            "StepCounterHook",
            "StopAtStepHook",
            "SummarySaverHook",
            "VocabInfo",
        )
    },
}


class _Module(types.ModuleType):
    """A module of `tf.estimator`. It raises NotImplementedError for other names."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"{self.__name__}.{name} is not supported: write a model_fn and use tf.estimator.Estimator, or train in a "
            "tf.train.MonitoredTrainingSession"
        )


def module() -> types.ModuleType:
    """The module `tf.estimator`."""
    made: typing.Any = _Module("tensorflow.estimator", __doc__)
    made.__dict__.update(NAMES)
    made.export = _Module("tensorflow.estimator.export", export.__doc__)
    made.export.__dict__.update({name: getattr(export, name) for name in export.__all__})
    return made
