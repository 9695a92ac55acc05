"""`tf.concat` along the last dimension with an error that names the value whose shape does not match.

TensorFlow's own message gives shapes and positions only. In a layer of hundreds of columns that does not identify the column.
"""

import tensorflow as tf

from tf_multitier._src.tensorflow.library import ops


def check(values, names):
    """Checks that all `values` have the same shape except for the last dimension.

    Args:
      values: list of tensors.
      names: list of strings: the name of each value in error messages.

    Returns:
      A list of at most one operation. The operation fails with InvalidArgumentError, which names the first value that does not match. The
      list is empty if static shapes prove that all match.

    Raises:
      ValueError: static shapes prove that a value does not match.
    """
    shapes = [value.shape[:-1] if value.shape.rank else tf.TensorShape(None) for value in values]
    for shape, name in zip(shapes, names):
        if not shape.is_compatible_with(shapes[0]):
            # A TensorShape's own text depends on whether v2 behaviour is on.
            expected, found = ((*rows.as_list(), None) for rows in (shapes[0], shape))
            raise ValueError(
                f"{name}: expected values of shape {expected} to match {names[0]}, with which it is "
                f"concatenated, found {found}"
            )
    if len(values) < 2 or all(shape.is_fully_defined() and shape == shapes[0] for shape in shapes):
        return []
    shapes = tf.shape_n(values)
    with tf.device("/device:CPU:0"):
        return [ops.multitier_check_side_by_side(shapes, names=names)]


def concat(values, names):
    """tf.concat(values, -1) after `check`."""
    with tf.control_dependencies(check(values, names)):
        return tf.concat(values, -1)
