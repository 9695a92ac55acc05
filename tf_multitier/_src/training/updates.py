"""How an optimizer updates an embedding variable: one op for a gradient, and slots that are columns of the rows.

`update` makes the op. optimizers.py calls it for TensorFlow 2. For TensorFlow's v1 optimizers:

    optimizer.minimize(loss)
      _get_processor(variable)      -> EmbeddingProcessor (patches.py)
      gradients(loss, [handle])     -> IndexedSlices of keys (gradients.py)
      _create_slots                 -> SlotColumn for each slot: a column of the row, not a variable
      processor.update_op           -> one MultitierApply op for the table, or one op shared by a group (group_updates.py)

The arithmetic is in cc/optimizer/, one file per optimizer. rules.py says which optimizer class uses which.

Slots have TensorFlow's names (`ev/Adagrad`, `ev/RMSProp_1`), without the partition suffix. So a table can be restored into another
number of partitions.
"""

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.execution import origins
from tf_multitier._src.execution import placement
from tf_multitier._src.lookup import gradients
from tf_multitier._src.options import key_types
from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.processes import strategies
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import device_scope
from tf_multitier._src.tensorflow.internals import EagerTensor
from tf_multitier._src.tensorflow.internals import is_gradient_gate
from tf_multitier._src.tensorflow.internals import is_resource_variable
from tf_multitier._src.tensorflow.internals import OptimizableVariable
from tf_multitier._src.tensorflow.internals import optimizer_setting
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.training import group_updates
from tf_multitier._src.training import rules
from tf_multitier._src.variable import table_numbers


def _no_variable(what):
    """A method that raises NotImplementedError with the reason: a slot is not a variable."""

    def refuse(self, *unused_args, **unused_kwargs):
        owner = self.variable.variable_name
        raise NotImplementedError(
            f"slot '{self.column}' is a column of the rows of embedding variable '{owner}', not a variable, so {what} is not possible: a "
            f"Saver of '{owner}' saves and restores it, and export_rows() reads it"
        )

    refuse.__doc__ = f"NotImplementedError: {what} needs a variable. A slot is not one."
    return refuse


class SlotColumn:
    """A slot of an embedding variable: a column of the table's rows. `optimizer.get_slot(ev, name)` returns it.

    The column is created, initialized, saved and restored with the rows. `EmbeddingVariable.export_rows()` reads it. Its static
    shape is that of the table, [0, dim].
    """

    _in_graph_mode = True
    trainable = False

    def __init__(self, variable, column):
        self._variable = variable
        self._column = column

    def __repr__(self):
        return f"<tf_multitier.SlotColumn '{self._column}' of '{self._variable.name}'>"

    @property
    def variable(self):
        """The EmbeddingVariable whose rows have the column."""
        return self._variable

    @property
    def column(self):
        """The column's name, unique in the table."""
        return self._column

    @property
    def name(self):
        return self._column + ":0"

    @property
    def op(self):
        return self._variable.op

    @property
    def graph(self):
        return self._variable.graph

    @property
    def device(self):
        return self._variable.device

    @property
    def dtype(self):
        return tf.float32

    @property
    def shape(self):
        return self._variable.shape

    def get_shape(self):
        return self.shape

    @property
    def initializer(self):
        """An op that does nothing. The column is initialized when a row is created."""
        with self.graph.as_default(), tf.control_dependencies(None):
            return tf.no_op(name=self._column + "/Initializer")

    def is_initialized(self, name=None):
        """A bool scalar: True once the table is initialized."""
        return self._variable.is_initialized(name)

    __tf_tensor__ = _as_graph_element = _no_variable(
        "reading it as a tensor, or saving it by itself,"
    )
    ref = _no_variable("a moving average of it")
    value = read_value = eval = numpy = __array__ = sparse_read = _no_variable("reading it")
    assign = assign_add = assign_sub = load = _no_variable("assigning to it")
    _lazy_read = property(_no_variable("assigning to it"))
    __getitem__ = __iter__ = _no_variable("slicing it")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _no_variable("arithmetic on it")
    )


