"""EmbeddingVariable: a hash table from 64-bit keys to embeddings, as a TensorFlow variable.

    get_embedding_variable("user", 16)
        |
        v
    EmbeddingVariable            one table, or            PartitionedEmbeddingVariable (partitioned.py)
      handle op (all options as attributes)                 parts: EmbeddingVariable "user/part_0", "user/part_1", ...
      initializer: makes the table, then adds slots         routes whole keys to the part that owns them
      count: what Session.run(variable) gives

Life in a v1 graph:
1. Creation adds the handle, initialize and count ops.
2. An optimizer asks for slots. This adds an AddSlots op after the initializer.
3. The initializer, or a Saver's restore, makes the table.
4. Lookups read rows. Applies create and update them.
5. The table is deleted with the resources of the Session.

Life in eager execution: creation makes the table, an optimizer's first update or its `build` adds slots, and the table is deleted with the object.
eager.py has what differs.

The static shape is [0, embedding_dim]. The number of rows is not known when the graph is built, but TensorFlow's optimizers need
a full shape to make slots. `total_count()` counts the rows. An embedding variable has no dense value: `value()`, `assign()`,
`ev[...]`, arithmetic and conversion to a tensor raise NotImplementedError with a message of their own.
"""

from __future__ import annotations

import collections.abc
import functools
import itertools
import typing

import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.execution import graph_state
from tf_multitier._src.execution import placement
from tf_multitier._src.options.handle_attrs import attrs_of_handle
from tf_multitier._src.options.handle_attrs import is_handle
from tf_multitier._src.options.handle_attrs import TableOptions
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import CompositeTensor
from tf_multitier._src.tensorflow.internals import container_of
from tf_multitier._src.tensorflow.internals import conversion_asked_by
from tf_multitier._src.tensorflow.internals import EagerTensor
from tf_multitier._src.tensorflow.internals import name_from_scope_name
from tf_multitier._src.tensorflow.internals import prepend_name_scope
from tf_multitier._src.tensorflow.internals import resource_variable_ops
from tf_multitier._src.tensorflow.internals import SaveableObject
from tf_multitier._src.tensorflow.internals import strip_name_scope
from tf_multitier._src.tensorflow.internals import variable_accessed
from tf_multitier._src.tensorflow.internals import variable_pb2
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import recomputed
from tf_multitier._src.variable import saved_model
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.dense_uses import conversion
from tf_multitier._src.variable.dense_uses import CONVERSION
from tf_multitier._src.variable.dense_uses import no_dense
from tf_multitier._src.variable.dense_uses import NoDenseValue
from tf_multitier._src.variable.row_transfer import RowTransfer

# Graph collections that every embedding variable joins in addition to those its caller names. Only deeprec adds one.
MORE_COLLECTIONS: list = []


class _WholeName:
    """The answer of a part to `init_from_checkpoint`, which asks for the name of the whole variable and for the slice to read.

    The slice is the whole tensor of that name. The tensor is empty: see saver.py.
    """

    spec = ""

    def __init__(self, full_name):
        self.full_name = full_name


class EmbeddingVariableSpec(resource_variable_ops.VariableSpec):
    """The type of an embedding variable as a composite tensor. TensorFlow can read the handle, but cannot build a variable from it."""

    value_type = property(lambda self: EmbeddingVariable)

    variable_name = ""  # for messages; no part of the type

    def _from_components(self, components):
        name = self.variable_name or (getattr(components[0], "name", "") if components else "")
        raise recomputed.no_tensor(name)


def only_parts(name):
    """The message for parts of the embedding variable `name` where the whole variable is needed."""
    return (
        f"expected the embedding variable '{name}', found only parts of it: pass the object that "
        f"get_embedding_variable('{name}', ...) returned"
    )


_NUMBERS = itertools.count()  # of eager variables, whose names need not differ


