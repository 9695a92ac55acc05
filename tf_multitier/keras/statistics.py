"""StatisticsCallback: writes statistics of a model's tables to TensorBoard during `fit`."""

from __future__ import annotations

import os
import typing

import keras

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.variable.statistics import StatisticsWriter
from tf_multitier.keras import keras_versions
from tf_multitier.keras.rows import Rows


class StatisticsCallback(keras.callbacks.Callback):
    """Writes rows, bytes, hit rates, I/O and latencies of a model's tables and their tiers to TensorBoard.

    Values are those of `tf_multitier.StatisticsWriter`. Their step is the number of batches that were trained.

    Args:
      log_dir: directory of the event files.
      update_freq: "epoch", or a number of batches between two readings.
      per_table: False: only the values of all tables together.

    Raises:
      ValueError: update_freq is neither. When training begins: the model has no embedding variable.
    """

    def __init__(
        self, log_dir: str | os.PathLike, update_freq: str | int = "epoch", per_table: bool = True
    ) -> None:
        super().__init__()
        if update_freq != "epoch" and not (isinstance(update_freq, int) and update_freq > 0):
            raise ValueError(
                f"update_freq: expected 'epoch' or a number of batches, at least 1, found {update_freq!r}"
            )
        self._log_dir = log_dir
        self._update_freq = update_freq
        self._per_table = boolean("StatisticsCallback: per_table", per_table)
        self._batches = 0

    def set_model(self, model: typing.Any) -> None:
        """Keras calls this. TypeError for a model of Keras 2."""
        keras_versions.refuse("StatisticsCallback: model", model)
        super().set_model(model)

    def on_train_begin(self, logs: typing.Any = None) -> None:
        if not self._tables():
            raise ValueError(
                "StatisticsCallback: expected embedding variables in the model, found none"
            )
        self._writer = StatisticsWriter(self._log_dir, self._per_table)

    def on_train_batch_end(self, batch: int, logs: typing.Any = None) -> None:
        self._batches += 1
        if self._update_freq != "epoch" and self._batches % int(self._update_freq) == 0:
            self._write()

    def on_epoch_end(self, epoch: int, logs: typing.Any = None) -> None:
        if self._update_freq == "epoch":
            self._write()

    def on_train_end(self, logs: typing.Any = None) -> None:
        self._writer.close()

    def _tables(self):
        """{name: table}. A name that the model has twice gets a number."""
        rows = [v for v in self.model.variables if isinstance(v, Rows)]
        found: dict = {}
        for whole in {id(one.whole): one.whole for one in rows}.values():
            name, number = whole.variable_name, 0
            while name in found:
                number += 1
                name = f"{whole.variable_name}_{number}"
            found[name] = whole
        return found

    def _write(self):
        self._writer.write(self._batches, self._tables())
