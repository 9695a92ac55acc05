"""The grouped lookup in eager execution and in functions, and how a tf.GradientTape records it.

For each recorded op, a tape passes a gradient for every output, and zeros for outputs that the loss does not use. That fails for
the plan, a variant, which has no zeros. It would also train members whose output is not used. So this module records the op itself:

    MultitierGroupLookup  --values-->  one record per value, which marks a gradient that arrives  --> the loss
                          --plan-->    kept for the gradient, not recorded

The group's gradient then uses only the marked gradients.
"""

import numpy as np
import tensorflow as tf

from tf_multitier._src.execution import placement
from tf_multitier._src.lookup import gradients
from tf_multitier._src.tensorflow.internals import a_tape_records
from tf_multitier._src.tensorflow.internals import record_on_tapes
from tf_multitier._src.tensorflow.internals import run_eagerly
from tf_multitier._src.tensorflow.internals import unrecorded

_MARK = "_tf_multitier_is_gradient"


def look_up(inputs, attrs, on_hbm):
    """The values of a grouped lookup. inputs: {name: list of tensors}, attrs: {name: value}, as the op has them. on_hbm: whether it is
    a MultitierHbmGroupLookup."""
    flat = [tensor for tensors in inputs.values() for tensor in tensors]

    def gradient(plan, used, grads):
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
            on_hbm,
        )
        return gradients.group_gradient(lookup, used, grads)

    op_type = placement.GROUP_LOOKUPS[on_hbm]
    return recorded(op_type, flat, lambda: _run(inputs, attrs, on_hbm), gradient)


def recorded(name, inputs, run, gradient):
    """The values of a lookup, recorded on the tapes.

    Args:
      name: of the record.
      inputs: the tensors that have a gradient.
      run: makes the lookup: () -> (values, what its gradient needs).
      gradient: (what it needs, the numbers of the values that have a gradient, the gradients of all values) -> the gradients of inputs.
    """
    if not a_tape_records():
        return run()[0]
    with unrecorded():
        values, kept = run()
        returned = [tf.identity(value) for value in values]

    def backward(*grads):
        used = [i for i, grad in enumerate(grads) if getattr(grad, _MARK, False)]
        return gradient(kept, used, grads)

    record_on_tapes(name, values, inputs, backward)
    for value, copy in zip(values, returned):
        record_on_tapes(name + "Value", [copy], [value], _marked)
    return returned


def _marked(grad):
    marked = tf.identity(tf.convert_to_tensor(grad))
    setattr(marked, _MARK, True)
    return [marked]


def _run(inputs, attrs, on_hbm):
    """(values, plan) of the op."""
    if not tf.executing_eagerly():
        result = placement.group_lookup_op(on_hbm)(**inputs, **attrs)
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
    outputs = run_eagerly(placement.GROUP_LOOKUPS[on_hbm], attrs["N"] + 1, flat, every)
    return outputs[:-1], outputs[-1]
