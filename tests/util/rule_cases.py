"""Every update rule with the optimizer of ours, and of stock TensorFlow where it has one, that trains by it."""

import collections

import numpy as np
import reference_rules
import tensorflow as tf

import tf_multitier
import worlds

F = np.float32

v1 = tf.compat.v1


def _adam_powers(step, beta1=0.9, beta2=0.999):
    """Beta powers before update number `step` (0 at first), multiplied up in float32 as TensorFlow does."""
    power1, power2 = F(beta1), F(beta2)
    for _ in range(step):
        power1, power2 = power1 * F(beta1), power2 * F(beta2)
    return dict(beta1_power=power1, beta2_power=power2)


def _adam_hyper(step):
    return dict(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8, **_adam_powers(step))


def _decay_hyper(step):
    return dict(
        learning_rate=0.1,
        decay_count=(step + 1) // 5,
        accumulator_decay_rate=0.5,
        accumulator_baseline=0.1,
    )


# make: function of the global step variable.
# ulp: allowed difference from TensorFlow after all steps, for (dense, sparse) lookups; 0 is bit for bit.
# packet: the difference comes from TensorFlow's packet code alone, so that rows shorter than a packet agree bit for bit.
# lazy: TensorFlow touches only the rows of the batch, as we do.
# alike: ordinary variables are trained by the same rule.
Case = collections.namedtuple(
    "Case", ["make", "rule", "hyper", "ulp", "packet", "lazy", "slots", "alike"]
)


def _case(make, rule, hyper, ulp=(0, 0), packet=False, lazy=True, slots=None, alike=True):
    return Case(
        make,
        rule,
        hyper if callable(hyper) else (lambda step: hyper),
        ulp,
        packet,
        lazy,
        slots or {},
        alike,
    )


CASES = {
    # TensorFlow adds the gradients of a repeated id to the value one after the other; we add their sum.
    "sgd": _case(
        lambda s: v1.train.GradientDescentOptimizer(0.1), "sgd", dict(learning_rate=0.1), ulp=(8, 0)
    ),
    "momentum": _case(
        lambda s: v1.train.MomentumOptimizer(0.1, 0.9),
        "momentum",
        dict(learning_rate=0.1, momentum=0.9, use_nesterov=0),
    ),
    "nesterov": _case(
        lambda s: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        "momentum",
        dict(learning_rate=0.1, momentum=0.9, use_nesterov=1),
    ),
    "adagrad": _case(
        lambda s: v1.train.AdagradOptimizer(0.1, 0.2),
        "adagrad",
        dict(learning_rate=0.1),
        ulp=(4, 4),
        packet=True,
        slots={"accumulator": 0.2},
    ),
    "adagrad_epsilon": _case(
        lambda s: worlds.AdagradWithEpsilon(0.1, 0.2),
        "adagrad_epsilon",
        dict(learning_rate=0.1, epsilon=1e-8),
        ulp=(4, 4),
        slots={"accumulator": 0.2},
    ),  # 1e-8 is less than a bit of its roots; from 0: test_tf2_optimizers.py
    "adam": _case(lambda s: v1.train.AdamOptimizer(0.01), "adam", _adam_hyper, lazy=False),
    "rmsprop": _case(
        lambda s: v1.train.RMSPropOptimizer(0.01, momentum=0.5, epsilon=1e-6),
        "rmsprop",
        dict(learning_rate=0.01, decay=0.9, momentum=0.5, epsilon=1e-6),
        ulp=(4, 4),
        packet=True,
    ),
    "centered_rmsprop": _case(
        lambda s: v1.train.RMSPropOptimizer(0.01, momentum=0.5, epsilon=1e-2, centered=True),
        "centered_rmsprop",
        dict(learning_rate=0.01, decay=0.9, momentum=0.5, epsilon=1e-2),
        ulp=(4, 4),
        packet=True,
    ),
    "ftrl": _case(
        lambda s: v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02
        ),
        "ftrl",
        dict(learning_rate=0.1, learning_rate_power=-0.5, l1=0.01, l2=0.02, l2_shrinkage=0),
    ),
    "ftrl_shrinkage": _case(
        lambda s: v1.train.FtrlOptimizer(
            0.1, l2_shrinkage_regularization_strength=0.03, initial_accumulator_value=0.3
        ),
        "ftrl",
        dict(learning_rate=0.1, learning_rate_power=-0.5, l1=0, l2=0, l2_shrinkage=0.03),
        slots={"accum": 0.3},
    ),
    "adadelta": _case(
        lambda s: v1.train.AdadeltaOptimizer(1.0, epsilon=1e-4),
        "adadelta",
        dict(learning_rate=1.0, rho=0.95, epsilon=1e-4),
        ulp=(4, 4),
        packet=True,
    ),
    # Ours: what they are compared with is their own code for ordinary variables, which TensorFlow's ops compute.
    "adagrad_decay": _case(
        lambda s: tf_multitier.train.AdagradDecayOptimizer(0.1, s, 0.1, 5, 0.5),
        "adagrad_decay",
        _decay_hyper,
        ulp=(4, 4),
    ),
    "adagrad_decay_v2": _case(
        lambda s: tf_multitier.train.AdagradDecayOptimizerV2(0.1, s, 0.1, 5, 0.5),
        "adagrad_decay_v2",
        _decay_hyper,
        ulp=(4, 4),
    ),
    "adam_async": _case(
        lambda s: tf_multitier.train.AdamAsyncOptimizer(0.01),
        "adam_async",
        lambda step: dict(_adam_hyper(step), apply_sparse_rmsprop=0),
    ),
    "adam_async_rmsprop": _case(
        lambda s: tf_multitier.train.AdamAsyncOptimizer(
            0.01, epsilon=1e-6, apply_sparse_rmsprop=True
        ),
        "adam_async",
        lambda step: dict(_adam_hyper(step), epsilon=1e-6, apply_sparse_rmsprop=1),
        ulp=(8, 8),
    ),
    "adamw": _case(
        lambda s: tf_multitier.train.AdamWOptimizer(0.01, 0.01),
        "adamw",
        lambda step: dict(_adam_hyper(step), weight_decay=0.01),
        alike=False,
    ),  # see test_adamw.py
    "rowwise_adagrad": _case(
        lambda s: tf_multitier.train.RowwiseAdagradOptimizer(0.1),
        "rowwise_adagrad",
        dict(learning_rate=0.1, epsilon=1e-8),
        ulp=(4, 4),
    ),
}


def reference_of(case, initial):
    """Rows 0 .. n - 1 that begin with `initial` [n, dim], trained by the NumPy rule."""
    return reference_rules.Rows(case.rule, dict(enumerate(initial)), case.hyper, case.slots)
