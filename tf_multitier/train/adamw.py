"""Adam with decoupled weight decay."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import PartitionedVariable
from tf_multitier._src.training import rules
from tf_multitier.train.v1_row_optimizer import V1RowOptimizer


def _parts(variable):
    """The parts of a partitioned variable, ordinary or embedding. Empty for other variables."""
    if isinstance(variable, PartitionedVariable):
        return list(variable)
    return getattr(variable, "parts", ())


class AdamWOptimizer(V1RowOptimizer):
    """Adam with decoupled weight decay. Source: DeepRec's `tf.train.AdamWOptimizer`.

    As in DeepRec, embedding variables and ordinary variables decay differently:

        embedding variables   w -= lr_t * (m / (sqrt(v) + epsilon) + weight_decay * w)
        ordinary variables    w -= weight_decay * w, then w -= lr_t * m / (sqrt(v) + epsilon)

    `lr_t` is Adam's bias-corrected learning rate. It does not scale the decay of ordinary variables. The optimizer is lazy: rows
    that are not in a sparse gradient keep their value and moments, and do not decay.

    `minimize` and `apply_gradients` take `decay_var_list`: the embedding and ordinary variables that decay, whole variables or
    parts. None: all variables decay. An empty list: no variable decays.

    Args:
      weight_decay: a number >= 0, tensor or callable.
      learning_rate, beta1, beta2, epsilon: as for `tf.compat.v1.train.AdamOptimizer`.
      use_locking: has no effect on embedding variables.
      name: name of the optimizer, used for its slots.

    Raises:
      ValueError: weight_decay is negative.
    """

    _RULE = "adamw"

    def __init__(
        self,
        weight_decay: typing.Any,
        learning_rate: typing.Any = 0.001,
        beta1: typing.Any = 0.9,
        beta2: typing.Any = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        if not callable(weight_decay) and not tf.is_tensor(weight_decay) and weight_decay < 0:
            raise ValueError(f"weight_decay: expected at least 0, found {weight_decay}")
        given = dict(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
        super().__init__(use_locking, name, **given, weight_decay=weight_decay)
        self._decay_var_list: typing.Any = None
        self._decaying: set[int] | None = None

    def minimize(
        self,
        loss: typing.Any,
        global_step: typing.Any = None,
        var_list: typing.Any = None,
        gate_gradients: int = tf.compat.v1.train.Optimizer.GATE_OP,
        aggregation_method: typing.Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: typing.Any = None,
        decay_var_list: typing.Any = None,
    ) -> tf.Operation:
        """TensorFlow's `minimize`, with a list of the variables that decay (None: all)."""
        self._decay_var_list = decay_var_list
        try:
            return super().minimize(
                loss,
                global_step,
                var_list,
                gate_gradients,
                aggregation_method,
                colocate_gradients_with_ops,
                name,
                grad_loss,
            )
        finally:
            self._decay_var_list = None

    def apply_gradients(
        self,
        grads_and_vars: typing.Any,
        global_step: typing.Any = None,
        name: str | None = None,
        decay_var_list: typing.Any = None,
    ) -> tf.Operation:
        """TensorFlow's `apply_gradients`, with a list of the variables that decay (None: all)."""
        chosen = self._decay_var_list if decay_var_list is None else decay_var_list
        self._decaying = (
            None
            if chosen is None
            else {id(part) for variable in chosen for part in (variable, *_parts(variable))}
        )
        return super().apply_gradients(grads_and_vars, global_step, name)

    def weight_decay_of(self, var: typing.Any) -> typing.Any:
        """The decay of a variable, as a tensor or number: 0 if it is not in the list of variables that decay."""
        decays = self._decaying is None or id(var) in self._decaying
        return self._tensors["weight_decay"] if decays else 0.0

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda v: v.name)
        for beta in ("beta1", "beta2"):
            self._create_non_slot_variable(self._given[beta], f"{beta}_power", colocate_with=first)
        super()._create_slots(var_list)

    def _beta_powers(self):
        graph = tf.compat.v1.get_default_graph()
        return [
            self._get_non_slot_variable(name, graph=graph)
            for name in ("beta1_power", "beta2_power")
        ]

    def hyperparameters(self, var: typing.Any) -> list:
        order = ("learning_rate", "beta1", "beta2", "epsilon")
        return [
            *[self._tensors[name] for name in order],
            *self._beta_powers(),
            self.weight_decay_of(var),
        ]

    def _update_rows(self, var, value, slots, grad):
        t = {name: tf.cast(tensor, grad.dtype) for name, tensor in self._tensors.items()}
        power1, power2 = (tf.cast(p, grad.dtype) for p in self._beta_powers())
        lr_t = t["learning_rate"] * tf.sqrt(1 - power2) / (1 - power1)
        m = slots["m"] * t["beta1"] + grad * (1 - t["beta1"])
        v = slots["v"] * t["beta2"] + grad * (grad * (1 - t["beta2"]))
        value -= tf.cast(self.weight_decay_of(var), grad.dtype) * value
        return value - (lr_t * m) / (tf.sqrt(v) + t["epsilon"]), {"m": m, "v": v}

    def _finish(self, update_ops, name_scope):
        with tf.control_dependencies(update_ops):
            powers = self._beta_powers()
            updates = []
            for power, beta in zip(powers, ("beta1", "beta2")):
                with colocate_with(power):
                    updates.append(
                        power.assign(power * self._tensors[beta], use_locking=self._use_locking)
                    )
        return tf.group(*update_ops, *updates, name=name_scope)


rules.register_rule(AdamWOptimizer)(AdamWOptimizer._binding)
