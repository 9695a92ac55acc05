"""The gradients and variables that an optimizer of optimizers.py is given: which it takes, and the parts and keys that they have."""

from __future__ import annotations

import reprlib
import typing

import tensorflow as tf

from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.partitioned import is_embedding_variable


def embedding_variables(variables: typing.Any, optimizer: str) -> list:
    """The embedding variables of a list of them and of weights of Keras layers. TypeError: another variable."""
    found = [getattr(variable, "embedding_variable", variable) for variable in variables]
    for variable in found:
        if not is_embedding_variable(variable):
            raise TypeError(
                f"tf_multitier.optimizers.{optimizer}: expected an embedding variable, found "
                f"{getattr(variable, 'name', variable)!r}: train it with another optimizer, for example of tf.keras.optimizers"
            )
    return found


def pairs_of(where: str, grads_and_vars: typing.Any) -> list:
    """The pairs of a gradient and a variable as a list. TypeError: something else."""
    try:
        return [(grad, variable) for grad, variable in grads_and_vars]
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(
            f"{where}: expected pairs of a gradient and a variable, found {reprlib.repr(grads_and_vars)}"
        ) from error


def trained_pairs(grads_and_vars: typing.Any, optimizer: str) -> list:
    """[(gradient, EmbeddingVariable)] without partitioned variables and variables without a gradient. Errors: see apply_gradients."""
    pairs: list = []
    where = f"tf_multitier.optimizers.{optimizer}"
    found = pairs_of(where, grads_and_vars) if grads_and_vars is not None else []
    grads, variables = zip(*found) if found else ((), ())
    given = list(zip(grads, embedding_variables(variables, optimizer)))
    for grad, variable in given:
        if isinstance(variable, EmbeddingVariable):
            pairs.append((grad, variable))
        elif grad is not None:
            if not isinstance(grad, (list, tuple)) or len(grad) != len(variable.parts):
                raise TypeError(
                    f"gradient of embedding variable '{variable.variable_name}': expected a list of {len(variable.parts)} "
                    f"gradients, one for each of its parts, found {type(grad).__name__}"
                )
            pairs += zip(grad, variable.parts)
    for grad, variable in pairs:
        if grad is not None and not hasattr(grad, "dtype"):
            raise TypeError(
                f"gradient of embedding variable '{variable.variable_name}': expected tf.IndexedSlices or a tensor, found "
                f"{reprlib.repr(grad)}"
            )
    trained = [
        (_without_zeros(grad, variable), variable) for grad, variable in pairs if grad is not None
    ]
    if not trained:
        names = [variable.name for _, variable in given]
        if given and not any(variable.trainable for _, variable in given):
            raise ValueError(
                f"expected trainable embedding variables, found {names}, whose lookups have no gradient: variables of a loaded "
                "SavedModel, and those made with trainable=False, are trained only where a tape watches them, tape.watch(variable); "
                "those of tf_multitier.serving.read_only() are read-only"
            )
        raise ValueError(
            f"expected a gradient of at least one of the embedding variables {names}, found none: the loss does not "
            "depend on a lookup"
        )
    return trained


def _without_zeros(grad, variable):
    """The zeros of tf.UnconnectedGradients.ZERO [0, dim], clipped or scaled or not, as IndexedSlices of no keys.

    Other gradients are returned unchanged. Eagerly, a scaled tensor does not say what it was computed from. So zeros of this shape
    that the program made are taken for those of a tape; they have no rows either.
    """
    dim = variable.embedding_dim
    if isinstance(grad, tf.Tensor) and _are_zeros(grad) and grad.shape[1] == dim:
        zeros = tf.IndexedSlices(tf.reshape(grad, [0, dim]), tf.zeros([0], tf.int64))
        reduced_gradients.mark([zeros])
        return zeros
    return grad


def _are_zeros(tensor):
    """Whether a tensor is a constant of shape [0, dim], or computed from such constants element by element.

    A gradient that was converted to a dense tensor has the same static shape. But it is computed from the values of its entries.
    """
    if tensor.shape.rank != 2 or tensor.shape[0] != 0:
        return False
    if tf.get_static_value(tensor) is not None:
        return True
    alike = [before for before in tensor.op.inputs if before.shape == tensor.shape]
    return bool(alike) and all(map(_are_zeros, alike))
