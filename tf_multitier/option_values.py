"""Checks of the values of options, and Option, the base class of all option objects."""

import math
import numbers

from tf_multitier import _engine


def integer(where, value, minimum, maximum=2**63 - 1):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where}: expected an integer, found {value!r}")
    if not minimum <= value <= maximum:
        raise ValueError(
            f"{where}: expected at least {minimum}, found {value}"
            if value < minimum
            else f"{where}: expected at most {maximum}, found {value}"
        )
    return int(value)


def real(where, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise TypeError(f"{where}: expected a finite number, found {value!r}")
    return float(value)


def boolean(where, value):
    if not isinstance(value, bool):
        raise TypeError(f"{where}: expected True or False, found {value!r}")
    return value


def did_you_mean(value, known):
    """The end of a message about an unknown name: ": did you mean 'DRAM'?" for 'dram', or "" if no known name is like it."""
    if not isinstance(value, str):
        return ""
    return _engine.did_you_mean(list(known), value.encode(errors="replace"))


def one_of(where, value, known):
    if value not in known:
        *names, last = map(repr, known)
        raise ValueError(
            f"{where}: expected {', '.join(names)} or {last}, found {value!r}{did_you_mean(value, known)}"
        )
    return value


def instance(where, value, classes):
    classes = classes if isinstance(classes, tuple) else (classes,)
    if not isinstance(value, classes):
        names = " or ".join(c.__name__ for c in classes)
        raise TypeError(f"{where}: expected {names} or None, found {value!r}")
    return value


class Option:
    """Base class: prints the fields, and compares objects by their fields."""

    def __repr__(self):
        fields = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
