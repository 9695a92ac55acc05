"""`tf.estimator.export`: the inputs and outputs of an exported model. Names and arguments are TensorFlow 1's."""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

_v1 = tf.compat.v1

__all__ = [
    "ClassificationOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]


def __dir__():
    return sorted(__all__)


class ServingInputReceiver:
    """The inputs of an exported model.

    Args:
      features: a Tensor or a dict of Tensors: the input of the model_fn.
      receiver_tensors: a Tensor or a dict of Tensors: the input of a request.
      receiver_tensors_alternatives: {name: dict of tensors in the graph that a request may feed instead}. Each has its own signatures.
    """

    def __init__(
        self,
        features: typing.Any,
        receiver_tensors: typing.Any,
        receiver_tensors_alternatives: dict[str, dict] | None = None,
    ) -> None:
        self.features = features
        self.receiver_tensors = (
            receiver_tensors if isinstance(receiver_tensors, dict) else {"input": receiver_tensors}
        )
        self.receiver_tensors_alternatives = receiver_tensors_alternatives or {}


class PredictOutput:
    """All predictions, by name."""

    def __init__(self, outputs: typing.Any) -> None:
        self.outputs = outputs if isinstance(outputs, dict) else {"output": outputs}

    def signature(self, inputs: dict[str, typing.Any]) -> typing.Any:
        """The SignatureDef of a model with these inputs."""
        return _v1.saved_model.predict_signature_def(inputs, self.outputs)


class ClassificationOutput:
    """Classes and their scores: a signature of the method `tensorflow/serving/classify`."""

    def __init__(self, scores: typing.Any = None, classes: typing.Any = None) -> None:
        if scores is None and classes is None:
            raise ValueError("ClassificationOutput: expected scores or classes, found neither")
        self.scores, self.classes = scores, classes

    def signature(self, inputs: dict[str, typing.Any]) -> typing.Any:
        """The SignatureDef of a model with these inputs."""
        return _v1.saved_model.classification_signature_def(
            _the_one(inputs), self.classes, self.scores
        )


class RegressionOutput:
    """One value per example: a signature of the method `tensorflow/serving/regress`."""

    def __init__(self, value: typing.Any) -> None:
        self.value = value

    def signature(self, inputs: dict[str, typing.Any]) -> typing.Any:
        """The SignatureDef of a model with these inputs."""
        return _v1.saved_model.regression_signature_def(_the_one(inputs), self.value)


def _the_one(inputs):
    if len(inputs) != 1:
        raise ValueError(
            f"Classify and Regress signatures: expected one input of serialized examples, found {sorted(inputs)}"
        )
    return next(iter(inputs.values()))


def build_raw_serving_input_receiver_fn(
    features: dict[str, typing.Any], default_batch_size: int | None = None
) -> collections.abc.Callable[[], ServingInputReceiver]:
    """A serving_input_receiver_fn with a placeholder for each Tensor of the dict `features`, of its dtype and shape."""

    def receiver():
        inputs = {}
        for name, tensor in features.items():
            shape = tensor.shape.as_list()
            inputs[name] = _v1.placeholder(tensor.dtype, [default_batch_size, *shape[1:]], name)
        return ServingInputReceiver(inputs, inputs)

    return receiver


def build_parsing_serving_input_receiver_fn(
    feature_spec: dict[str, typing.Any], default_batch_size: int | None = None
) -> collections.abc.Callable[[], ServingInputReceiver]:
    """A serving_input_receiver_fn that parses serialized `tf.train.Example`s by `feature_spec`."""

    def receiver():
        examples = _v1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(
            _v1.parse_example(examples, feature_spec), {"examples": examples}
        )

    return receiver
