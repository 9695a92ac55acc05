"""Checks of the values of options, and Option, the base class of all option objects."""

import inspect
import math
import numbers
import os
import typing

import numpy as np

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
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not is_finite(value):
        raise TypeError(f"{where}: expected a finite number, found {value!r}")
    return float(value)


def is_finite(number):
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float holds
        return False


def boolean(where, value, error=TypeError):
    """A bool, or 0 or 1. Other values are refused: the texts "no" and "False" would be true."""
    if not isinstance(value, (bool, np.bool_, int, np.integer)) or value not in (0, 1):
        raise error(f"{where}: expected True or False, found {value!r}")
    return bool(value)


def path_text(where, path):
    """A path as a str. ValueError unless it is text in UTF-8 without null characters, which TensorFlow and JSON can hold."""
    found = os.fsdecode(path)
    try:
        if found and b"\0" not in found.encode():
            return found
    except UnicodeEncodeError:
        pass
    raise ValueError(
        f"{where}: expected a path, as text in UTF-8 without null characters, found {path!r}"
    )


def did_you_mean(value, known):
    """The end of a message about an unknown name: ": did you mean 'DRAM'?" for 'dram', or "" if no known name is like it."""
    if not isinstance(value, str):
        return ""
    return _engine.did_you_mean(list(known), value.encode(errors="replace"))


def each_once(pairs):
    """The dict of an object of JSON, for json.loads(object_pairs_hook=). ValueError if it has a name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{again!r}: expected it once, found it twice: leave one of the two out")
    return found


def one_of(where, value, known):
    # A value of another type may have no hash, or compare element by element.
    if not isinstance(value, (str, int)) or value not in known:
        *names, last = map(repr, known)
        raise ValueError(
            f"{where}: expected {', '.join(names)} or {last}, found {value!r}{did_you_mean(value, known)}"
        )
    return value


def check_upsert(if_exists, repeats):
    """Checks what an upsert does with a key that has a row, and with one that is given twice."""
    for argument, found, expected in (
        ("if_exists", if_exists, ("replace", "keep", "error")),
        ("repeats", repeats, ("error", "last")),
    ):
        if found not in expected:
            hint = did_you_mean(found, expected)
            raise ValueError(f"{argument}: expected one of {expected}, found {found!r}{hint}")


def instance(where, value, classes):
    classes = classes if isinstance(classes, tuple) else (classes,)
    if not isinstance(value, classes):
        names = " or ".join(c.__name__ for c in classes)
        raise TypeError(f"{where}: expected {names} or None, found {value!r}")
    return value


def _arguments(option):
    """The arguments of the constructors of a class and of its bases, in order."""
    bases = [each for each in option.__mro__ if issubclass(each, Option) and each is not Option]
    return tuple(
        dict.fromkeys(name for each in bases for name in inspect.signature(each).parameters)
    )


class Option:
    """Base class: prints the fields, and compares objects by their fields, which are the constructor's arguments."""

    def __setattr__(self, name: str, value: typing.Any) -> None:
        """Sets a field. AttributeError if the constructor has no argument of that name, so that none is ignored."""
        known = _arguments(type(self))
        if name not in known:
            raise AttributeError(
                f"{type(self).__name__}: expected one of {', '.join(known) or 'no fields'}, found {name!r}"
                f"{did_you_mean(name, known)}"
            )
        super().__setattr__(name, value)

    def __repr__(self):
        fields = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
