"""Values side by side: `tf.concat` along the last dimension that says, when run, whose values do not fit.

TensorFlow's own message has the shapes and the places, which in a layer of hundreds of columns nobody can tell.
"""

import tensorflow as tf

from tf_multitier._library import ops


def check(values, names):
    """Operations, none or one, that fail naming the first of `values` whose shape is not that of the first but in its last dimension.

    None where that is known when the graph is built.

    Args:
      values: list of tensors.
      names: of each, what the message calls it.

    Raises:
      ValueError: where it is known when the graph is built that they do not fit.
    """
    shapes = [value.shape[:-1] if value.shape.rank else tf.TensorShape(None) for value in values]
    for shape, name in zip(shapes, names):
        if not shape.is_compatible_with(shapes[0]):
            # A TensorShape's own text depends on whether v2 behaviour is on.
            expected, found = ((*rows.as_list(), None) for rows in (shapes[0], shape))
            raise ValueError(f"{name}: expected values of shape {expected}, as {names[0]} has, which they stand beside, "
                             f"found {found}")
    if len(values) < 2 or all(shape.is_fully_defined() and shape == shapes[0] for shape in shapes):
        return []
    shapes = tf.shape_n(values)
    with tf.device("/device:CPU:0"):
        return [ops.multitier_check_side_by_side(shapes, names=names)]


def concat(values, names):
    """tf.concat(values, -1) after `check`."""
    with tf.control_dependencies(check(values, names)):
        return tf.concat(values, -1)
