"""NumPy float32 references of every update rule: what the engine computes, bit for bit.

Each rule is a few lines of NumPy in the order of operations that `cc/optimizer/<rule>.cc` states at its top. Every
NumPy operation rounds once to float32, as the engine's arithmetic does, so tests compare bits, not distances.

    from reference_rules import RULES, make_slots, apply_rule

    slots = make_slots("adagrad", n, dim)  # {"accumulator": [n, dim] float32, filled with 0.1}
    apply_rule("adagrad", value, slots, grad, {"learning_rate": 0.05})  # value and slots change in place

`value` and `grad` are float32 [n, dim], one line a row; a per-row slot is [n, 1]. The gradient of a row is the sum over
its occurrences, and every row given is updated: rows that a batch does not touch are not passed. Hyperparameters are
all given, by name, and rounded to float32 before use.
"""

import numpy as np

from tf_multitier import engine

F = np.float32

RULES = engine.update_rules()
_UPDATES = {}


def _rule(*names):
    def register(update):
        _UPDATES.update(dict.fromkeys(names, update))
        return update

    return register


def make_slots(rule, n, dim, initial=None):
    """Fresh slots of n rows: {name: float32 [n, dim], or [n, 1] if per row}; `initial` overrides defaults by name."""
    initial = initial or {}
    return {
        s.name: np.full((n, 1 if s.per_row else dim), initial.get(s.name, s.initial_value), F)
        for s in RULES[rule].slots
    }


def apply_rule(rule, value, slots, grad, hyper):
    """Updates `value` and every array of `slots` in place with the rule of that name.

    Args:
      rule: a key of RULES.
      value: float32 [n, dim].
      slots: {slot name: float32 [n, dim] or [n, 1]}, all of the rule's.
      grad: float32 [n, dim].
      hyper: {hyperparameter name: number}, all of the rule's.
    """
    spec = RULES[rule]
    if set(hyper) != set(spec.hyperparameters):
        raise ValueError(f"{rule} takes {spec.hyperparameters}, found {tuple(hyper)}")
    assert value.dtype == F and grad.dtype == F and value.ndim == 2 and value.shape == grad.shape
    with np.errstate(all="ignore"):
        _UPDATES[rule](value, slots, grad, **{k: F(v) for k, v in hyper.items()})


class Rows:
    """Rows {id: value and states} trained by one rule."""

    def __init__(self, rule, rows, hyper, initial=None):
        """rows: {id: its initial value}. hyper: function of the number of the step, from 0, that gives the hyperparameters."""
        self.rule, self.hyper, self.steps, self.counts = rule, hyper, 0, {}
        self.rows = {key: np.array(row, F) for key, row in rows.items()}
        self.states = {key: make_slots(rule, 1, len(row), initial) for key, row in rows.items()}

    def train(self, ids, gradients):
        """One step. ids: any shape; gradients: ids.shape + [dim]. Gradients of one id are added in order of occurrence."""
        summed: dict = {}
        for key, gradient in zip(
            np.ravel(ids).tolist(), gradients.reshape(-1, gradients.shape[-1])
        ):
            summed[key] = summed[key] + gradient if key in summed else np.array(gradient, F)
            self.counts[key] = self.counts.get(key, 0) + 1
        for key, gradient in summed.items():
            row = self.rows[key][None]
            apply_rule(self.rule, row, self.states[key], gradient[None], self.hyper(self.steps))
            self.rows[key] = row[0]
        self.steps += 1


@_rule("sgd")
def _sgd(w, s, g, learning_rate):
    w -= g * learning_rate


@_rule("momentum")
def _momentum(w, s, g, learning_rate, momentum, use_nesterov):
    a = s["momentum"]
    a[...] = a * momentum + g
    if use_nesterov:
        w -= learning_rate * g + (learning_rate * momentum) * a
    else:
        w -= learning_rate * a


def _adagrad_step(w, a, g, learning_rate):
    a += g * g
    if w.shape[1] == 1:
        w -= (learning_rate * g) / np.sqrt(a)
    else:
        w -= (learning_rate * g) * (F(1) / np.sqrt(a))


@_rule("adagrad")
def _adagrad(w, s, g, learning_rate):
    _adagrad_step(w, s["accumulator"], g, learning_rate)


