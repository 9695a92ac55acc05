"""Maps an optimizer class to an update rule of the engine, with its slots and hyperparameters.

Names, slots and the order of hyperparameters are those of the engine's registry (cc/optimizer). The optimizer is read after its
`_create_slots` and `_prepare` ran. So hyperparameters are tensors, including learning-rate schedules and beta powers.
"""

import collections
import functools

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import optimizer_setting
from tf_multitier._src.tensorflow.internals import optimizer_tensors

# The rule of one optimizer instance.
#   rule: name of the engine's rule.
#   slots: list of engine.rules.Slot, in the rule's order.
#   hyper: function of (optimizer, variable) that returns the hyperparameters in the rule's order, as tensors or numbers.
Binding = collections.namedtuple("Binding", ["rule", "slots", "hyper"])

_BINDERS: dict = {}  # optimizer class -> function from an optimizer to its Binding

_OVERRIDES = (
    "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
    "_apply_sparse",
    "_apply_sparse_duplicate_indices",
)


def register_rule(optimizer_class):
    """A decorator that registers a function from an optimizer of that class to its Binding."""

    def register(binder):
        _BINDERS[optimizer_class] = binder
        return binder

    return register


def supported_optimizers():
    """The names of the optimizer classes that have a rule, sorted."""
    return sorted(c.__name__ for c in _BINDERS)


def find_binding(optimizer):
    """The Binding of an optimizer, or None if it has no rule.

    A subclass of a supported class has the same rule, unless it overrides how sparse gradients are applied.
    """
    for base in type(optimizer).__mro__:
        if base in _BINDERS:
            return _BINDERS[base](optimizer)
        if any(name in vars(base) for name in _OVERRIDES):
            break
    return None


def binding_of(optimizer, variable):
    """The Binding of an optimizer.

    Raises:
      NotImplementedError: the optimizer has no rule. The message names its class and the supported ones.
    """
    binding = find_binding(optimizer)
    if binding is None:
        raise NotImplementedError(
            f"embedding variable '{variable.variable_name}' cannot be trained by {type(optimizer).__name__}: it has no update "
            f"rule for embedding variables; supported: {', '.join(supported_optimizers())}"
        )
    return binding


@functools.cache
def _rules():
    from tf_multitier.engine.rules import update_rules  # late: it loads the engine

    return update_rules()


def slots_of(rule, initial_values):
    """The slots of a rule. initial_values: {slot: initial value}, of those that begin otherwise than the engine says."""
    return [
        slot._replace(initial_value=float(initial_values.get(slot.name, slot.initial_value)))
        for slot in _rules()[rule].slots
    ]


def bound(rule, hyper=None, **initial_values):
    """The Binding of a rule. hyper: None for a rule whose hyperparameters an optimizer of TensorFlow has as tensors."""
    hyper = hyper or (lambda o, v: optimizer_tensors(o, rule))
    return Binding(rule, slots_of(rule, initial_values), hyper)


_v1 = tf.compat.v1.train


@register_rule(_v1.GradientDescentOptimizer)
def _gradient_descent(opt):
    return bound("sgd")


@register_rule(_v1.MomentumOptimizer)
def _momentum(opt):
    nesterov = 1.0 if optimizer_setting(opt, "use_nesterov") else 0.0
    return bound("momentum", lambda o, v: [*optimizer_tensors(o, "momentum"), nesterov])


@register_rule(_v1.AdagradOptimizer)
def _adagrad(opt):
    return bound("adagrad", accumulator=optimizer_setting(opt, "initial_accumulator_value"))


@register_rule(_v1.AdamOptimizer)
def _adam(opt):
    return bound("adam")


@register_rule(_v1.RMSPropOptimizer)
def _rmsprop(opt):
    return bound("centered_rmsprop" if optimizer_setting(opt, "centered") else "rmsprop")


@register_rule(_v1.FtrlOptimizer)
def _ftrl(opt):
    return bound("ftrl", accum=optimizer_setting(opt, "initial_accumulator_value"))


@register_rule(_v1.AdadeltaOptimizer)
def _adadelta(opt):
    return bound("adadelta")