def make_slot(variable):
    """The SlotColumn for the slot that is created in the current variable scope."""
    column = tf.compat.v1.get_variable_scope().name
    part = variable._shared_name
    if part != variable.variable_name:
        head, _, tail = column.rpartition(part)
        column = head + variable.variable_name + tail
    # Do not share columns with an optimizer of an imported graph. TensorFlow also gives the slots of a new optimizer new names.
    base, number = column, 0
    while column in variable.imported_columns:
        number += 1
        column = f"{base}_{number}"
    return SlotColumn(variable, column)


class EmbeddingProcessor(OptimizableVariable):
    """TensorFlow's adapter between an optimizer and a variable, for one table."""

    def __init__(self, variable):
        self._variable = variable
        self._scope = device_scope()  # an optimizer leaves it before it calls update_op

    def target(self):
        return self._variable.handle

    def update_op(self, optimizer, g):
        """The op that updates the table with gradient `g`, an IndexedSlices.

        If the update may share an op with other variables, this returns an Update, which the optimizer's `_finish` replaces by the
        op (group_updates.py).

        Raises:
          TypeError: the gradient is dense, its indices are not integers, or its values have another dtype than the variable.
          NotImplementedError: the optimizer has no rule, or the gradient comes from an accumulator.
          ValueError: the variable has GlobalStepEvict and the graph has no global step; or the gradient or the variable is not that of the
            world.
        """
        variable = self._variable
        strategies.check_of_world("an update", [variable])
        g = _checked_gradient(variable, g)
        if variable.of_world is not None:
            reduced_gradients.check(f"gradient of embedding variable '{variable.variable_name}'", g)
        binding = rules.binding_of(optimizer, variable)
        names, initial_values = [], []
        for slot in binding.slots:
            column = optimizer.get_slot(variable, slot.name).column
            column = column if column not in names else f"{column}/{slot.name}"
            names.append(column)
            initial_values.append(slot.initial_value)
        dims = [1 if slot.per_row else variable.embedding_dim for slot in binding.slots]
        variable.ensure_slots(list(zip(names, dims, initial_values)))
        hyper = binding.hyper(optimizer, variable)
        rule = dict(
            rule=binding.rule,
            slot_initial_values=initial_values,
            use_locking=bool(optimizer_setting(optimizer, "use_locking")),
        )
        step = _global_step(variable)
        made = _update_of(variable, g, step, hyper, names, rule, self._scope)
        return (
            group_updates.later(optimizer, made) if isinstance(made, group_updates.Update) else made
        )


def update(variable, g, step, hyper, columns, rule):
    """The update of one table, for optimizers of TensorFlow 2: an op that has run or is in the function, or an Update for its group.

    Args:
      variable: EmbeddingVariable.
      g: its gradient, IndexedSlices.
      step: int64 scalar: the version that updated rows get.
      hyper: the rule's hyperparameters, float32 scalars.
      columns: names of the rule's slots.
      rule: {attribute of MultitierApply: value}: rule, slot_initial_values, use_locking.

    Raises:
      TypeError: see EmbeddingProcessor.update_op.
      ValueError: the gradient is not that of the world.
    """
    given, g = g, _checked_gradient(variable, g)
    if variable.of_world is not None:
        reduced_gradients.check(f"gradient of embedding variable '{variable.variable_name}'", given)
    return _update_of(variable, g, step, hyper, columns, rule, device_scope())


