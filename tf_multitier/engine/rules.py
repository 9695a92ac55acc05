"""Update rules: their names, slots and hyperparameters."""

from __future__ import annotations

import dataclasses

from tf_multitier import _engine
from tf_multitier.engine import arguments


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule.

    Attributes:
      name: canonical name, as `Table.apply` takes it.
      slots: tuple of (name, per_row, default initial value); per_row slots have one element a row, others `dim`.
      hyperparameters: names of the scalars that every apply passes, in order.
    """

    name: str
    slots: tuple
    hyperparameters: tuple


def update_rules() -> dict:
    """All update rules: a dict from name to `Rule`."""
    return {
        name: Rule(name, tuple(entry["slots"]), tuple(entry["hyperparameters"]))
        for name, entry in _engine.update_rules().items()
    }


def rule_and_hyper(rule, hyper):
    """What `_engine.update_rules` says of a rule, and its hyperparameters in its order; ValueError where one is out of range."""
    rules = _engine.update_rules()
    if rule not in rules:
        raise ValueError(f"rule: expected one of {', '.join(sorted(rules))}; found {rule!r}")
    spec = rules[rule]
    hyper = dict(hyper or {})
    if sorted(hyper) != sorted(spec["hyperparameters"]):
        raise ValueError(f"hyper of {rule}: expected {spec['hyperparameters']}, found {sorted(hyper)}")
    values = [arguments.real(f"{name} of {rule}", hyper[name]) for name in spec["hyperparameters"]]
    _engine.check_hyper(rule, values)
    return spec, values
