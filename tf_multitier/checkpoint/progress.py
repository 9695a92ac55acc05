"""A progress bar of running restores."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tqdm

from tf_multitier.process_state import ProcessState

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
        thread = threading.Thread(target=_follow, args=(bar, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _follow(bar, ended):
    state, seen = ProcessState(), {}
    while True:
        last = ended.wait(_SECONDS)
        running = {(r["variable"], r["checkpoint"]): r for r in state.read()["restores"]}
        seen = {
            key: (total, total) for key, (_, total) in seen.items()
        }  # those that are not listed any more have ended
        seen |= {key: (restore["done"], restore["total"]) for key, restore in running.items()}
        bar.total = sum(total for _, total in seen.values())
        bar.n = sum(done for done, _ in seen.values())
        bar.refresh()
        if last:
            state.close()
            return