def _update_of(variable, g, step, hyper, columns, rule, scope):
    handle = origins.in_this_graph(variable.handle)
    found = group_unit_of(g, handle)
    if found is not None:
        table_numbers.forget(handle)
        return group_updates.Update(
            variable,
            found.group,
            found.unit,
            found.member,
            None if found.unchanged else g.values,
            found.before,
            step,
            hyper,
            columns,
            rule,
        )
    with placement.apart_from(variable, scope):
        keys, grads, counts, tables, before = unsummed(g, handle)
        keys = key_types.to_int64(keys)
        hyper = [tf.cast(h, tf.float32) for h in hyper]
    with tf.control_dependencies(before):
        return ops.multitier_apply(
            handle,
            keys,
            grads,
            counts,
            step,
            hyper,
            tables,
            slot_names=columns,
            **rule,
        )


def _checked_gradient(variable, g):
    """The gradient as IndexedSlices of tensors. Errors: see update_op."""
    what = f"gradient of embedding variable '{variable.variable_name}'"
    if not isinstance(g, tf.IndexedSlices):
        raise TypeError(
            f"{what}: expected IndexedSlices of keys, found a dense tensor {g.shape}: do not convert it"
        )
    g = tf.IndexedSlices(
        tf.convert_to_tensor(g.values), tf.convert_to_tensor(g.indices), g.dense_shape
    )
    # Those of lookups are int64, whatever the type of the keys.
    if g.indices.dtype not in (
        *key_types.ACCEPTED[tf.int64],
        *key_types.ACCEPTED[variable.key_dtype],
    ):
        raise TypeError(
            f"{what}: indices: expected {variable.key_dtype.name} keys, found {g.indices.dtype.name}"
        )
    if g.values.dtype not in (tf.float32, variable.dtype):
        expected = {variable.dtype.name: None, "float32": None}
        raise TypeError(
            f"{what}: values: expected {' or '.join(expected)}, found {g.values.dtype.name}"
        )
    if g.values.dtype != tf.float32:  # rules and sums are float32
        g = tf.IndexedSlices(tf.cast(g.values, tf.float32), g.indices, g.dense_shape)
    if isinstance(g.indices, EagerTensor):
        return g
    if _skip_identities(g.indices, []).op.type == "SparseAccumulatorTakeGradient":
        raise NotImplementedError(
            f"{what} comes from a SparseConditionalAccumulator, which SyncReplicasOptimizer creates for each variable. The accumulator "
            "merges gradients as if their indices were sorted and distinct, so it loses some of a batch's keys; it also does not "
            "count occurrences. Train without SyncReplicasOptimizer: concurrent updates of several workers are all applied; steps of all "
            "workers together are those of tf_multitier.distribute.CollectiveStrategy"
        )
    return g


def _global_step(variable):
    """The version that an apply sets: the graph's global step as int64, or -1 if the graph has none."""
    step = tf.compat.v1.train.get_global_step(variable.graph)
    if step is None:
        if variable.steps_to_live and variable.score != "time":
            raise ValueError(
                f"embedding variable '{variable.variable_name}': expected a global step for "
                f"GlobalStepEvict(steps_to_live={variable.steps_to_live}), found none: call "
                "tf.compat.v1.train.get_or_create_global_step() before the optimizer's minimize or apply_gradients"
            )
        return graph_state.shared(
            ("no global step", variable.device), lambda: tf.constant(-1, tf.int64)
        )

    def read():
        with colocate_with(None, ignore_existing=True):
            return tf.cast(
                step.read_value() if is_resource_variable(step) else tf.identity(step), tf.int64
            )

    return graph_state.shared(("global step", step.name), read)


# ---- from a gradient back to the unsummed entries


def _skip_identities(tensor, before):
    """Follows Identity ops to their source. Adds control inputs on the way to `before`, except TensorFlow's own gradient gate."""
    while tensor.op.type == "Identity":
        before.extend(c for c in tensor.op.control_inputs if not is_gradient_gate(c))
        tensor = tensor.op.inputs[0]
    return tensor


