"""Gradients of embedding variables through tf.custom_gradient and tf.recompute_grad, outside of v1 graphs.

Both convert the variables that their function reads to tensors, and return a gradient for each of these tensors:

    stand_in               what a variable is converted to: a lookup of no keys
    gradient_of_variable   the gradient of that lookup is the gradient of the variable, an IndexedSlices of keys

A variable that their function takes as an argument is refused: VariableGradient.

tf.recompute_grad converts the IndexedSlices to a dense tensor on its way. An embedding variable has none: its static shape is
[0, dim]. Other conversions of its IndexedSlices are refused. There it is packed into one float32 tensor [n, dim + 4], a row for each entry: the values, the bits of the
key, and those of a fixed number that no dense gradient has there. The conversion is a public hook of TensorFlow, `tf.register_tensor_conversion_function`. It leaves all other IndexedSlices, and
all other conversions, to TensorFlow.
"""

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import EagerTensor
from tf_multitier._src.tensorflow.internals import embedding_dim_of_handle
from tf_multitier._src.tensorflow.internals import is_given_to_custom_gradient
from tf_multitier._src.tensorflow.internals import resource_variable_ops
from tf_multitier._src.tensorflow.internals import variable_of_recomputed_gradient
from tf_multitier._src.tensorflow.library import ops

_NO_KEYS = "tf_multitier_no_keys"
_KEY_COLUMNS = 2  # float32 elements with the bits of an int64
_MARK = int.from_bytes(
    b"MTPACKED", "little"
)  # an int64, and as two float32 numbers that no operation changes
_PACKED_COLUMNS = 2 * _KEY_COLUMNS  # the key, and the mark
SHAPE_NAME = "tf_multitier_no_dense_shape"  # of the dense shape of a gradient, in a graph
_converted_types: set = set()  # types of the variables that stand_in has converted


def no_tensor(name):
    """The error for a use of an embedding variable as a tensor."""
    return NotImplementedError(
        f"embedding variable '{name}' is a hash table and has no dense value, so it cannot go through tf.identity or a loop, or be "
        "an argument or a result of a function of tf.recompute_grad or tf.custom_gradient, as a tensor can: look its keys up there, "
        "and let the function use it from the enclosing scope"
    )


class VariableGradient(resource_variable_ops.ResourceVariableGradient):
    """What TensorFlow asks for a variable as a source of gradients: the variable itself."""

    def get_gradient_components(self, value):
        """NotImplementedError for an argument of tf.recompute_grad or tf.custom_gradient. Its gradient would be None, or an error of
        TensorFlow's gather."""
        if is_given_to_custom_gradient():
            raise no_tensor(value.variable_name)
        return super().get_gradient_components(value)


def stand_in(variable):
    """A tensor that depends on a variable. In a graph its static shape is unknown, because that of a packed gradient differs."""
    _converted_types.add(type(variable))
    no_keys = tf.zeros([0], tf.int64)
    if not isinstance(no_keys, EagerTensor):
        shape = tf.TensorShape(None)
        no_keys = tf.raw_ops.PlaceholderWithDefault(input=no_keys, shape=shape, name=_NO_KEYS)
    return ops.multitier_lookup(variable.handle, no_keys, [])


def _is_stand_in(keys):
    if isinstance(keys, EagerTensor):
        return keys.shape == [
            0
        ]  # another lookup of no keys has a gradient without entries in either form
    return keys.op.name.rpartition("/")[2].startswith(_NO_KEYS)


