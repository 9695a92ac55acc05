"""The part of `tf.contrib.rnn` that DeepRec's models use: TensorFlow's recurrent cells, and `_Linear` for a program's own cells.

`tensorflow.contrib.rnn.python.ops.core_rnn_cell` has the same names.
"""

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import rnn_cell_impl

_v1 = tf.compat.v1

CELLS = (
    "BasicLSTMCell",
    "BasicRNNCell",
    "DeviceWrapper",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
)
CORE_RNN_CELL = (*CELLS, "_Linear")

globals().update({name: getattr(rnn_cell_impl, name) for name in CELLS})


class _Linear:
    """x W + b, where x is one tensor or the concatenation of several. Its variables are `kernel` and `bias` in the current scope.

        self._gates = _Linear([inputs, state], 2 * units, True, bias_initializer=tf.ones_initializer())
        values = self._gates([inputs, state])

    Source: the class of that name in TensorFlow 1.15's contrib.

    Args:
      args: a tensor [batch, n] with known n, or a list of such tensors with one dtype. Calls take tensors of the same shapes.
      output_size: number of columns of the result, >= 1.
      build_bias: whether to add a bias.
      bias_initializer: None: zeros.
      kernel_initializer: None: that of the variable scope.

    Raises:
      ValueError: args is empty, or a tensor has another rank or an unknown last dimension.
    """

    def __init__(
        self, args, output_size, build_bias, bias_initializer=None, kernel_initializer=None
    ):
        args = self._listed(args)
        widths = [
            tf.compat.dimension_value(x.shape[-1]) if x.shape.rank == 2 else None for x in args
        ]
        if not args or None in widths:
            raise ValueError(
                "_Linear: expected tensors [batch, n] of known n, found shapes "
                f"{[tuple(x.shape.as_list()) if x.shape.rank is not None else None for x in args]}"
            )
        scope = _v1.get_variable_scope()
        with _v1.variable_scope(scope):
            self._kernel = _v1.get_variable(
                "kernel", [sum(widths), output_size], args[0].dtype, kernel_initializer
            )
            self._bias = None
            if build_bias:
                with _v1.variable_scope(scope) as inner:
                    inner.set_partitioner(None)
                    self._bias = _v1.get_variable(
                        "bias",
                        [output_size],
                        args[0].dtype,
                        bias_initializer or _v1.zeros_initializer(),
                    )

    @staticmethod
    def _listed(args):
        return [
            tf.convert_to_tensor(x) for x in (args if isinstance(args, (list, tuple)) else [args])
        ]

    def __call__(self, args):
        """Multiplies args by the kernel and adds the bias: [batch, output_size]."""
        args = self._listed(args)
        product = tf.matmul(
            args[0] if len(args) == 1 else tf.concat(args, 1), tf.convert_to_tensor(self._kernel)
        )
        return (
            product
            if self._bias is None
            else tf.nn.bias_add(product, tf.convert_to_tensor(self._bias))
        )
