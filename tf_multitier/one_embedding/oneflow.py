"""The names of OneFlow that the programs of OneEmbedding's documents use, over TensorFlow. Any other name is an error that lists them.

`install` puts them in sys.modules as `oneflow`. Only the runner (__main__.py) does so.
"""

from __future__ import annotations

import sys
import types
import typing

import keras
import tensorflow as tf

from tf_multitier import one_embedding
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier.keras.optimizers import row_optimizer_of


class _UnknownName(NotImplementedError, AttributeError):
    """A name that is not here: an AttributeError, so that `hasattr` is False."""

    def __init__(self, owner, name, names):
        super().__init__(f"{owner}.{name}: expected one of {', '.join(names)}, found {name}")


class Tensor:
    """A tensor of TensorFlow with the methods that the documents use."""

    def __init__(self, value: tf.Tensor) -> None:
        self.value = value

    shape = property(lambda self: tuple(self.value.shape))

    def to(self, device: str) -> Tensor:
        """The tensor itself: TensorFlow places tensors."""
        del device
        return self

    def sum(self) -> Tensor:
        """The sum of all elements."""
        return Tensor(tf.reduce_sum(self.value))

    def numpy(self) -> typing.Any:
        """The elements as an array of NumPy."""
        return self.value.numpy()

    def backward(self) -> None:
        """In `Graph.build`: makes this scalar the loss that the optimizers minimize."""
        if not Graph.running:
            raise RuntimeError("backward: expected a call in Graph.build, found one outside")
        Graph.running[-1].loss = self.value

    def __repr__(self):
        return f"tensor({self.value.numpy()}, dtype=oneflow.{self.value.dtype.name})"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise _UnknownName("Tensor", name, ("shape", "to", "sum", "numpy", "backward"))


def _value(given):
    return given.value if isinstance(given, Tensor) else tf.convert_to_tensor(given)


def _tensor(data, dtype=None, requires_grad=False):
    if requires_grad:
        raise NotImplementedError("tensor: requires_grad: expected False, found True")
    return Tensor(tf.convert_to_tensor(data, dtype))


class _Module:
    def __init__(self, layer):
        self._layer = layer

    def to(self, device):
        del device
        return self

    def parameters(self):
        return self._layer.trainable_variables

    def __call__(self, inputs):
        return Tensor(self._layer(_value(inputs)))


class _Embedding(_Module):
    def __init__(self, num_embeddings, embedding_dim):
        super().__init__(keras.layers.Embedding(num_embeddings, embedding_dim))


class _FusedMLP(_Module):
    def __init__(
        self,
        in_features,
        hidden_features,
        out_features,
        hidden_dropout_rate=None,
        out_dropout_rate=0.0,
        skip_final_activation=False,
    ):
        if hidden_dropout_rate or out_dropout_rate:
            raise NotImplementedError("FusedMLP: expected no dropout, found dropout rates")
        last = None if skip_final_activation else "relu"
        hidden = [keras.layers.Dense(units, "relu") for units in hidden_features]
        layers = [keras.Input((in_features,)), *hidden, keras.layers.Dense(out_features, last)]
        super().__init__(keras.Sequential(layers))


class _SGD:
    def __init__(self, params, lr=0.001, momentum=0.0):
        self.params = list(params)
        self._dense = keras.optimizers.SGD(lr, momentum)
        self._rows = row_optimizer_of(self._dense, "SGD")

    def apply(self, gradients):
        pairs = list(zip(gradients, self.params))
        for optimizer, of_rows in ((self._rows, True), (self._dense, False)):
            its = [pair for pair in pairs if is_embedding_variable(pair[1]) == of_rows]
            if its:
                optimizer.apply_gradients(its)


class Graph:
    """A traced function: a tape around `build`, then the optimizers."""

    running: typing.ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self._optimizers: list = []
        self._step: typing.Any = None
        self.loss: typing.Any = None

    def add_optimizer(self, optimizer: typing.Any) -> None:
        """Makes an optimizer minimize the loss of `build`."""
        self._optimizers.append(optimizer)

    def build(self, *args: typing.Any) -> Tensor:
        """The step: a subclass has it."""
        raise NotImplementedError(f"{type(self).__name__}.build: expected a method, found none")

    def __call__(self, *args: typing.Any) -> Tensor:
        if self._step is None:
            self._step = tf.function(self._run, autograph=False)
        return Tensor(self._step(*map(_value, args)))

    def _run(self, *args):
        params = [optimizer.params for optimizer in self._optimizers]
        self.loss = None
        with tf.GradientTape() as tape:
            Graph.running.append(self)
            try:
                result = self.build(*map(Tensor, args))
            finally:
                Graph.running.pop()
        if self.loss is not None:
            for optimizer, gradients in zip(self._optimizers, tape.gradient(self.loss, params)):
                optimizer.apply(gradients)
            self.loss = None
        return result.value


class _Names(types.ModuleType):
    """A module with the given names alone."""

    def __init__(self, name: str, names: dict) -> None:
        super().__init__(name, __doc__)
        self.__dict__.update(names, __path__=[], __all__=list(names))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise _UnknownName(self.__name__, name, self.__all__)


class _NoOtherModules:
    """A finder that refuses other modules of oneflow."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("oneflow."):
            parent = sys.modules[name.rpartition(".")[0]]
            found = [module for module in sys.modules if module.startswith("oneflow.")]
            raise ImportError(
                f"import {name}: expected one of {', '.join(found)}, or of the names of {parent.__name__}, "
                f"{', '.join(parent.__all__)}; found {name}"
            )


def _over_tensors(module):
    """A module of one_embedding that takes and gives Tensors."""

    def forward(self, ids, table_ids=None):
        table_ids = None if table_ids is None else _value(table_ids)
        return Tensor(module.forward(self, _value(ids), table_ids))

    def call(self, ids, table_ids=None):
        return self.forward(ids, table_ids)

    return type(module.__name__, (module,), {"forward": forward, "__call__": call})


def install() -> None:
    """Makes `import oneflow` give these names."""
    its = {
        name: getattr(one_embedding, name)
        for name in one_embedding.__all__
        if name.startswith("make_")
    }
    for module in (
        one_embedding.MultiTableEmbedding,
        one_embedding.MultiTableMultiColumnEmbedding,
    ):
        its[module.__name__] = _over_tensors(module)
    modules: dict[str, dict] = {
        "nn": {"Embedding": _Embedding, "FusedMLP": _FusedMLP, "Graph": Graph},
        "optim": {"SGD": _SGD},
        "one_embedding": its,
    }
    names: dict = {
        "tensor": _tensor,
        "reshape": lambda tensor, shape: Tensor(tf.reshape(_value(tensor), shape)),
        "int": tf.int32,
        "int64": tf.int64,
        "float": tf.float32,
    }
    for name, content in modules.items():
        names[name] = sys.modules[f"oneflow.{name}"] = _Names(f"oneflow.{name}", content)
    sys.modules["oneflow"] = _Names("oneflow", names)
    sys.meta_path.insert(0, _NoOtherModules)
