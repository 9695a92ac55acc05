"""The grouped lookup in eager execution and in functions, and how a tf.GradientTape records it.

For each recorded op, a tape passes a gradient for every output, and zeros for outputs that the loss does not use. That fails for
the plan, a variant, which has no zeros. It would also train members whose output is not used. So this module records the op itself:

    MultitierGroupLookup  --values-->  one record per value, which marks a gradient that arrives  --> the loss
                          --plan-->    kept for the gradient, not recorded

The group's gradient then uses only the marked gradients.
"""

import numpy as np
import tensorflow as tf

from tf_multitier import gradients
from tf_multitier._library import ops
from tf_multitier.tensorflow_internals import a_tape_records
from tf_multitier.tensorflow_internals import record_on_tapes
from tf_multitier.tensorflow_internals import run_eagerly
from tf_multitier.tensorflow_internals import unrecorded

_OP = "MultitierGroupLookup"
_MARK = "_tf_multitier_is_gradient"


def look_up(inputs, attrs):
    """The values of a MultitierGroupLookup. inputs: {name: list of tensors}, attrs: {name: value}, as the op has them."""
    if not a_tape_records():
        return _run(inputs, attrs)[0]
    with unrecorded():
        values, plan = _run(inputs, attrs)
        returned = [tf.identity(value) for value in values]
    flat = [tensor for tensors in inputs.values() for tensor in tensors]
    lookup = gradients.GroupLookup(
        flat,
        plan,
        None if tf.executing_eagerly() else plan.op,
        attrs["sources"],
        attrs["units"],
        attrs["weighted"],
        attrs["dims"],
        attrs["joins"] or [1] * attrs["N"],
        len(inputs["handles"]),
    )

    def backward(*grads):
        used = [i for i, grad in enumerate(grads) if getattr(grad, _MARK, False)]
        return gradients.group_gradient(lookup, used, grads)

    record_on_tapes(_OP, values, flat, backward)
    for value, copy in zip(values, returned):
        record_on_tapes(_OP + "Value", [copy], [value], _marked)
    return returned


def _marked(grad):
    marked = tf.identity(tf.convert_to_tensor(grad))
    setattr(marked, _MARK, True)
    return [marked]


def _run(inputs, attrs):
    """(values, plan) of the op."""
    if not tf.executing_eagerly():
        result = ops.multitier_group_lookup(**inputs, **attrs)
        return list(result.values), result.plan
    # The generated function cannot infer the dtype where the lists of matrices and weights are empty.
    counts = dict(
        H=len(inputs["handles"]),
        M=len(inputs["matrices"]),
        I=len(inputs["indices"]),
        S=len(inputs["shapes"]),
        W=len(inputs["weights"]),
    )
    types = dict(
        dtype=tf.float32.as_datatype_enum,
        Tkeys=[keys.dtype.as_datatype_enum for keys in inputs["keys"]],
    )
    flat = [tensor for tensors in inputs.values() for tensor in tensors]
    every = {**attrs, **counts, **types, "joins": [int(n) for n in np.asarray(attrs["joins"], int)]}
    outputs = run_eagerly(_OP, attrs["N"] + 1, flat, every)
    return outputs[:-1], outputs[-1]
