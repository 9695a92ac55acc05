"""Checkpoints of what changed since the last one.

    model-1000                          a base: an ordinary checkpoint
    model-1000.delta-0001               embedding variables: rows that changed and keys removed since model-1000
    model-1000.delta-0002               ... since model-1000.delta-0001. Other variables: whole

A delta is a checkpoint of TensorFlow's format under a prefix of its own, with part files next to it
(docs/formats/table_part.md). Each part of a base has a random name, and each part of a delta has the name of the save that it
continues, so a missing or foreign delta is an error.
"""

from __future__ import annotations

import glob
import os
import typing

import tensorflow as tf

from tf_multitier._src.execution.graph_state import state_of
from tf_multitier._src.variable import saver as _saver
from tf_multitier._src.variable.delta_names import DELTA
from tf_multitier._src.variable.delta_names import deltas
from tf_multitier._src.variable.partitioned import embedding_variables

v1 = tf.compat.v1


def _remove(prefix):
    """Deletes the files of a delta, its index last: a delta without an index does not exist."""
    index = prefix + ".index"
    for path in [*glob.glob(glob.escape(prefix) + ".data-?????-of-?????"), index]:
        if os.path.exists(path):
            os.remove(path)


def _handles(var_list):
    """The names of the handles of the embedding variables that a Saver of `var_list` saves."""
    if var_list is None:
        var_list = embedding_variables()
    given = list(var_list.values() if isinstance(var_list, dict) else var_list)
    parts = []
    while given:
        one = given.pop()
        if isinstance(one, (list, tuple)):
            given += one
        else:
            parts += getattr(one, "parts", [])
    return {part.handle.name for part in parts}