@saved_model.register(saved_model.VARIABLE)
class EmbeddingVariable(
    NoDenseValue,
    RowTransfer,
    TableOptions,
    resource_variable_ops.BaseResourceVariable,
    CompositeTensor,
    SaveableObject,
):
    """One hash table of embeddings, or one partition of a PartitionedEmbeddingVariable. `get_embedding_variable` makes it.

    TensorFlow's lookups, `tf.compat.v1.train` optimizers, savers and feature columns accept it as a variable. Its gradient is an
    IndexedSlices whose indices are keys.

    In eager execution, the object owns its table: when it is deleted, so are the table's memory and files. Names are for messages
    and checkpoints; two variables of one name are two tables.

    Threads: any number of threads may run lookups, updates and queries of one variable. Two updates of the same key never overlap.
    """

    # Without this the metaclass would bind positional arguments to tf.Variable's signature.
    _variable_call = classmethod(lambda cls, *args, **kwargs: None)
    __composite_gradient__ = recomputed.VariableGradient()

    def __init__(
        self,
        *,
        handle: typing.Any,
        trainable: bool,
        initializer_op: typing.Any = None,
        graph_element: typing.Any = None,
        in_graph_mode: bool = True,
        attrs: dict | None = None,
        name: str | None = None,
    ) -> None:
        """attrs, name: None: those of the handle op, which an eager handle lacks."""
        attrs = attrs_of_handle(handle) if attrs is None else attrs
        name = handle.op.name if name is None else name
        super().__init__(
            trainable=trainable,
            shape=attrs["shape"],
            dtype=attrs["dtype"],
            handle=handle,
            name=name,
            handle_name=name,
            unique_id=name if in_graph_mode else f"{name}_{next(_NUMBERS)}",
            graph_element=graph_element,
            initializer_op=initializer_op,
            in_graph_mode=in_graph_mode,
        )
        self.handle_attrs = attrs
        self._slot_values: dict[
            str, typing.Any
        ] = {}  # column name -> (dim, initial value), in the order of columns
        # Names of the columns that optimizers of an imported meta graph have.
        self.imported_columns = frozenset(
            column.decode()
            for op in ([] if isinstance(handle, EagerTensor) else handle.consumers())
            if op.type in ("MultitierAddSlots", "MultitierApply")
            for column in op.get_attr("slot_names")
        )
        if attrs["num_partitions"] > 1:
            self._set_save_slice_info(_WholeName(self.variable_name))

    of_world: typing.Any = None  # of a part: the World whose processes have the others (world.py)
    chain: typing.Any = None  # of deltas, see distribute/checkpoints.py

    def __repr__(self):
        return f"<tf_multitier.EmbeddingVariable '{self.name}' embedding_dim={self.embedding_dim} dtype={self.dtype.name}>"

    __str__ = __repr__
    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other

    def __ne__(self, other):
        return self is not other

    @property
    def variable_name(self) -> str:
        """The variable's name in checkpoints: without ":0" and without a partition suffix."""
        name = self._shared_name
        suffix = f"/part_{self.partition_index}"
        return name[: -len(suffix)] if self.num_partitions > 1 and name.endswith(suffix) else name

    @property
    def _shared_name(self):
        return self._handle_name[:-2]  # without ":0"

    @property
    def partition_index(self) -> int:
        """The index of this partition, in [0, num_partitions)."""
        return self.handle_attrs["partition_index"]

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the whole variable; 1 if it is not partitioned."""
        return self.handle_attrs["num_partitions"]

    @property
    def parts(self) -> list:
        """[self]. A PartitionedEmbeddingVariable returns its tables here."""
        return [self]

    @property
    def is_partitioned(self) -> bool:
        """False: this is a single table. It may be one of the `parts` of a PartitionedEmbeddingVariable."""
        return False

    @property
    def _type_spec(self):
        spec = EmbeddingVariableSpec(self.shape, self.dtype, self.trainable)
        spec.variable_name = self.variable_name
        return spec

    def _shape_invariant_to_type_spec(self, shape):
        return EmbeddingVariableSpec(shape, self.dtype, self.trainable)

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """A bool scalar: True once the initializer or a restore has run in this Session."""
        eager.check_world(self, "a use of embedding variable")
        with colocate_with(self.handle, ignore_existing=True):
            return ops.multitier_is_initialized(self.handle, name=name)

    def sparse_read(self, indices: typing.Any, name: str | None = None) -> tf.Tensor:
        if self.num_partitions > 1:
            raise ValueError(f"'{self.name}': {only_parts(self.variable_name)}")
        return super().sparse_read(indices, name=name)

    def export_rows(self, name: str = "export_rows") -> typing.Any:
        """Reads everything that a checkpoint of this table contains. For tools and tests.

        Returns:
          A named tuple of tensors:
            manifest: string scalar, JSON that names the columns.
            keys: int64 [n], whatever the key_dtype (key_types.py).
            rows: float32 [n, sum of the columns' dims]: the value, then the slots.
            frequencies: int64 [n].
            versions: int64 [n].
            counted: int64 [m, 3]: key, version and count of the keys that a counter filter has not admitted.
            initial_matrix: float32 [N, dim].

        Raises:
          tf.errors.DataLossError, when run: a row in a file is damaged or missing.
        """
        with colocate_with(self.handle, ignore_existing=True):
            return ops.multitier_export_rows(self.handle, name=name)

    # ---- slots

    def ensure_slots(self, slots: typing.Any) -> None:
        """Adds slot columns to the rows: eagerly now, in a v1 graph by the initializer. Columns that it has added are skipped.

        Args:
          slots: list of (column name, dim, initial value).

        Raises:
          ValueError: a column of that name exists with another dim or initial value; or the variable is read-only.
        """
        if self.read_only:
            raise ValueError(
                f"embedding variable '{self.variable_name}': expected a trainable variable, found a read-only one, made in "
                "tf_multitier.serving.read_only()"
            )
        new: list = []
        for column, dim, value in slots:
            have = self._slot_values.setdefault(column, None)
            if have is None:
                self._slot_values[column] = (dim, value)
                new.append((column, dim, value))
            elif have != (dim, value):
                raise ValueError(
                    f"embedding variable '{self.variable_name}': slot '{column}': expected dim {have[0]} and initial value "
                    f"{have[1]}, found dim {dim} and initial value {value}"
                )
        if not new:
            return
        columns, dims, values = zip(*new)
        add = functools.partial(
            ops.multitier_add_slots,
            self.handle,
            slot_names=list(columns),
            slot_dims=list(dims),
            slot_initial_values=list(values),
        )
        with tf.init_scope():
            if not self._in_graph_mode:
                add()
                return
            with (
                tf.compat.v1.name_scope(None),
                colocate_with(self.handle, ignore_existing=True),
                tf.control_dependencies([self._initializer_op]),
            ):
                self._initializer_op: typing.Any = add(name=self.handle.op.name + "/AddSlots")

    # ---- meta graph

    def to_proto(self, export_scope: str | None = None) -> typing.Any:
        """The variable as a VariableDef, or None if it is not in `export_scope`."""
        if export_scope is not None and not self.handle.name.startswith(export_scope):
            return None
        strip = lambda n: strip_name_scope(n, export_scope)
        return variable_pb2.VariableDef(
            variable_name=strip(self.handle.name),
            initializer_name=strip(self._initializer_op.name),
            snapshot_name=strip(self._graph_element.name),
            is_resource=True,
            trainable=self.trainable,
            synchronization=self.synchronization.value,
            aggregation=self.aggregation.value,
        )

    # ---- SaveableObject

    @property
    def specs(self) -> typing.Any:
        """The objects that TensorFlow's savers write for this variable: see saver.py."""
        return saver.SaveSpecs(self)

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
        return saver.restore(self, restored_tensors)

    def restore_from(
        self,
        prefix: typing.Any,
        name: str = "restore",
        resize: bool = False,
        convert: bool = False,
    ) -> tf.Operation:
        """An op that replaces the variable's content by that of a checkpoint.

        The checkpoint may have another number of partitions and other slots. If the op fails, the variable keeps its content.

        Args:
          prefix: string scalar: the checkpoint's path, as `Saver.save` returns it.
          name: name of the op.
          resize: accept another embedding_dim in the checkpoint. Each value is cut, or filled with the elements that the key's
            initial value has there. A slot with as many elements as the value is cut, or filled with its initial value.
          convert: accept another value_dtype in the checkpoint. Values are rounded to the nearest of the variable's type.

        Raises:
          tf.errors.InvalidArgumentError, when run: the checkpoint has another dim and `resize` is false, or another value_dtype and
            `convert` is false, or a slot has another dim.
          tf.errors.NotFoundError, when run: the checkpoint, the variable in it, or a part file is missing.
          tf.errors.DataLossError, when run: a file is damaged or belongs to another checkpoint. The message has the file.
        """
        return saver.restore_op(
            self, tf.convert_to_tensor(prefix), self.variable_name, name, resize, convert
        )

    def _name_based_attribute_restore(self, checkpoint):
        saver.restore_by_name(self, checkpoint)

    def _serialize_to_tensors(self):
        raise NotImplementedError(
            f"embedding variable '{self.variable_name}' of a v1 graph, or a part of a partitioned one, cannot be saved by "
            "tf.train.Checkpoint: use tf.compat.v1.train.Saver, or give the checkpoint the whole variable, created eagerly"
        )

    def _copy_trackable_to_cpu(self, object_map):
        """ValueError: TensorFlow asks for a copy to save it in the background. It would leave out what raises NotImplementedError."""
        raise ValueError(
            f"embedding variable '{self.variable_name}': CheckpointOptions.enable_async: expected False, found True: an asynchronous "
            "checkpoint saves copies of variables, and rows are not copied: save it without enable_async"
        )

    # ---- SavedModel: see saved_model.py

    def _write_object_proto(self, proto, options):
        saved_model.write_object_proto(proto)

    def _serialize_to_proto(self, object_proto=None, **kwargs):
        return saved_model.description(self)

    @classmethod
    def _deserialize_from_proto(cls, proto=None, **kwargs):
        name, attrs = saved_model.read_description(proto)
        return make_eager_variable(name, attrs, None, trainable=False, is_loaded=True)

    def _export_to_saved_model_graph(
        self, object_map=None, tensor_map=None, options=None, **kwargs
    ):
        tensor_map[self.handle] = saved_model.exported_handle(self)
        object_map[self] = self  # the traced functions that save and restore refer to this object
        return [self.handle]

    # ---- dense uses

    def __tf_tensor__(self, dtype: typing.Any = None, name: str | None = None) -> tf.Tensor:
        """NotImplementedError, except where TensorFlow computes gradients outside of v1 graphs: see recomputed.py."""
        asked_by = conversion_asked_by()
        if self._in_graph_mode or asked_by in (None, "assert_variables_initialized"):
            raise conversion(self, asked_by)
        if asked_by == "unconnected":
            return tf.zeros([0, self.embedding_dim], tf.float32)  # the type of gradients
        variable_accessed(self)
        return recomputed.stand_in(self)

    __getitem__ = no_dense("slicing it")
    __iter__ = no_dense("iterating over it")
    __bool__ = __nonzero__ = no_dense("its truth value")
    _dense_var_to_tensor = _read_variable_op = no_dense(CONVERSION)


def _initialize(handle, attrs, matrix):
    """The op that makes the table of `handle`; eagerly, it makes the table now."""
    rows = tf.zeros([0, attrs["shape"][1]], tf.float32) if matrix is None else matrix()
    return ops.multitier_initialize(handle, rows, name="Initialize", **attrs)


def make_eager_variable(name, attrs, matrix, trainable, is_loaded=False):
    """An EmbeddingVariable that owns its table, which exists at once. For the arguments see make_variable.

    is_loaded: the variable is part of a SavedModel. Its functions own the table, too, as they own other variables.
    """
    handle = eager.make_handle(name, attrs)
    _initialize(handle, attrs, matrix)
    attrs = dict(attrs, shape=tf.TensorShape(attrs["shape"]))
    variable = EmbeddingVariable(
        handle=handle, trainable=trainable, in_graph_mode=False, attrs=attrs, name=name
    )
    if is_loaded:
        eager.end_with_process(handle)
    else:
        eager.end_with(variable, handle)
    return variable


def make_variable(name, attrs, matrix, trainable, collections, kind=EmbeddingVariable):
    """Builds the ops of one table in a v1 graph and adds the variable to its collections.

    Args:
      name: name of the variable or part.
      attrs: {attribute: value} of HANDLE_ATTRS.
      matrix: function that returns the initial matrix (a float32 [rows, dim] tensor), or None.
      trainable: whether optimizers train the variable by default.
      collections: names of graph collections; None: GLOBAL_VARIABLES. If trainable, TRAINABLE_VARIABLES is added.
      kind: class of the variable: EmbeddingVariable or a subclass.
    """
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph()
        with tf.compat.v1.name_scope(name) as scope:
            full_name = name_from_scope_name(scope)
            handle = placement.handle_op(
                attrs, container=container_of(graph), shared_name=full_name, name=scope
            )
            with tf.compat.v1.name_scope("Initializer"), colocate_with(handle):
                initializer_op = _initialize(handle, attrs, matrix)
            with colocate_with(handle):
                count = ops.multitier_count(handle, name="Count")
    variable = kind(
        handle=handle, initializer_op=initializer_op, graph_element=count, trainable=trainable
    )
    graph_state.state_of(graph).variables[handle.name] = variable
    collections = (
        [tf.compat.v1.GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    )
    if trainable and tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES not in collections:
        collections.append(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    collections += [key for key in MORE_COLLECTIONS if key not in collections]
    graph.add_to_collections(collections, variable)
    return variable


def from_proto(variable_def, import_scope=None):
    """The EmbeddingVariable of a VariableDef in the default graph, or None if the VariableDef describes another kind of variable.

    Two calls for the same handle return the same object.
    """
    graph = tf.compat.v1.get_default_graph()
    element = lambda n: graph.as_graph_element(prepend_name_scope(n, import_scope=import_scope))
    try:
        handle = element(variable_def.variable_name)
    except (KeyError, ValueError):
        return None
    if not is_handle(handle):
        return None
    known = graph_state.state_of(graph).variables
    if handle.name not in known:
        known[handle.name] = EmbeddingVariable(
            handle=handle,
            initializer_op=element(variable_def.initializer_name),
            graph_element=element(variable_def.snapshot_name),
            trainable=variable_def.trainable,
            in_graph_mode=not graph.building_function,
        )
    return known[handle.name]
