"""Adam with decoupled weight decay."""

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from tf_multitier import rules
from tf_multitier.train.row_optimizer import RowOptimizer


class AdamWOptimizer(RowOptimizer):
    """AdamW: `w -= lr_t * (m / (sqrt(v) + epsilon) + weight_decay * w)`. Source: DeepRec's `tf.train.AdamWOptimizer`.

    `lr_t` is Adam's bias-corrected learning rate. Lazy: rows that a sparse gradient does not name keep value and moments.

    Args:
      weight_decay: >= 0.
      learning_rate, beta1, beta2, epsilon: as of `tf.compat.v1.train.AdamOptimizer`.

    Raises:
      ValueError: for a negative weight_decay.
    """

    _SLOTS = (("m", False), ("v", False))

    def __init__(self, weight_decay, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, use_locking=False, name="AdamW"):
        if not callable(weight_decay) and not tf.is_tensor(weight_decay) and weight_decay < 0:
            raise ValueError(f"weight_decay must be at least 0, found {weight_decay}")
        super().__init__(use_locking, name)
        self._given = dict(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)
        self._beta1, self._beta2 = beta1, beta2

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda v: v.name)
        for name, value in (("beta1_power", self._beta1), ("beta2_power", self._beta2)):
            self._create_non_slot_variable(initial_value=value, name=name, colocate_with=first)
        super()._create_slots(var_list)

    def _beta_powers(self):
        graph = tf.compat.v1.get_default_graph()
        return [self._get_non_slot_variable(name, graph=graph) for name in ("beta1_power", "beta2_power")]

    def _prepare(self):
        self._tensors = {name: self._call_or_tensor(value, name) for name, value in self._given.items()}

    def _update_rows(self, var, value, slots, grad):
        t = {name: tf.cast(tensor, grad.dtype) for name, tensor in self._tensors.items()}
        power1, power2 = (tf.cast(p, grad.dtype) for p in self._beta_powers())
        lr_t = t["learning_rate"] * tf.sqrt(1 - power2) / (1 - power1)
        m = slots["m"] * t["beta1"] + grad * (1 - t["beta1"])
        v = slots["v"] * t["beta2"] + grad * (grad * (1 - t["beta2"]))
        value -= (m / (tf.sqrt(v) + t["epsilon"]) + t["weight_decay"] * value) * lr_t
        return value, {"m": m, "v": v}

    def _finish(self, update_ops, name_scope):
        with tf.control_dependencies(update_ops):
            powers = self._beta_powers()
            updates = []
            for power, beta in zip(powers, ("beta1", "beta2")):
                with tf_ops.colocate_with(power):
                    updates.append(power.assign(power * self._tensors[beta], use_locking=self._use_locking))
        return tf.group(*update_ops, *updates, name=name_scope)


@rules.register_rule(AdamWOptimizer)
def _binding(opt):
    order = ("learning_rate", "beta1", "beta2", "epsilon")
    slots = [rules.RowSlot("m", False, 0.0), rules.RowSlot("v", False, 0.0)]
    return rules.Binding("adamw", slots, lambda o, v: [*[o._tensors[n] for n in order], *o._beta_powers(),
                                                       o._tensors["weight_decay"]])