class IncrementalSaver:
    """Saves all rows, and then only what changed.

    Time and size of a delta are proportional to the number of rows that changed. Variables other than embedding variables are
    written completely. From the first `save` on, tables track changes. This takes one bit for each row in DRAM, and about 40 bytes
    for each row that changed and then left DRAM or the table. If a shard (a table has up to 8) has more than 4 Mi such rows, the
    next save has all rows.

    The first save after a start or a restore has all rows, also if it is a call of `save_incremental`. So has the first save after
    one of another IncrementalSaver of the same variables, because tables know the changes since one save only.

    Create it after the optimizer, like tf.compat.v1.train.Saver. It belongs to the default graph of that time. Not thread-safe.
    """

    def __init__(
        self,
        var_list: typing.Any = None,
        max_to_keep: int = 5,
        max_deltas: int = 24,
        **kwargs: typing.Any,
    ) -> None:
        """Adds the ops of two Savers to the default graph.

        Args:
          var_list: as for tf.compat.v1.train.Saver.
          max_to_keep: number of bases to keep; a base is deleted with its deltas.
          max_deltas: number of deltas after which `save_incremental` saves all rows.
          **kwargs: further arguments of tf.compat.v1.train.Saver.

        Raises:
          ValueError: max_deltas < 1, or the graph has no embedding variables.
        """
        if max_deltas < 1:
            raise ValueError(
                f"IncrementalSaver: max_deltas: expected at least 1, found {max_deltas}"
            )
        if not embedding_variables():
            raise ValueError(
                "IncrementalSaver: expected embedding variables in the graph, found none"
            )
        self._max_deltas = max_deltas
        with _saver.kind_of_save("base"):
            self.saver = v1.train.Saver(var_list, max_to_keep=max_to_keep, **kwargs)
        with v1.name_scope("incremental_saver"):
            self._previous = v1.placeholder(tf.string, [], name="previous")
        with _saver.kind_of_save("delta", self._previous):
            self._delta = v1.train.Saver(var_list, **kwargs)
        self._tracked = state_of(v1.get_default_graph()).tracked_saves
        self._handles = _handles(var_list)
        self._last_save = 0
        self._base = None  # None: the next save has all rows
        self._deltas = 0

    @property
    def base(self) -> str | None:
        """The prefix of the checkpoint of all rows that the next delta continues; None if the next save has all rows."""
        return self._base

    @property
    def newest(self) -> str | None:
        """The prefix of the newest save that the next delta continues; None if the next save has all rows."""
        if self._base is None or self._deltas == 0:
            return self._base
        return f"{self._base}.delta-{self._deltas:04d}"

    def save(
        self,
        session: tf.compat.v1.Session,
        save_path: str,
        global_step: typing.Any = None,
        **kwargs: typing.Any,
    ) -> str:
        """Saves all rows, as `tf.compat.v1.train.Saver.save` does. The next `save_incremental` continues this one.

        Returns:
          The checkpoint's prefix.
        """
        self._base = None
        self._count_save()
        path = self.saver.save(session, save_path, global_step, **kwargs)
        for stale in glob.glob(
            os.path.join(glob.escape(os.path.dirname(path) or "."), "*.delta-*.index")
        ):
            match = DELTA.match(stale.removesuffix(".index"))
            if match and (
                not os.path.exists(match[1] + ".index")
                or os.path.abspath(match[1]) == os.path.abspath(path)
            ):
                _remove(match[0])
        self._base, self._deltas = path, 0
        return path

    def save_incremental(
        self, session: tf.compat.v1.Session, save_path: str, global_step: typing.Any = None
    ) -> str:
        """Saves what changed since the last save of this object.

        It saves all rows, under `save_path` and `global_step`, if there was no save, after max_deltas deltas, after a save that
        failed, and if the changes are not known: a variable was initialized, restored or cleared, too many rows changed, or another
        IncrementalSaver has saved.

        Returns:
          The prefix of the delta or checkpoint.
        """
        if self._base is None or self._deltas >= self._max_deltas:
            return self.save(session, save_path, global_step)
        if any(self._tracked[handle] != self._last_save for handle in self._handles):
            v1.logging.info(
                "all rows are saved: another IncrementalSaver has saved since %s", self.newest
            )
            return self.save(session, save_path, global_step)
        previous, base, number = self.newest, self._base, self._deltas + 1
        self._base = None
        self._count_save()
        try:
            path = self._delta.save(
                session, f"{base}.delta-{number:04d}", write_meta_graph=False, write_state=False
            )
        except tf.errors.FailedPreconditionError as error:
            v1.logging.info("all rows are saved: %s", error.message)
            return self.save(session, save_path, global_step)
        assert previous is not None
        self._base, self._deltas = base, number
        return path

    def _count_save(self):
        self._last_save = 1 + max(self._tracked.values(), default=0)
        self._tracked.update(dict.fromkeys(self._handles, self._last_save))

    def restore(self, session: tf.compat.v1.Session, path: str) -> None:
        """Restores a base and the deltas that continue it; or, given a delta, the base and the deltas up to that one.

        An ordinary Saver restores the same from the prefix of a delta. After an error each embedding variable is as it was, or as
        the chain has it.

        Raises:
          tf.errors.DataLossError: a delta is missing, damaged, or continues another save.
          ValueError: `path` is not a checkpoint, or it is a delta that is not there.
        """
        match = DELTA.match(path)
        base = match[1] if match else path
        chain = deltas(base)
        if match:
            if path not in chain:
                raise ValueError(f"IncrementalSaver.restore: expected delta {path}, found none")
            chain = chain[: chain.index(path) + 1]
        self._base = None
        self.saver.restore(session, chain[-1] if chain else base)

    def apply_deltas(self, session: tf.compat.v1.Session, base: str) -> None:
        """Brings variables that have just been restored from `base` to the newest delta that continues it.

        Each delta is checked before it changes a variable. After an error the variables may have the state of an earlier save
        of the chain: restore again.

        Raises: as `restore`.
        """
        chain = deltas(base)
        self._base = None
        for previous, delta in zip([base, *chain], chain):
            session.run(
                self._delta.saver_def.restore_op_name,
                {self._delta.saver_def.filename_tensor_name: delta, self._previous: previous},
            )
