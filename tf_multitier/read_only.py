"""Read-only embedding variables: what `tf_multitier.serving.read_only` switches on."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_inside = contextvars.ContextVar("tf_multitier_read_only", default=False)


def is_read_only() -> bool:
    """Whether embedding variables that are made now are read-only."""
    return _inside.get()


@contextlib.contextmanager
def read_only() -> Iterator[None]:
    """Makes the embedding variables that are created in the `with` block read-only, in any scope and by any feature column.

        with tf.Graph().as_default(), tf_multitier.serving.read_only():
            logits = model(features)

    A read-only variable is not in TRAINABLE_VARIABLES. Training it raises ValueError when the graph is built; in an imported graph,
    the update op fails with FailedPreconditionError. Removing rows fails in the same way. A restore reads keys, values, frequencies
    and versions, but no optimizer slots, and no keys that a filter has not admitted. All Sessions of a process that restore a
    variable with the same name and options from the same checkpoint share one table, so memory and files have its rows once. The
    table is deleted when the last of these Sessions is closed.
    """
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
