"""Read-only embedding variables: what `tf_multitier.serving.read_only` switches on."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from tf_multitier._src.options.option_values import boolean

_inside = contextvars.ContextVar("tf_multitier_read_only", default=False)
_in_place = contextvars.ContextVar("tf_multitier_in_place", default=False)


def is_read_only() -> bool:
    """Whether embedding variables that are made now are read-only."""
    return _inside.get()


def is_in_place() -> bool:
    """Whether embedding variables that are made now open kept rows in place."""
    return _in_place.get()


@contextlib.contextmanager
def read_only(*, in_place: bool = False) -> Iterator[None]:
    """Makes the embedding variables that are created in the `with` block read-only, in any scope and by any feature column.

        with tf.Graph().as_default(), tf_multitier.serving.read_only():
            logits = model(features)

    A read-only variable is not in TRAINABLE_VARIABLES. Training it raises ValueError when the graph is built; in an imported graph,
    the update op fails with FailedPreconditionError. Removing rows fails in the same way. A restore reads keys, values, frequencies
    and versions, but no optimizer slots, and no keys that a filter has not admitted. All Sessions of a process that restore a
    variable with the same name and options from the same checkpoint share one table, so memory and files have its rows once. The
    table is deleted when the last of these Sessions is closed.

    Args:
      in_place: True: variables with `StorageOption(keep=True)` read the rows that a training program has kept, where they are.
        Any number of processes can do so at the same time: the disk has one copy. They change no file and take no lock. The
        initializer opens the rows; a restore opens them if they are those of the checkpoint. Else, or if a process uses
        the rows or ended without closing them, both fail with FailedPreconditionError, and with DataLossError if files are
        missing or damaged. The storage type must have SSDHASH as its only tier with files; other ones raise
        UnimplementedError when the initializer runs. Other variables are made as with False.

    Raises:
      TypeError: `in_place` is not a bool.
    """
    in_place = boolean("read_only: in_place", in_place)
    tokens = _inside.set(True), _in_place.set(in_place)
    try:
        yield
    finally:
        _inside.reset(tokens[0])
        _in_place.reset(tokens[1])
