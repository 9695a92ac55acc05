"""PartitionedEmbeddingVariable: several tables as one variable. `embedding_variables` finds the variables of a graph.

cc/partition/partition.h says which part owns a key. `partition_keys` (queries.py) divides keys by their parts.
"""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.options.handle_attrs import TableOptions
from tf_multitier._src.processes.world_keys import no_save_alone
from tf_multitier._src.tensorflow.internals import CompositeTensor
from tf_multitier._src.tensorflow.internals import CompositeTensorGradient
from tf_multitier._src.tensorflow.internals import register_dispatchable_type
from tf_multitier._src.tensorflow.internals import SaveableObject
from tf_multitier._src.variable import saved_model
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.dense_uses import dense_use
from tf_multitier._src.variable.dense_uses import no_dense
from tf_multitier._src.variable.dense_uses import NoDenseValue
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.embedding_variable import EmbeddingVariableSpec
from tf_multitier._src.variable.row_transfer import RowTransfer


class _RefuseGradient(CompositeTensorGradient):
    """Refuses `tf.gradients(loss, [ev])` for a partitioned variable. A gradient belongs to one part; the message says what to pass."""

    def get_gradient_components(self, value):
        raise ValueError(
            f"gradient of embedding variable '{value.variable_name}': expected its parts, found the whole variable: pass "
            "list(variable) to tf.gradients"
        )

    def replace_gradient_components(self, value, component_grads):
        raise NotImplementedError


class _NoUniqueId(NotImplementedError, AttributeError):
    """What an optimizer of Keras gets that asks a partitioned variable for its identity."""


@register_dispatchable_type
class PartitionedEmbeddingVariable(
    NoDenseValue, RowTransfer, TableOptions, SaveableObject, collections.abc.Sequence
):
    """An embedding variable that is split into several tables. It routes each key to the table that owns it.

    Ten bits of a key's hash select one of 1,024 buckets. Each partition owns a range of buckets. The parts are EmbeddingVariables
    named `<name>/part_<i>`. The graph's collections contain the parts. The object is a sequence of its parts, so
    `minimize(var_list=[ev])` and `Saver([ev])` accept it. If the parts are on several devices, use `list(ev)` in a Saver's dict.
    """

    def __init__(self, name: str, parts: collections.abc.Sequence) -> None:
        self._name = name
        self._parts = list(parts)
        self._count = None

    def __repr__(self):
        return (
            f"<tf_multitier.PartitionedEmbeddingVariable '{self._name}' embedding_dim={self.embedding_dim} "
            f"partitions={len(self._parts)}>"
        )

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other

    def __len__(self):
        return len(self._parts)

    def __getitem__(self, index):
        return self._parts[index]

    @property
    def parts(self) -> list:
        """The EmbeddingVariables, in order of partition."""
        return list(self._parts)

    @property
    def is_partitioned(self) -> bool:
        """True. `parts` has the tables."""
        return True

    @property
    def num_partitions(self) -> int:
        """The number of parts, in a world of processes of all of them."""
        return self._parts[0].num_partitions

    @property
    def name(self) -> str:
        """The variable's name, including scopes, without a partition suffix."""
        return self._name

    @property
    def variable_name(self) -> str:
        """The same as `name`."""
        return self._name

    @property
    def handle_attrs(self) -> dict:
        """{attribute: value} of the handle of part 0. The options of all parts are the same."""
        return self._parts[0].handle_attrs

    @property
    def handle(self) -> typing.Any:
        """The resource handle of part 0. `op`, `graph`, `device` and `dtype` are those of this handle."""
        return self._parts[0].handle

    @property
    def op(self) -> tf.Operation:
        """The op of the first part's handle."""
        return self.handle.op

    @property
    def graph(self) -> tf.Graph:
        """The graph of the parts."""
        return self.handle.graph

    @property
    def device(self) -> str:
        """The device of the first part."""
        return self.handle.device

    @property
    def shape(self) -> tf.TensorShape:
        """The static shape [0, embedding_dim]. The number of rows is not known when the graph is built."""
        return self._parts[0].shape

    def get_shape(self) -> tf.TensorShape:
        """See `shape`."""
        return self.shape

    @property
    def dtype(self) -> tf.DType:
        """The type of the values."""
        return self._parts[0].dtype

    @property
    def trainable(self) -> bool:
        """Whether optimizers train the variable by default."""
        return self._parts[0].trainable

    @property
    def _in_graph_mode(self):
        return self._parts[0]._in_graph_mode

    @property
    def initializer(self) -> tf.Operation:
        """An op that initializes all parts."""
        return tf.group(*[part.initializer for part in self._parts])

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """A bool scalar: True once all parts are initialized."""
        return tf.reduce_all(tf.stack([part.is_initialized() for part in self._parts]), name=name)

    @property
    def _type_spec(self):
        return EmbeddingVariableSpec(self.shape, self.dtype, self.trainable)

    def _shape_invariant_to_type_spec(self, shape):
        return EmbeddingVariableSpec(shape, self.dtype, self.trainable)

    def _as_graph_element(self):
        if self._count is None:
            with (
                self.graph.as_default(),
                tf.compat.v1.name_scope(None),
                tf.control_dependencies(None),
            ):
                self._count = self._count_rows(self._name + "/Count")
        return self._count

    @property
    def specs(self) -> typing.Any:
        """The objects that TensorFlow's savers write for this variable: see saver.py."""
        return saver.PartsSpecs(self)

    @property
    def optional_restore(self) -> bool:
        """False: restoring a checkpoint without the variable is an error."""
        return False

    def restore(
        self,
        restored_tensors: collections.abc.Sequence[tf.Tensor],
        restored_shapes: typing.Any = None,
    ) -> tf.Operation:
        """The op that TensorFlow's savers run to restore the variable from the tensors of its `specs`."""
        return tf.group(
            *[saver.restore(part, [tensor]) for part, tensor in zip(self._parts, restored_tensors)]
        )

    def restore_from(
        self,
        prefix: typing.Any,
        name: str = "restore",
        resize: bool = False,
        convert: bool = False,
    ) -> tf.Operation:
        """See EmbeddingVariable.restore_from. All parts are restored, or none."""
        prefix = tf.convert_to_tensor(prefix)
        return saver.restore_parts(self._parts, prefix, self._name, name, resize, convert)

    ref = no_dense("a moving average of it")
    __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = no_dense("arithmetic on it")
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = no_dense("arithmetic on it")


