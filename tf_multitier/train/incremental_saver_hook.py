"""IncrementalSaverHook: checkpoints and deltas while a MonitoredTrainingSession trains."""

from __future__ import annotations

import os

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.variable.delta_names import deltas
from tf_multitier.train.incremental_saver import IncrementalSaver

v1 = tf.compat.v1


class IncrementalSaverHook(tf.compat.v1.train.SessionRunHook):
    """Saves all rows at long intervals, and the changes at short ones. When the session starts, applies the deltas.

    Use it in place of the session's own checkpoints:

        hook = tf_multitier.train.IncrementalSaverHook(directory, save_secs=3600, save_incremental_secs=60)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=directory, save_checkpoint_secs=None, save_checkpoint_steps=None, hooks=[hook]
        ) as session: ...

    The session restores the newest checkpoint; then the hook applies the deltas that continue it. A save happens after a step,
    between two session.run calls of this session. When the session ends, the hook saves what changed. In a world of processes rank 0
    saves the parts of all; on other ranks the hook does nothing.

    Args:
      checkpoint_dir: directory of the checkpoints.
      save_secs, save_steps: seconds or steps between two checkpoints of all rows. Give one of the two.
      save_incremental_secs, save_incremental_steps: seconds or steps between two deltas. Give one of the two.
      checkpoint_basename: name of the checkpoints, followed by the step.
      max_to_keep, max_deltas: see IncrementalSaver.

    Raises:
      ValueError: not exactly one of secs and steps, or one that is not positive. In `begin`: the graph has no embedding variable.
        When the session starts: it has not restored the checkpoint that the deltas continue.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike,
        save_secs: float | None = None,
        save_steps: int | None = None,
        save_incremental_secs: float | None = None,
        save_incremental_steps: int | None = None,
        checkpoint_basename: str = "model.ckpt",
        max_to_keep: int = 5,
        max_deltas: int = 24,
    ) -> None:
        self._full = v1.train.SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._incremental = v1.train.SecondOrStepTimer(
            every_secs=save_incremental_secs, every_steps=save_incremental_steps
        )
        self._directory = os.fspath(checkpoint_dir)
        self._path = os.path.join(self._directory, checkpoint_basename)
        self._max_to_keep, self._max_deltas = max_to_keep, max_deltas

    def begin(self) -> None:
        """Adds the savers to the graph."""
        self._full.reset()
        self._incremental.reset()
        self._step = v1.train.get_or_create_global_step()
        self.saver = IncrementalSaver(
            max_to_keep=self._max_to_keep, max_deltas=self._max_deltas, save_relative_paths=True
        )
        graph, world = v1.get_default_graph(), worlds.connected()
        self._world = world if world is not None and world.is_used_in(graph) else None
        self._saves = self._world is None or self._world.rank == 0
        self._are_applied = False
        if self._world is not None and self._saves:
            graph_state.state_of(graph).before_broadcast.append(self._apply_deltas)

    def _apply_deltas(self, session):
        self._are_applied = True
        base = v1.train.latest_checkpoint(self._directory)
        if base is None or not deltas(base):
            return
        name, found = self._step.op.name, session.run(self._step)
        saved = tf.train.load_checkpoint(base).get_tensor(name)
        if found != saved:
            raise ValueError(
                f"IncrementalSaverHook: expected a session that has restored {base} with {name} {saved}, which the deltas continue, found one "
                f"with {name} {found}: give it checkpoint_dir={self._directory!r}"
            )
        self.saver.apply_deltas(session, base)

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Applies the deltas that continue the checkpoint which the session restored, unless that is done."""
        del coord
        tf.io.gfile.makedirs(self._directory)
        if self._world is None:
            self._apply_deltas(session)
        elif self._saves and not self._are_applied:
            raise ValueError(
                "IncrementalSaverHook: expected a session of tf.compat.v1.train.ChiefSessionCreator in a world of processes, found that of "
                "another creator, after which all ranks would not have the values of the deltas"
            )
        self._are_applied = False
        step = session.run(self._step)
        self._full.update_last_triggered_step(step)
        self._incremental.update_last_triggered_step(step)

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        """Asks for the global step."""
        del run_context
        return v1.train.SessionRunArgs(self._step)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Saves if it is time."""
        step = run_values.results + 1  # the step that was read may be the one before
        if not self._saves:
            return
        if self._full.should_trigger_for_step(step):
            self._save(run_context.session, full=True)
        elif self._incremental.should_trigger_for_step(step):
            self._save(run_context.session, full=False)

    def end(self, session: tf.compat.v1.Session) -> None:
        """Saves what changed since the last save."""
        if self._saves and session.run(self._step) != self._incremental.last_triggered_step():
            self._save(session, full=False)

    def _save(self, session, full):
        step = session.run(self._step)
        if full:
            path = self.saver.save(session, self._path, step)
        else:
            path = self.saver.save_incremental(session, self._path, step)
        if path == self.saver.base:
            self._full.update_last_triggered_step(step)
        self._incremental.update_last_triggered_step(step)
