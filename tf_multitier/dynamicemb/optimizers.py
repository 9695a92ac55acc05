"""The optimizers of rows, from `fused_params`, in the arithmetic of FBGEMM.

    {"optimizer": EmbOptimType.ADAM, "learning_rate": 0.01, "eps": 1e-8}  ->  Adam

    SGD, EXACT_SGD           w -= learning_rate * g
    ADAM                     w -= learning_rate * (m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * w)
    EXACT_ADAGRAD            sum += g * g; w -= learning_rate * g / (sqrt(sum) + eps)
    EXACT_ROWWISE_ADAGRAD    sum += mean(g * g); w -= learning_rate * g / (sqrt(sum) + eps)

g is the sum of a key's gradients in a step. max_gradient clips what this sum is computed from: the gradient of each result of a lookup,
a row or a bag; of a bag before weights and mean. t counts steps, from 1. States are float32, whatever the type of the values.
"""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier import optimizers as row_optimizers
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import real
from tf_multitier.dynamicemb.enums import EmbOptimType
from tf_multitier.dynamicemb.enums import member
from tf_multitier.dynamicemb.enums import SparseType

_DEFAULTS = {
    "optimizer": EmbOptimType.SGD,
    "learning_rate": 0.01,
    "eps": 1e-8,
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0.0,
    "initial_accumulator_value": 0.0,
    "gradient_clipping": False,
    "max_gradient": 1.0,
    "output_dtype": SparseType.FP32,
    "prefetch_pipeline": False,
}
# dynamicemb takes these and does nothing with them.
_IGNORED = {"stochastic_rounding": True, "max_norm": 0.0, "momentum": 0.9, "eta": 0.001}
_ADAGRADS = (EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD)


def completed(fused_params: typing.Any) -> dict[str, typing.Any]:
    """A copy of fused_params with the defaults of what is not given.

    Raises:
      TypeError: a value of another type.
      ValueError: another name; a value out of range; or one that would have no effect.
    """
    if not isinstance(fused_params, collections.abc.Mapping):
        raise TypeError(f"fused_params: expected a dict, found {fused_params!r}")
    for name, value in fused_params.items():
        if name in _IGNORED and value != _IGNORED[name]:
            raise ValueError(
                f"fused_params['{name}']: expected {_IGNORED[name]}, its default, found {value!r}: dynamicemb takes it and does nothing "
                "with it: leave it out"
            )
        if name not in _DEFAULTS and name not in _IGNORED:
            raise ValueError(
                f"fused_params: expected {', '.join(_DEFAULTS)}; found {name!r}{did_you_mean(name, _DEFAULTS)}"
            )
    params = {**_DEFAULTS, **fused_params}
    where = "fused_params['{}']".format
    member(where("optimizer"), params["optimizer"], EmbOptimType)
    member(where("output_dtype"), params["output_dtype"], SparseType)
    for name in ("gradient_clipping", "prefetch_pipeline"):
        boolean(where(name), params[name])
    for name, default in _DEFAULTS.items():
        if isinstance(default, float):
            params[name] = real(where(name), params[name])
    for name in ("eps", "max_gradient"):
        if not params[name] > 0:
            raise ValueError(f"{where(name)}: expected more than 0, found {params[name]}")
    for name in ("beta1", "beta2"):
        if not 0 <= params[name] < 1:
            raise ValueError(
                f"{where(name)}: expected at least 0, less than 1, found {params[name]}"
            )
    for name in ("weight_decay", "initial_accumulator_value"):
        if not params[name] >= 0:
            raise ValueError(f"{where(name)}: expected at least 0, found {params[name]}")
    _check_used(params, "weight_decay", (EmbOptimType.ADAM,))
    _check_used(params, "initial_accumulator_value", _ADAGRADS)
    if not params["gradient_clipping"] and params["max_gradient"] != _DEFAULTS["max_gradient"]:
        raise ValueError(
            f"{where('max_gradient')}: expected gradient_clipping=True with it, found False"
        )
    return params


def _check_used(params, name, kinds):
    if params[name] != 0 and params["optimizer"] not in kinds:
        its = " or ".join(kind.name for kind in kinds)
        raise ValueError(
            f"fused_params['{name}']: expected 0 with {params['optimizer'].name}, found {params[name]}: {its} uses it"
        )


class _CorrectedEpsilon:
    """Adds epsilon to the corrected root. The rule adds it to the root that is not corrected, so it gets a corrected epsilon."""

    def _hyper(self, learning_rate):
        hyper = super()._hyper(learning_rate)
        rate, beta_1, beta_2, epsilon, power_1, power_2, *decay = hyper
        return [rate, beta_1, beta_2, epsilon * tf.sqrt(1 - power_2), power_1, power_2, *decay]


class Adam(_CorrectedEpsilon, row_optimizers.Adam):
    """ADAM without weight_decay."""


class AdamW(_CorrectedEpsilon, row_optimizers.AdamW):
    """ADAM with weight_decay."""


def of_fused_params(fused_params: typing.Any) -> row_optimizers.RowOptimizer:
    """The optimizer of rows. Its `iterations` begin with 1, so that the first score of STEP is 1. Errors: see completed."""
    params = completed(fused_params)
    with tf.device("CPU:0"):  # where the ops of scores.py read `iterations`
        optimizer = _made(params)
    optimizer.iterations.assign(1)
    return optimizer


def _made(params):
    kind, rate = params["optimizer"], params["learning_rate"]
    if kind in (EmbOptimType.SGD, EmbOptimType.EXACT_SGD):
        return row_optimizers.SGD(rate)
    if kind in _ADAGRADS:
        is_rowwise = kind is EmbOptimType.EXACT_ROWWISE_ADAGRAD
        rule = row_optimizers.RowwiseAdagrad if is_rowwise else row_optimizers.Adagrad
        return rule(
            rate,
            initial_accumulator_value=params["initial_accumulator_value"],
            epsilon=params["eps"],
        )
    adam = {
        "beta_1": params["beta1"],
        "beta_2": params["beta2"],
        "epsilon": params["eps"],
        "name": "Adam",  # of the states: with and without decay they are the same
    }
    decay = params["weight_decay"]
    return AdamW(rate, decay, **adam) if decay else Adam(rate, **adam)


def states(optimizer: row_optimizers.RowOptimizer, variable: typing.Any) -> list:
    """[(column, elements, initial value)] of the states of a variable's rows, in the order of the rule."""
    return list(zip(*optimizer._columns(variable)))
