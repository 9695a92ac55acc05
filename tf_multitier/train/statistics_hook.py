"""StatisticsHook: writes statistics of embedding variables to TensorBoard while a MonitoredTrainingSession trains."""

from __future__ import annotations

import os
import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.variable.partitioned import embedding_variables
from tf_multitier._src.variable.statistics import StatisticsWriter


class StatisticsHook(tf.compat.v1.train.SessionRunHook):
    """Writes rows, bytes, hit rates, I/O and latencies of embedding variables and their tiers to TensorBoard.

    A reading is taken with the session.run call of a step, at most once in the given number of steps or seconds. It takes each
    shard's lock for a moment. Values are those of `tf_multitier.StatisticsWriter`.

    Args:
      output_dir: directory of the event files.
      save_steps: steps between two readings. Default 100, unless `save_secs` is given.
      save_secs: seconds between two readings, in place of `save_steps`.
      variables: the embedding variables; by default all of the graph.
      per_variable: False: only the values of all variables together.

    Raises:
      ValueError: both `save_steps` and `save_secs`, or one that is not positive. In `begin`: the graph has no embedding variable.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike,
        save_steps: int | None = None,
        save_secs: float | None = None,
        variables: typing.Sequence[typing.Any] | None = None,
        per_variable: bool = True,
    ) -> None:
        if save_steps is None and save_secs is None:
            save_steps = 100
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_secs=save_secs, every_steps=save_steps
        )
        self._output_dir = output_dir
        self._variables = variables
        self._per_variable = boolean("StatisticsHook: per_variable", per_variable)
        self._stats: dict[str, typing.Any] = {}
        self._next = 0

    def begin(self) -> None:
        """Adds the ops that read the statistics to the graph."""
        self._timer.reset()
        self._step = tf.compat.v1.train.get_or_create_global_step()
        variables = embedding_variables() if self._variables is None else self._variables
        if not variables:
            raise ValueError(
                "StatisticsHook: expected embedding variables in the graph, found none"
            )
        self._stats = {variable.variable_name: variable.stats() for variable in variables}
        self._writer = StatisticsWriter(self._output_dir, self._per_variable)
        self._next = 0

    def before_run(self, run_context: typing.Any) -> tf.compat.v1.train.SessionRunArgs:
        """Reads the statistics with this step if they are due."""
        due = self._timer.should_trigger_for_step(self._next)
        return tf.compat.v1.train.SessionRunArgs(
            {"step": self._step, "stats": self._stats if due else {}}
        )

    def after_run(self, run_context: typing.Any, run_values: typing.Any) -> None:
        """Writes what was read."""
        results = run_values.results
        step = int(results["step"])
        self._next = step + 1
        if results["stats"]:
            self._timer.update_last_triggered_step(step)
            self._writer.write(step, results["stats"])

    def end(self, session: typing.Any) -> None:
        """Closes the event file."""
        self._writer.close()
