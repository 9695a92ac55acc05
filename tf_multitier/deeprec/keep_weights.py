"""`tf.variable_scope(...).keep_weights(dtype)`: weights in float32 for a part of the model that computes in bfloat16.

    with tf.variable_scope("dnn", reuse=tf.AUTO_REUSE).keep_weights(dtype=tf.float32):
        net = tf.cast(net, tf.bfloat16)
        net = tf.layers.dense(net, 256, tf.nn.relu)  # a MatMul of bfloat16; kernel and bias are variables of float32
        net = tf.cast(net, tf.float32)

If the program creates a variable in bfloat16 or float16, in the scope or in a scope inside it, the variable is stored in `dtype` and
read through a cast. Optimizers, slots and checkpoints see `dtype`. Variables of other types are not affected. Source: DeepRec's method
of that name.
"""

import functools

import tensorflow as tf

VARIABLE_SCOPE = ("keep_weights",)

_HALVES = (tf.bfloat16, tf.float16)


def _getter(kept):
    """A custom getter for variable scopes that stores bfloat16 and float16 variables as `kept`."""

    def get(getter, name, *args, dtype=tf.float32, **kwargs):
        asked = tf.as_dtype(tf.float32 if dtype is None else dtype).base_dtype
        if asked not in _HALVES:
            return getter(name, *args, dtype=dtype, **kwargs)
        variable = getter(name, *args, dtype=kept, **kwargs)
        if hasattr(variable, "embedding_dim"):  # an embedding variable has a value_dtype of its own
            return variable
        scope = name.rpartition("/")[2]
        return tf.cast(tf.convert_to_tensor(variable), asked, name=f"{scope}_{asked.name}")

    return get


def keep_weights(self, dtype=tf.float32):
    """Stores the bfloat16 and float16 variables of this scope in `dtype`. See the text at the top of this module.

    Args:
      dtype: tf.float32 or tf.float64.

    Returns:
      The variable scope itself, to be entered.

    Raises:
      ValueError: another dtype, or the scope was entered already.
    """
    dtype = tf.as_dtype(dtype)
    if dtype not in (tf.float32, tf.float64):
        raise ValueError(
            f"keep_weights: dtype: expected tf.float32 or tf.float64, found {dtype.name}"
        )
    if self._cached_pure_variable_scope is not None:
        raise ValueError(
            "keep_weights: expected a variable scope that was not entered yet, found one that was"
        )
    keep, given = _getter(dtype), self._custom_getter
    self._custom_getter = (
        keep
        if given is None
        else lambda getter, *args, **kwargs: keep(functools.partial(given, getter), *args, **kwargs)
    )
    return self
