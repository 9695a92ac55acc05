"""A progress bar of running restores."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tqdm

from tf_multitier._src.variable.process_state import ProcessState

_SECONDS = 0.2  # between two looks


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Shows the progress of the restores of embedding variables in the `with` block, if standard error is a terminal.

        with tf_multitier.checkpoint.progress():
            saver.restore(session, prefix)

    The bar counts the rows that are read. A restore whose rows do not fit into the first tier reads them three times.
    Without this function, a restore that takes longer than ten seconds logs its progress with TensorFlow.
    """
    ended = threading.Event()
    with tqdm.tqdm(desc="restore", unit=" rows", unit_scale=True, disable=None) as bar:
        if bar.disable:
            yield
            return
        state = ProcessState()
        before = state.read()["restored_rows"]["done"]
        thread = threading.Thread(target=_follow, args=(bar, state, before, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            state.close()


def _follow(bar, state, before, ended):
    last = False
    while not last:
        last = ended.wait(_SECONDS)
        rows = state.read()["restored_rows"]
        bar.total, bar.n = rows["total"] - before, rows["done"] - before
        bar.refresh()