def _counts_of(indices, state):
    """The occurrence counts of unique keys, or None if each entry is one occurrence."""
    if indices.name in state.counts:
        return state.counts[indices.name]
    op = indices.op
    if op.type in ("Identity", "Reshape", "Cast", "Bitcast"):
        return _counts_of(op.inputs[0], state)
    if op.type in ("Unique", "UniqueV2") and indices.value_index == 0:
        return tf.math.unsorted_segment_sum(
            tf.ones_like(op.outputs[1], tf.int64), op.outputs[1], tf.size(indices)
        )
    if op.type in ("UniqueWithCounts", "UniqueWithCountsV2") and indices.value_index == 0:
        return tf.cast(op.outputs[2], tf.int64)
    if op.type == "MultitierPartitionKeys":
        counts = _counts_of(op.inputs[0], state)
        positions = op.outputs[indices.value_index - op.get_attr("num_partitions")]
        return None if counts is None else tf.gather(counts, positions)
    if op.type == "ConcatV2":
        counts = [_counts_of(part, state) for part in op.inputs[:-1]]
        if any(c is not None for c in counts):
            return tf.concat(
                [_ones(part) if c is None else c for c, part in zip(counts, op.inputs)], 0
            )
    return None


def _ones(keys):
    return tf.ones([tf.size(keys)], tf.int64)


def _parts_of_concat(tensor, before):
    """If `tensor` is a concatenation along its first dimension, the list of the concatenated tensors; otherwise None.

    Adds its control inputs to `before`. TensorFlow may have attached them to the axis of the concatenation.
    """
    op = tensor.op
    if op.type != "ConcatV2":
        return None
    axis = tf.get_static_value(op.inputs[-1])
    rank = tensor.shape.rank
    if axis is None or (axis != 0 and (rank is None or axis != -rank)):
        return None
    before.extend(op.control_inputs + op.inputs[-1].op.control_inputs)
    return list(op.inputs[:-1])


def _leaves(values, indices, handle, state, before):
    """Splits a gradient into the gradients of single lookups: [(keys, grads, counts or None, order or None)].

    A gradient that gradients.py summed is returned in its unsummed form. Adds operations that must run before the update to `before`.

    Returns None if the split is not certain. A part that is not the unchanged gradient of a lookup of this variable must be known
    statically to have as many values as keys. Otherwise the parts after it might be paired with wrong keys.
    """
    source = _skip_identities(values, before)
    keys = _skip_identities(indices, before)
    raw = state.raw_gradients.get(source.name)
    if raw is not None and raw.handle_name == handle.name and keys.name == raw.indices_name:
        summed_here = raw.grads.name != source.name
        order = state.orders.get(raw.indices_name)
        return [
            (raw.keys, raw.grads, None, order)
            if summed_here
            else (indices, values, _counts_of(indices, state), order)
        ]
    parts, key_parts = _parts_of_concat(source, before), _parts_of_concat(keys, before)
    if parts and key_parts and len(parts) == len(key_parts):
        leaves = [_leaves(v, k, handle, state, before) for v, k in zip(parts, key_parts)]
        return (
            None
            if any(leaf is None for leaf in leaves)
            else [leaf for some in leaves for leaf in some]
        )
    if values.shape[:1].is_fully_defined() and values.shape[:1] == indices.shape[:1]:
        return [(indices, values, _counts_of(indices, state), None)]
    return None