@_rule("adagrad_epsilon")
def _adagrad_epsilon(w, s, g, learning_rate, epsilon):
    a = s["accumulator"]
    a += g * g
    w -= (learning_rate * g) / (np.sqrt(a) + epsilon)


@_rule("adagrad_decay", "adagrad_decay_v2")
def _adagrad_decay(
    w, s, g, learning_rate, decay_count, accumulator_decay_rate, accumulator_baseline
):
    a, power = s["accumulator"], s["accumulator_decay_power"]
    due = decay_count > power  # [n, 1]
    decayed = a * accumulator_decay_rate
    decayed = np.where(decayed < accumulator_baseline, accumulator_baseline, decayed)
    a[...] = np.where(due, decayed, a)
    power[...] = np.where(due, power + F(1), power)
    _adagrad_step(w, a, g, learning_rate)


def _bias_corrected(learning_rate, beta1_power, beta2_power):
    return learning_rate * np.sqrt(F(1) - beta2_power) / (F(1) - beta1_power)


def _moments(s, g, beta1, beta2):
    m, v = s["m"], s["v"]
    m[...] = m * beta1 + g * (F(1) - beta1)
    v[...] = v * beta2 + g * (g * (F(1) - beta2))
    return m, v


@_rule("adam")
def _adam(w, s, g, learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power):
    m, v = _moments(s, g, beta1, beta2)
    w -= (_bias_corrected(learning_rate, beta1_power, beta2_power) * m) / (np.sqrt(v) + epsilon)


@_rule("adam_async")
def _adam_async(
    w, s, g, learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power, apply_sparse_rmsprop
):
    if not apply_sparse_rmsprop:
        _adam(w, s, g, learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power)
        return
    m, v = s["m"], s["v"]
    v[...] = v * beta2 + g * (g * (F(1) - beta2))
    m[...] = m * beta1 + ((F(1) / np.sqrt(v + epsilon)) * learning_rate) * g
    w -= m


@_rule("adamw")
def _adamw(w, s, g, learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power, weight_decay):
    m, v = _moments(s, g, beta1, beta2)
    w -= (m / (np.sqrt(v) + epsilon) + weight_decay * w) * _bias_corrected(
        learning_rate, beta1_power, beta2_power
    )


@_rule("adam_amsgrad")
def _adam_amsgrad(w, s, g, learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power):
    m, v = _moments(s, g, beta1, beta2)
    v_max = s["v_max"]
    v_max[...] = np.maximum(v_max, v)
    alpha = _bias_corrected(learning_rate, beta1_power, beta2_power)
    w -= (alpha * m) / (np.sqrt(v_max) + epsilon)


@_rule("nadam")
def _nadam(
    w,
    s,
    g,
    learning_rate,
    beta1,
    beta2,
    epsilon,
    beta2_power,
    momentum,
    momentum_next,
    momentum_product,
):
    m, v = _moments(s, g, beta1, beta2)
    of_moment = momentum_next / (F(1) - momentum_product * momentum_next)
    of_gradient = (F(1) - momentum) / (F(1) - momentum_product)
    ahead = of_moment * m + of_gradient * g
    w -= (learning_rate * ahead) / (np.sqrt(v / (F(1) - beta2_power)) + epsilon)


@_rule("adamax")
def _adamax(w, s, g, learning_rate, beta1, beta2, epsilon, beta1_power):
    m, u = s["m"], s["u"]
    m[...] = m * beta1 + g * (F(1) - beta1)
    u[...] = np.maximum(u * beta2, np.abs(g))
    w -= ((learning_rate / (F(1) - beta1_power)) * m) / (u + epsilon)


@_rule("lion")
def _lion(w, s, g, learning_rate, beta1, beta2):
    m = s["m"]
    w -= learning_rate * np.sign(m * beta1 + g * (F(1) - beta1))
    m[...] = m * beta2 + g * (F(1) - beta2)


@_rule("rmsprop")
def _rmsprop(w, s, g, learning_rate, decay, momentum, epsilon):
    ms, mom = s["rms"], s["momentum"]
    ms[...] = ms * decay + (g * g) * (F(1) - decay)
    mom[...] = mom * momentum + ((F(1) / np.sqrt(ms + epsilon)) * learning_rate) * g
    w -= mom


