"""Adam for asynchronous training. Each variable has its own beta powers."""

from __future__ import annotations

import collections
import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.training import rules
from tf_multitier.train.v1_row_optimizer import V1RowOptimizer


class AdamAsyncOptimizer(V1RowOptimizer):
    """Adam with beta powers per variable, which advance with the updates of that variable.

    With TensorFlow's Adam, workers that train asynchronously share one pair of powers for all variables. The optimizer is lazy: rows
    that are not in a sparse gradient keep their value and moments. Source: DeepRec's `tf.train.AdamAsyncOptimizer`.

    Args:
      learning_rate, beta1, beta2, epsilon: as for `tf.compat.v1.train.AdamOptimizer`.
      apply_sparse_rmsprop: True: apply sparse gradients as RMSProp with momentum beta1 and decay beta2, without bias correction.
      use_locking: has no effect on embedding variables.
      name: name of the optimizer, used for its slots.
    """

    _RULE = "adam_async"

    def __init__(
        self,
        learning_rate: typing.Any = 0.001,
        beta1: typing.Any = 0.9,
        beta2: typing.Any = 0.999,
        epsilon: float = 1e-8,
        apply_sparse_rmsprop: bool = False,
        use_locking: bool = False,
        name: str = "AdamAsync",
    ) -> None:
        given = dict(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
        super().__init__(use_locking, name, **given)
        self._apply_sparse_rmsprop = boolean(
            "AdamAsyncOptimizer: apply_sparse_rmsprop", apply_sparse_rmsprop
        )

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        for var in var_list:
            for beta in ("beta1", "beta2"):
                name = self._power_name(var, f"{beta}_power")
                self._create_non_slot_variable(self._given[beta], name, colocate_with=var)

    @staticmethod
    def _power_name(var, name):
        """The name of a power. Partitions of an embedding variable share one pair, so their number may change at a restore."""
        return f"{getattr(var, 'variable_name', var.op.name)}/{name}"

    def _beta_powers(self, var):
        return [
            self._get_non_slot_variable(self._power_name(var, name), graph=var.graph)
            for name in ("beta1_power", "beta2_power")
        ]

    def _prepare(self):
        super()._prepare()
        self._trained = []

    def hyperparameters(self, var: typing.Any) -> list:
        self._trained.append(var)
        return [
            *self._tensors.values(),
            *self._beta_powers(var),
            1.0 if self._apply_sparse_rmsprop else 0.0,
        ]

    def _dense(self, grad, var):
        self._trained.append(var)
        self._rmsprop = False
        return super()._dense(grad, var)

    def _sparse(self, grad, var, indices):
        self._trained.append(var)
        self._rmsprop = self._apply_sparse_rmsprop
        return super()._sparse(grad, var, indices)

    def _update_rows(self, var, value, slots, grad):
        t = {name: tf.cast(tensor, grad.dtype) for name, tensor in self._tensors.items()}
        m, v = slots["m"], slots["v"]
        v = v * t["beta2"] + grad * (grad * (1 - t["beta2"]))
        if self._rmsprop:
            m = m * t["beta1"] + t["learning_rate"] / tf.sqrt(v + t["epsilon"]) * grad
            return value - m, {"m": m, "v": v}
        power1, power2 = (tf.cast(p, grad.dtype) for p in self._beta_powers(var))
        m = m * t["beta1"] + grad * (1 - t["beta1"])
        lr_t = t["learning_rate"] * tf.sqrt(1 - power2) / (1 - power1)
        return value - lr_t * m / (tf.sqrt(v) + t["epsilon"]), {"m": m, "v": v}

    def _finish(self, update_ops, name_scope):
        # update_ops are in the order of self._trained. The powers of a variable advance after its own updates.
        updates = collections.OrderedDict()
        for var, update in zip(self._trained, update_ops):
            updates.setdefault(self._power_name(var, ""), (var, []))[1].append(update)
        advances = []
        for var, its_updates in updates.values():
            with tf.control_dependencies(its_updates), colocate_with(var):
                for power, beta in zip(self._beta_powers(var), ("beta1", "beta2")):
                    advances.append(
                        power.assign(power * self._tensors[beta], use_locking=self._use_locking)
                    )
        return tf.group(*update_ops, *advances, name=name_scope)


rules.register_rule(AdamAsyncOptimizer)(AdamAsyncOptimizer._binding)
