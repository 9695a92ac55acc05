"""The callback by which `fit` saves the checkpoints of a world."""

from __future__ import annotations

import os
import typing

import keras
import tensorflow as tf

from tf_multitier.distribute import checkpoints


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves the model and its optimizer every `every` batches, and at the end of `fit`. See CollectiveStrategy.checkpoints."""

    def __init__(
        self,
        strategy: typing.Any,
        directory: str | os.PathLike,
        every: int,
        max_to_keep: int | None,
        max_deltas: int = 0,
    ) -> None:
        checkpoints.check_directory("checkpoints", directory)
        if every < 1:
            raise ValueError(f"checkpoints: every: expected at least 1 batch, found {every}")
        super().__init__()
        self._strategy, self._directory = strategy, directory
        self._every, self._kept = every, (max_to_keep, max_deltas)
        self._of: typing.Any = None  # the model and optimizer of the manager
        self._saved = 0  # the step of the newest checkpoint

    def restore(self, model: typing.Any) -> int | None:
        """Restores the newest checkpoint into a compiled and built model and its optimizer. All processes call it.

        Returns:
          The number of batches that the optimizer has trained; None where there is no checkpoint.

        Raises:
          ValueError: the model is not compiled, or not built.
          As CheckpointManager.restore.
        """
        self._manage(model)
        if not model.built:
            raise ValueError(
                f"checkpoints of model '{model.name}': restore: expected a model that is built, found one without its variables: call it "
                "on a batch in `with strategy.scope():`, in all processes"
            )
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)  # so that its variables are restored
        if self._manager.restore() is None:
            return None
        self._saved = self._step()
        return self._saved

    @property
    def latest_checkpoint(self) -> str | None:
        """The prefix of the newest checkpoint in the directory, or None."""
        return tf.train.latest_checkpoint(os.fspath(self._directory))

    def on_train_begin(self, logs: typing.Any = None) -> None:
        """Makes the manager. Does not restore."""
        self._manage(self.model)
        self._saved = self._step()

    def on_train_batch_end(self, batch: int, logs: typing.Any = None) -> None:
        """Saves if `every` batches have been trained."""
        if self._step() // self._every > self._saved // self._every:
            self._save()

    def on_train_end(self, logs: typing.Any = None) -> None:
        """Saves what was trained since the last save."""
        if self._step() > self._saved:
            self._save()

    def _save(self):
        self._saved = self._step()
        self._manager.save(self._saved)

    def _step(self):
        return int(self._of[1].iterations.numpy())

    def _manage(self, model):
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            raise ValueError(
                f"checkpoints of model '{model.name}': expected a model that is compiled with an optimizer, found none: compile it, or "
                "save by tf_multitier.distribute.CheckpointManager"
            )
        if self._of != (model, optimizer):
            checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
            self._manager = checkpoints.CheckpointManager(
                self._strategy, checkpoint, self._directory, *self._kept
            )
            self._of = (model, optimizer)