def group_unit_of(g, handle):
    """The GroupUnit of a gradient whose keys are those of one member of a grouped lookup of this variable; otherwise None.

    The values may have been changed (not eagerly, nor in functions).
    """
    if isinstance(g.values, EagerTensor):
        return origins.eager_group_unit(g.values, g.indices, handle)
    before = []
    values, keys = _skip_identities(g.values, before), _skip_identities(g.indices, before)
    known = graph_state.state_of(values.graph).group_sums.get(values.name)
    if known is not None and known[0] == keys.name:
        _, keys, values = known
    op = keys.op
    if op.type not in placement.GROUP_LOOKUP_GRADS or keys.value_index >= op.get_attr("U"):
        return None
    forward = _skip_identities(op.inputs[0], []).op
    if forward.type not in (*placement.GROUP_LOOKUPS, "MultitierServe"):
        return None
    lookup = gradients.GroupLookup.of(forward)
    first_input = gradients.group_inputs(lookup.sources, lookup.units, lookup.num_handles)
    part = keys.value_index
    for member in op.get_attr("members"):
        if part < lookup.units[member]:
            break
        part -= lookup.units[member]
    if lookup.inputs[first_input[member] + part].name != handle.name:
        return None
    unchanged = values.op is op and values.value_index == op.get_attr("U") + keys.value_index
    group = origins.GroupGradient.of_op(op)
    before += op.control_inputs
    return origins.GroupUnit(group, sum(lookup.units[:member]) + part, member, unchanged, before)


def _in_order(leaves, orders):
    """Sorts the gradients of several lookups by the order in which the lookups were built, if a grouped lookup is among them.

    A key's gradients are then added in that order, whether or not members share an op. If the lookup of a leaf is not known, the
    order stays as it is.

    orders: for each leaf, its entry of GraphState.orders, or None.
    """
    if None in orders or not any(is_grouped for _, _, is_grouped in orders):
        return leaves
    return [leaf for _, leaf in sorted(zip(orders, leaves), key=lambda pair: pair[0])]


def _cut(g, state, before):
    """Splits an IndexedSlices of several lookups whose values were changed afterwards. Returns leaves, in order.

    Adds operations that must run before the update to `before`.
    """
    whole = [(g.indices, g.values, _counts_of(g.indices, state))]
    parts = _parts_of_concat(_skip_identities(g.indices, before), before)
    if parts is None:
        return whole
    order = _in_order(range(len(parts)), [_order_of(keys, state) for keys in parts])
    if list(order) == list(range(len(parts))):
        return whole
    values = tf.split(g.values, [tf.size(keys) for keys in parts])
    return [(parts[i], values[i], _counts_of(parts[i], state)) for i in order]


def _order_of(keys, state):
    return state.orders.get(_skip_identities(keys, []).name)


def unsummed(g, handle):
    """Turns an IndexedSlices of keys into the inputs of an apply op.

    The gradients of several lookups of one variable arrive as one concatenation. If each of them is known (see _leaves), the
    gradients that a pooled lookup summed, and that were not changed since, are replaced by their unsummed form. Otherwise the
    gradient is returned as it is, with the occurrence counts of its keys if they are known.

    Args:
      g: IndexedSlices.
      handle: the handle of the variable that is updated.

    Returns:
      (keys int64 [n], grads float32 [n, dim], counts int64 [n], or [0] if each entry is one occurrence, table numbers as
      table_numbers.of_gradient gives them, operations to run before the update).
    """
    if isinstance(g.values, EagerTensor):
        raw = origins.eager_raw(g.values, g.indices, handle)
        keys, grads = (g.indices, g.values) if raw is None else (raw.keys, raw.grads)
        tables = table_numbers.of_gradient([g.indices], handle)
        return keys, grads, tf.zeros([0], tf.int64), tables, []
    state = graph_state.state_of(g.values.graph)
    before = []
    leaves = _leaves(g.values, g.indices, handle, state, before)
    if leaves is not None:
        leaves = _in_order([leaf[:3] for leaf in leaves], [leaf[3] for leaf in leaves])
    else:
        before = []
        leaves = _cut(g, state, before)
    keys, grads, counts = zip(*leaves)
    if all(c is None for c in counts):
        all_counts = tf.zeros([0], tf.int64)
    else:
        all_counts = tf.concat([_ones(k) if c is None else c for k, c in zip(keys, counts)], 0)
    join = lambda parts: parts[0] if len(parts) == 1 else tf.concat(parts, 0)
    tables = table_numbers.of_gradient(keys, handle)
    return join(keys), join(grads), all_counts, tables, before
