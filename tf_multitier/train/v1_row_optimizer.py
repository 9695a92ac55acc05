"""V1RowOptimizer: a v1 optimizer that is defined by one function of a batch of rows.

A subclass names its rule, whose slots it has, and computes new rows. The base class applies this to dense and sparse gradients of
reference and resource variables. Embedding variables do not use it: their rule runs in the engine (rules.py).
"""

import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import is_resource_variable
from tf_multitier._src.tensorflow.internals import resource_variable_ops
from tf_multitier._src.training import rules


class V1RowOptimizer(tf.compat.v1.train.Optimizer):
    """Base class of optimizers whose update of a row depends only on that row, its slots and its gradient.

    Order of calls in a step: `_create_slots`, `_prepare`, `_update_rows` for each variable, `_finish`. A sparse gradient updates each
    of its rows once, with the sum of that row's gradients. Other rows keep their value and slots.
    """

    # Name of the engine's rule.
    _RULE = ""

    def __init__(self, use_locking: bool, name: str, **given: typing.Any) -> None:
        """given: hyperparameters: numbers, tensors or callables. `_prepare` puts their tensors into `_tensors`."""
        super().__init__(
            use_locking is not None and boolean(f"{name}: use_locking", use_locking), name
        )
        self._given = given

    def _prepare(self):
        self._tensors = {
            name: tf.convert_to_tensor(
                value() if callable(value) else value, name=name, dtype_hint=tf.float32
            )
            for name, value in self._given.items()
        }

    def _binding(self):
        """The rules.Binding of this optimizer."""
        return rules.bound(self._RULE, lambda o, v: o.hyperparameters(v), **self._initial_values())

    def hyperparameters(self, var: typing.Any) -> list:
        """The hyperparameters of the rule for an embedding variable, in its order: tensors or numbers."""
        raise NotImplementedError

    def _initial_values(self):
        """{slot: initial value} of the slots that begin otherwise than the engine says."""
        return {}

    def _update_rows(self, var, value, slots, grad):
        """Computes new values and slots of some rows.

        Args:
          var: the variable, for state that belongs to one variable.
          value: [n, ...] rows, or the whole variable.
          slots: {name: tensor} of the shape of value, or [n, 1, ...] for a slot with one element per row.
          grad: the gradient, in the shape of value.

        Returns:
          (new value, {name: new slot}).
        """
        raise NotImplementedError

    def _create_slots(self, var_list):
        for var in var_list:
            shape = tf.TensorShape(var.shape)
            for name, per_row, initial_value in self._binding().slots:
                slot_shape = shape
                if per_row and shape.rank > 1:
                    slot_shape = tf.TensorShape([shape[0]] + [1] * (shape.rank - 1))
                initializer = tf.compat.v1.constant_initializer(
                    initial_value, dtype=var.dtype.base_dtype
                )
                slot = self._get_or_make_slot_with_initializer(
                    var, initializer, slot_shape, var.dtype.base_dtype, name, self._name
                )
                if slot_shape is not shape:
                    _save_as_row_slot(slot, var)

    def _slots_of(self, var):
        return {slot.name: self.get_slot(var, slot.name) for slot in self._binding().slots}

    def _dense(self, grad, var):
        slots = self._slots_of(var)
        value, new_slots = self._update_rows(
            var,
            tf.convert_to_tensor(var),
            {n: tf.convert_to_tensor(s) for n, s in slots.items()},
            grad,
        )
        with tf.control_dependencies([value, *new_slots.values()]):
            return tf.group(var.assign(value), *[slots[n].assign(new_slots[n]) for n in slots])

    def _sparse(self, grad, var, indices):
        slots = self._slots_of(var)
        value, new_slots = self._update_rows(
            var, tf.gather(var, indices), {n: tf.gather(s, indices) for n, s in slots.items()}, grad
        )
        with tf.control_dependencies([value, *new_slots.values()]):
            return tf.group(
                _scatter(var, indices, value),
                *[_scatter(slots[n], indices, new_slots[n]) for n in slots],
            )

    def _apply_dense(self, grad, var):
        return self._dense(grad, var)

    def _resource_apply_dense(self, grad, var):
        return self._dense(grad, var)

    def _apply_sparse(self, grad, var):
        return self._sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._sparse(grad, var, indices)


def _save_as_row_slot(slot, var):
    """Sets the save slice of a slot [n, 1] of a part of a partitioned variable. TensorFlow assumes that it is as wide as the part.

    If a variable is partitioned by rows, its parts have slices of the slot. If it is partitioned by columns, each part has a slot of
    all rows, which is saved under the part's name.
    """
    part = var._save_slice_info
    if not isinstance(
        part, tf.Variable.SaveSliceInfo
    ):  # not partitioned, or an embedding variable, whose slots are columns
        return
    if list(part.var_shape[1:]) != list(part.full_shape[1:]):
        slot._save_slice_info = None
        return
    ones = [1] * (len(part.full_shape) - 1)
    slot._set_save_slice_info(
        tf.Variable.SaveSliceInfo(
            slot._save_slice_info.full_name,
            [part.full_shape[0], *ones],
            [part.var_offset[0], *[0] * len(ones)],
            [part.var_shape[0], *ones],
        )
    )


def _scatter(var, indices, rows):
    if is_resource_variable(var):
        return resource_variable_ops.resource_scatter_update(var.handle, indices, rows)
    return tf.compat.v1.scatter_update(var, indices, rows).op
