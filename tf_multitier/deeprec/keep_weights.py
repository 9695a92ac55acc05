"""`tf.variable_scope(...).keep_weights(dtype)`: weights in float32 for a part of the model that computes in bfloat16.

    with tf.variable_scope("dnn", reuse=tf.AUTO_REUSE).keep_weights(dtype=tf.float32):
        net = tf.cast(net, tf.bfloat16)
        net = tf.layers.dense(net, 256, tf.nn.relu)  # a MatMul of bfloat16; kernel and bias are variables of float32
        net = tf.cast(net, tf.float32)

A variable that the scope, or a scope inside it, is asked for in bfloat16 or float16 is made in `dtype`, and read through a cast to what was
asked for: optimizers, slots and checkpoints see `dtype`. Variables asked for in another type are as ever. Source: DeepRec's method of that
name.
"""

import functools

import tensorflow as tf

VARIABLE_SCOPE = ("keep_weights",)

_HALVES = (tf.bfloat16, tf.float16)


def _getter(kept):
    """A custom getter of variable scopes, which keeps halves as `kept`."""

    def get(getter, name, *args, dtype=tf.float32, **kwargs):
        asked = tf.as_dtype(tf.float32 if dtype is None else dtype).base_dtype
        if asked not in _HALVES:
            return getter(name, *args, dtype=dtype, **kwargs)
        variable = getter(name, *args, dtype=kept, **kwargs)
        scope = name.rpartition("/")[2]
        return tf.cast(tf.convert_to_tensor(variable), asked, name=f"{scope}_{asked.name}")

    return get


def keep_weights(self, dtype=tf.float32):
    """Keeps the variables of this scope that are asked for in bfloat16 or float16 as `dtype`; see the module.

    Args:
      dtype: tf.float32 or tf.float64.

    Returns:
      The variable scope itself, to be entered.

    Raises:
      ValueError: for another dtype, or once the scope was entered.
    """
    dtype = tf.as_dtype(dtype)
    if dtype not in (tf.float32, tf.float64):
        raise ValueError(f"keep_weights: dtype must be tf.float32 or tf.float64, found {dtype.name}")
    if self._cached_pure_variable_scope is not None:
        raise ValueError("keep_weights: expected a variable scope that was not entered yet, found one that was")
    keep, given = _getter(dtype), self._custom_getter
    self._custom_getter = keep if given is None else lambda getter, *args, **kwargs: keep(
        functools.partial(given, getter), *args, **kwargs)
    return self