class GraphPartitions(PartitionedEmbeddingVariable, CompositeTensor):
    """A partitioned embedding variable of a v1 graph. TensorFlow's sparse lookups read a composite tensor by `sparse_read`."""

    __composite_gradient__ = _RefuseGradient()

    @property
    def _type_spec(self):
        return EmbeddingVariableSpec(self.shape, self.dtype, self.trainable)


@saved_model.register(saved_model.PARTITIONED)
class OwnedPartitions(PartitionedEmbeddingVariable, tf.__internal__.tracking.Trackable):
    """A partitioned embedding variable outside of v1 graphs. Modules, tapes and checkpoints take it as the sequence of its parts."""

    def __new__(cls, name, parts=None):
        """nest builds the result for a sequence by calling its class: `tape.gradient(loss, variable)` is the list of gradients."""
        return super().__new__(cls) if parts is not None else list(name)

    @property
    def _unique_id(self):
        """Keras' optimizers ask each variable for it first. An AttributeError, so that `hasattr` says that there is none."""
        raise _NoUniqueId(str(dense_use(self, "an update by an optimizer of Keras")))

    def _name_based_attribute_restore(self, checkpoint):
        saver.restore_by_name(self, checkpoint)

    # ---- SavedModel: see saved_model.py. In other checkpoints the parts are no objects of their own.

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        if save_type != "savedmodel":
            return {}
        no_save_alone(self._name, self.world)
        return {f"part_{part.partition_index}": part for part in self._parts}

    def _deserialization_dependencies(self, children):
        return {name: child for name, child in children.items() if name.startswith("part_")}

    def _write_object_proto(self, proto, options):
        saved_model.write_object_proto(proto)

    def _serialize_to_proto(self, object_proto=None, **kwargs):
        return saved_model.description(self._parts[0])

    @classmethod
    def _deserialize_from_proto(cls, dependencies=None, **kwargs):
        parts = sorted(dependencies.values(), key=lambda part: part.partition_index)
        return cls(parts[0].variable_name, parts)

    def _add_trackable_child(self, name, value):
        """The parts are there already."""

    def _copy_trackable_to_cpu(self, object_map):
        self._parts[0]._copy_trackable_to_cpu(object_map)  # raises

    def _export_to_saved_model_graph(
        self, object_map=None, tensor_map=None, options=None, **kwargs
    ):
        object_map[self] = self  # the traced functions that save and restore refer to this object
        return []


class StoredParts(list):
    """A partitioned variable as TensorFlow's variable store keeps it: the list of its parts.

    `init_from_checkpoint` therefore restores each part. All other attributes are those of the variable, `.whole`.
    """

    def __init__(self, whole):
        super().__init__(whole.parts)
        self.whole = whole

    def __getattr__(self, name):
        if name == "whole":
            raise AttributeError(name)
        return getattr(self.whole, name)


# The types that lookups and queries accept.
AnyEmbeddingVariable = (EmbeddingVariable, PartitionedEmbeddingVariable)


def is_embedding_variable(variable: typing.Any) -> bool:
    """True if `variable` is an embedding variable: unpartitioned, partitioned, or a part of a partitioned one."""
    return isinstance(variable, AnyEmbeddingVariable)


def embedding_variables(graph: tf.Graph | None = None) -> list:
    """Lists the embedding variables of a graph, including those of an imported meta graph.

    Args:
      graph: a tf.Graph; None: the default graph.

    Returns:
      A list of EmbeddingVariable and PartitionedEmbeddingVariable, sorted by name. A partitioned variable is one entry.

    Raises:
      ValueError: the graph has only some of the partitions of a variable.
    """
    graph = graph or tf.compat.v1.get_default_graph()
    state = graph_state.state_of(graph)
    found: dict = {}
    for variable in state.variables.values():
        found.setdefault(variable.variable_name, []).append(variable)
    result = []
    for name, parts in sorted(found.items()):
        parts.sort(key=lambda p: p.partition_index)
        if name in state.partitioned and state.partitioned[name].world is not None:
            result.append(state.partitioned[name])
            continue
        if parts[0].num_partitions == 1:
            result.append(parts[0])
            continue
        if [p.partition_index for p in parts] != list(range(parts[0].num_partitions)):
            raise ValueError(
                f"embedding variable '{name}': expected partitions 0 to {parts[0].num_partitions - 1} in the graph, found "
                f"{[p.partition_index for p in parts]}"
            )
        if name not in state.partitioned:
            state.partitioned[name] = GraphPartitions(name, parts)
        result.append(state.partitioned[name])
    return result
