"""Update rules: their names, slots and hyperparameters."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing

from tf_multitier import _engine
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier.engine import arguments


class Slot(typing.NamedTuple):
    """A column of the rows that a rule needs: one element if `per_row`, else `dim`."""

    name: str
    per_row: bool
    initial_value: float


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule.

    Attributes:
      name: its name, for `Table.apply`.
      slots: tuple of (name, per_row, default initial value). A per_row slot has one element per row, other slots have `dim`.
      hyperparameters: tuple with the names of the hyperparameters of every apply, in order.
    """

    name: str
    slots: tuple
    hyperparameters: tuple


def update_rules() -> dict:
    """All update rules of the engine: a dict from name to `Rule`."""
    return {
        name: Rule(name, tuple(Slot(*s) for s in entry["slots"]), tuple(entry["hyperparameters"]))
        for name, entry in _engine.update_rules().items()
    }


# After the name of a rule, in this order: the rule with one more hyperparameter, and with one more slot.
DECAY, EMA = "+weight_decay", "+ema"
AVERAGE = Slot("average_offset", False, 0.0)  # the first slot with EMA: cc/optimizer/ema_rule.h


def rule_and_hyper(rule, hyper):
    """The entry of a rule in `_engine.update_rules`, and the values of its hyperparameters, in order.

    Raises:
      ValueError: an unknown rule, other hyperparameters than the rule's, or a value out of range.
    """
    rules = _engine.update_rules()
    decayed = rule.removesuffix(EMA) if isinstance(rule, str) else rule
    of = decayed.removesuffix(DECAY) if isinstance(rule, str) else rule
    if not isinstance(rule, str) or of not in rules:
        raise ValueError(
            f"rule: expected one of {', '.join(sorted(rules))}, or one of them with {DECAY}, then with {EMA}; found {rule!r}{did_you_mean(rule, rules)}"
        )
    spec = dict(rules[of])
    if of != decayed:
        spec["hyperparameters"] = [*spec["hyperparameters"], "weight_decay"]
    if decayed != rule:
        spec["hyperparameters"] = [*spec["hyperparameters"], "ema_momentum"]
        spec["slots"] = [tuple(AVERAGE), *spec["slots"]]
    hyper = {} if hyper is None else hyper
    if not isinstance(hyper, collections.abc.Mapping):
        raise ValueError(
            f"hyper of {rule}: expected a dict with {spec['hyperparameters']}, found {hyper!r}"
        )
    if set(hyper) != set(spec["hyperparameters"]):
        raise ValueError(
            f"hyper of {rule}: expected {spec['hyperparameters']}, found {list(hyper)}"
        )
    values = [arguments.real(f"{name} of {rule}", hyper[name]) for name in spec["hyperparameters"]]
    _engine.check_hyper(rule, values)
    return spec, values