@_rule("centered_rmsprop")
def _centered_rmsprop(w, s, g, learning_rate, decay, momentum, epsilon):
    ms, mg, mom = s["rms"], s["mg"], s["momentum"]
    ms[...] = ms * decay + (g * g) * (F(1) - decay)
    mg[...] = mg * decay + g * (F(1) - decay)
    mom[...] = mom * momentum + ((F(1) / np.sqrt((ms + epsilon) - mg * mg)) * learning_rate) * g
    w -= mom


_LOG2_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_SQRT_2 = 1.4142135623730951
_MAGIC = 6755399441055744.0  # 1.5 x 2^52: adding it rounds a float64 to an integer, in its low bits


def _horner(x, coefficients):
    p = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = p * x + c
    return p


@np.errstate(all="ignore")
def power(x, p):
    """x ** p of float32 x and a scalar p >= 0, as cc/optimizer/power.h writes it out: one rounding, at the end."""
    x = np.asarray(x, F).astype(np.float64)
    p = np.float64(F(p))
    bits = x.view(np.int64)
    mantissa = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)  # [1, 2)
    exponent = ((bits >> 52) - 1023).astype(np.float64)
    high = mantissa > _SQRT_2
    mantissa = np.where(high, mantissa * 0.5, mantissa)
    exponent = np.where(high, exponent + 1.0, exponent)
    z = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner(z * z, [1.0 / (2 * k + 1) for k in range(9, -1, -1)])
    log2 = exponent + (z * series) * (2.0 * _LOG2_E)
    y = log2 * p
    y = np.where(y > 256.0, 256.0, np.where(y < -256.0, -256.0, y))
    shifted = y + _MAGIC
    fraction = (y - (shifted - _MAGIC)) * _LN_2
    factorials = np.cumprod([1.0] + list(range(1, 13)))
    scale = ((shifted.view(np.int64) + 1023) << 52).view(np.float64)
    result = (_horner(fraction, [1.0 / f for f in factorials[::-1]]) * scale).astype(F)
    result = np.where(x > 0, result, np.where(x == 0, F(0), F(np.nan)))
    result = np.where(x == np.inf, F(np.inf), result)
    return np.where(p == 0, F(1), result).astype(F)


@_rule("ftrl")
def _ftrl(w, s, g, learning_rate, learning_rate_power, l1, l2, l2_shrinkage):
    accum, linear = s["accum"], s["linear"]

    def root(x):
        return np.sqrt(x) if learning_rate_power == F(-0.5) else power(x, -learning_rate_power)

    new_accum = accum + g * g
    shrunk = g + (F(2) * l2_shrinkage) * w if l2_shrinkage > 0 else g
    new_root = root(new_accum)
    step = ((new_root - root(accum)) / learning_rate) * w
    linear[...] = (linear + shrunk) - step if w.shape[1] == 1 else linear + (shrunk - step)
    clipped = np.where(linear > l1, l1, linear)
    clipped = np.where(clipped < -l1, -l1, clipped)
    w[...] = (clipped - linear) / (new_root / learning_rate + F(2) * l2)
    accum[...] = new_accum


def row_sum(x):
    """[n, dim] -> [n, 1]: the engine's sum over a row, in 16 fixed lanes that are then added pairwise."""
    n, dim = x.shape
    lanes = np.zeros((n, 16), F)
    for first in range(0, dim, 16):
        width = min(16, dim - first)
        lanes[:, :width] += x[:, first : first + width]
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
    return lanes


@_rule("rowwise_adagrad")
def _rowwise_adagrad(w, s, g, learning_rate, epsilon):
    a = s["accumulator"]
    a += row_sum(g * g) / F(w.shape[1])
    w -= (learning_rate / (np.sqrt(a) + epsilon)) * g


@_rule("adadelta")
def _adadelta(w, s, g, learning_rate, rho, epsilon):
    accum, accum_update = s["accum"], s["accum_update"]
    accum[...] = accum * rho + (g * g) * (F(1) - rho)
    update = (np.sqrt(accum_update + epsilon) * (F(1) / np.sqrt(accum + epsilon))) * g
    w -= update * learning_rate
    accum_update[...] = accum_update * rho + (update * update) * (F(1) - rho)