def gradient_of_variable(op, grad):
    """The IndexedSlices of keys that is the gradient of a variable, if `op` is its stand-in; None for other lookups.

    Args:
      op: a MultitierLookup.
      grad: the gradient of its values: IndexedSlices of keys, packed or not, or zeros [0, dim].

    Raises:
      TypeError: a dense gradient, which the caller's tf.custom_gradient returned; tf.errors.InvalidArgumentError, when run, if its
        shape is not known before.
    """
    if not _is_stand_in(op.inputs[1]):
        return None
    if isinstance(grad, tf.IndexedSlices):
        return grad
    shape = op.outputs[0].shape
    dim = embedding_dim_of_handle(op.inputs[0]) if shape.rank is None else shape[-1]
    checks = _check_packed(grad, dim)
    with tf.control_dependencies(checks):
        # Zeros have no columns of keys, and no rows.
        values, bits = grad[:, :dim], grad[:, dim : dim + _KEY_COLUMNS]
    keys = tf.bitcast(tf.reshape(bits, [-1, _KEY_COLUMNS]), tf.int64)
    values.set_shape([None, dim])
    shape = tf.constant([0, dim], tf.int32, name=SHAPE_NAME)
    return tf.IndexedSlices(values, keys, dense_shape=shape)


def _check_packed(grad, dim):
    """Checks that a tensor is a packed gradient, or zeros. Returns the ops that check what is not known yet. Errors: see
    gradient_of_variable."""
    expected = "gradient of an embedding variable in tf.custom_gradient: expected IndexedSlices of keys, found a dense tensor"
    rank = grad.shape.rank
    rows, columns = grad.shape.as_list() if rank == 2 else (None, None)
    if columns == dim and rows == 0:
        return []
    dense = TypeError(f"{expected} {grad.shape}: return tf.IndexedSlices(values, keys)")
    if (rank is not None and rank != 2) or columns not in (None, dim, dim + _PACKED_COLUMNS):
        raise dense
    if columns == dim and rows is not None:
        raise dense
    size = tf.shape(grad)
    has_columns = tf.reduce_all(size[1:] == dim + _PACKED_COLUMNS)
    mark = lambda: tf.bitcast(
        tf.reshape(grad[:, dim + _KEY_COLUMNS :], [-1, _KEY_COLUMNS]), tf.int64
    )
    is_packed = tf.cond(has_columns, lambda: tf.reduce_all(mark() == _MARK), lambda: False)
    is_right = tf.logical_and(tf.rank(grad) == 2, tf.logical_or(is_packed, size[0] == 0))
    if isinstance(grad, EagerTensor) and not is_right:
        raise dense
    return [tf.debugging.Assert(is_right, [f"{expected} of shape", size])]


def _no_dense_gradient(slices):
    """NotImplementedError for a gradient of keys, which TensorFlow cannot make dense; NotImplemented for other IndexedSlices."""
    shape = slices.dense_shape
    of_variable = (
        not isinstance(shape, EagerTensor) and shape is not None and SHAPE_NAME in shape.name
    )
    rows = None if shape is None else tf.get_static_value(shape)
    if not of_variable and (rows is None or rows[0] != 0 or not slices.values.shape[0]):
        return NotImplemented
    raise NotImplementedError(
        "gradient of an embedding variable: expected a use as IndexedSlices of keys, found one as a dense tensor, as in tf.add_n and "
        "arithmetic: take the gradient of the sum of the losses, or concatenate the values and the indices of the gradients into one "
        "tf.IndexedSlices"
    )


def _packed(slices, dtype=None, name=None, as_ref=False):
    """The conversion of IndexedSlices: NotImplemented for those that are not of embedding variables in tf.recompute_grad."""
    del as_ref
    if dtype not in (None, tf.float32):
        return NotImplemented
    if type(variable_of_recomputed_gradient(slices)) not in _converted_types:
        return _no_dense_gradient(slices)
    keys = tf.bitcast(tf.cast(slices.indices, tf.int64), tf.float32)
    mark = tf.fill([tf.size(slices.indices), 1], tf.constant(_MARK, tf.int64))
    mark = tf.reshape(tf.bitcast(mark, tf.float32), [-1, _KEY_COLUMNS])
    return tf.concat([slices.values, keys, mark], 1, name=name or "packed_gradient")


# TensorFlow's own conversion has the priority 100.
tf.register_tensor_conversion_function(tf.IndexedSlices, _packed, priority=50)
