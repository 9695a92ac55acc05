"""CollectiveStrategy: one ordinary program in each process, whose embedding variables are divided by whole keys.

strategy = tf_multitier.distribute.CollectiveStrategy()    # before anything else of TensorFlow
with strategy.scope():
    table = tf_multitier.get_embedding_variable("user", 16)
...
grads = strategy.reduce_gradients(tape.gradient(loss, variables))
"""

from __future__ import annotations

import os
import typing

import tensorflow as tf

from tf_multitier.distribute import reduced
from tf_multitier.distribute import sessions
from tf_multitier.distribute import world as worlds

# What schedulers set in each of several processes: {variable: what the resolver is}.
_SCHEDULERS = {
    "SLURM_NTASKS": "tf.distribute.cluster_resolver.SlurmClusterResolver()",
    "OMPI_COMM_WORLD_SIZE": "a resolver of tf.distribute.cluster_resolver, or TF_CONFIG",
    "PMI_SIZE": "a resolver of tf.distribute.cluster_resolver, or TF_CONFIG",
    "HOROVOD_SIZE": "a resolver of tf.distribute.cluster_resolver, or TF_CONFIG",
}


def _resolver_of_environment():
    if os.environ.get("TF_CONFIG"):
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    for name, resolver in _SCHEDULERS.items():
        if os.environ.get(name, "1") not in ("", "0", "1"):
            raise ValueError(
                f"CollectiveStrategy: cluster_resolver: expected one where {name}={os.environ[name]} says that there are several "
                f"processes, found None: pass {resolver}"
            )
    return None


class CollectiveStrategy:
    """The processes that train together.

    Args:
      cluster_resolver: of tf.distribute.cluster_resolver. None: TF_CONFIG; without it, a world of one process.
      timeout: seconds that a step waits for the other processes.
    """

    def __init__(self, cluster_resolver: typing.Any = None, timeout: float = 60) -> None:
        resolver = cluster_resolver or _resolver_of_environment()
        jobs = {} if resolver is None else resolver.cluster_spec().as_dict()
        tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
        rank, devices, self._runtime = 0, [""], None
        if len(tasks) > 1:
            mine = resolver.task_type, resolver.task_id
            if mine not in tasks:
                raise ValueError(
                    f"CollectiveStrategy: task: expected chief or worker of the cluster, found {mine[0]} {mine[1]}"
                )
            rank = tasks.index(mine)
            devices = [f"/job:{job}/replica:0/task:{i}/device:CPU:0" for job, i in tasks]
            try:
                self._runtime = self._connected(resolver)
            except RuntimeError as error:
                raise RuntimeError(
                    f"CollectiveStrategy: expected to be made before anything else of TensorFlow runs, found: {error}"
                ) from error
        self._world = worlds.World(rank, len(devices), devices[rank], float(timeout), devices)
        worlds.connect(self._world)
        if len(tasks) > 1:
            sessions.connect(self._world, resolver)

    def _connected(self, resolver):
        """What keeps this process connected with the others."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            return tf.distribute.MultiWorkerMirroredStrategy(resolver)
        return sessions.server(resolver)

    def rank(self) -> int:
        """The number of this process."""
        return self._world.rank

    def world_size(self) -> int:
        """The number of processes."""
        return self._world.size

    def scope(self) -> typing.Any:
        """A context in which new embedding variables are divided among the processes by whole keys."""
        return worlds.scope(self._world)

    embedding_scope = scope

    def all_reduce(self, tensors: typing.Any, op: str = "sum") -> typing.Any:
        """The sums ("sum") or means ("mean") of float32 tensors, over the processes, in the structure of `tensors`."""
        if op not in ("sum", "mean"):
            raise ValueError(f"all_reduce: op: expected 'sum' or 'mean', found {op!r}")
        if self._world.size == 1:
            return tensors
        flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(tensors)]
        return tf.nest.pack_sequence_as(tensors, self._world.all_reduce(flat, op == "mean"))

    def barrier(self) -> None:
        """Waits until all processes are here."""
        self.all_reduce([tf.zeros([1])])

    def checkpoints(
        self, directory: str | os.PathLike, every: int, max_to_keep: int | None = 5
    ) -> typing.Any:
        """A Keras callback for `fit`, which saves the model and its optimizer every `every` batches and at the end.

            saves = strategy.checkpoints("/shared/run", every=1000)
            model.compile(strategy.optimizer("adam"), "mse")
            with strategy.scope():
                model(first_batch)              # makes the variables
            step = saves.restore(model)         # None where there is no checkpoint
            model.fit(batches, callbacks=[saves])

        One process restores such a checkpoint by `tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)`.

        Args:
          directory, max_to_keep: as of CheckpointManager.
          every: number of batches.
        """
        from tf_multitier.distribute import keras_checkpoints

        return keras_checkpoints.SaveCheckpoints(self, directory, every, max_to_keep)

    def export_saved_model(
        self, model: typing.Any, directory: str | os.PathLike
    ) -> typing.NoReturn:
        """NotImplementedError, which says how one process exports from a checkpoint."""
        raise NotImplementedError(
            f"export_saved_model to '{os.fspath(directory)}': expected one process, found a strategy: make the model without a strategy, "
            "restore the checkpoint by tf.train.Checkpoint(model=model).restore(path).expect_partial(), and call model.export"
        )

    def reduce_gradients(self, grads: typing.Any, op: str = "mean") -> list:
        """The gradients of the world: dense ones and those of rows alike.

        Args:
          grads: list of gradients of this process: tensors, IndexedSlices of divided embedding variables, or None.
          op: "mean": that of the processes' gradients; "sum": for losses that are sums.
        """
        if op not in ("sum", "mean"):
            raise ValueError(f"reduce_gradients: op: expected 'sum' or 'mean', found {op!r}")
        if self._world.size == 1:
            return list(grads)
        grads = list(grads)
        dense = [i for i, grad in enumerate(grads) if isinstance(grad, tf.Tensor)]
        for i, grad in zip(dense, self.all_reduce([grads[i] for i in dense], op) if dense else []):
            grads[i] = grad
        for i, grad in enumerate(grads):
            if isinstance(grad, (list, tuple)):
                grads[i] = [self._rows(each, op) for each in grad]
            elif isinstance(grad, tf.IndexedSlices):
                grads[i] = self._rows(grad, op)
        reduced.mark(grads)
        return grads

    def optimizer(self, optimizer: typing.Any, op: str = "mean") -> typing.Any:
        """An optimizer whose gradients are those of the world.

        Args:
          optimizer: of tf.compat.v1.train.
          op: see `reduce_gradients`.
        """
        if self._world.size == 1:
            return optimizer
        return sessions.WorldOptimizer(self, self._world, optimizer, op)

    def reduce_all(self) -> None:
        """From now on, all optimizers of tf.compat.v1.train use the gradients of the world: their mean over processes."""
        if self._world.size > 1:
            sessions.reduce_all(self, self._world)

    def clip_by_global_norm(self, grads: typing.Any, clip_norm: float) -> tuple:
        """`tf.clip_by_global_norm` of what `reduce_gradients` returned: (list of gradients, norm). The rows of all ranks count.

        Args:
          grads: list of float32 tensors, IndexedSlices of rows, or None.
          clip_norm: the largest norm.
        """
        squares = {True: [tf.zeros([])], False: [tf.zeros([])]}
        for grad in grads:
            is_rows = isinstance(grad, tf.IndexedSlices)
            if grad is not None:
                squares[is_rows].append(tf.reduce_sum((grad.values if is_rows else grad) ** 2))
        [of_rows] = self.all_reduce([tf.add_n(squares[True])])
        norm = tf.sqrt(of_rows + tf.add_n(squares[False]))
        return tf.clip_by_global_norm(grads, clip_norm, use_norm=norm)

    def broadcast(self, tensor: typing.Any) -> tf.Tensor:
        """The tensor of rank 0, whose shape is known and the same on all ranks."""
        tensor = tf.convert_to_tensor(tensor)
        return tensor if self._world.size == 1 else self._world.broadcast([tensor])[0]

    def broadcast_variables(self) -> tf.Operation:
        """An op of a v1 graph that gives its dense variables the values of rank 0. MonitoredTrainingSession runs it.

        In a tf.compat.v1.Session all ranks run it once: after initializers and restores, before the first step.
        """
        return sessions.broadcast_variables(self._world)

    def _rows(self, grad, op):
        """The home has summed the gradients of all processes."""
        if op == "sum" or grad is None:
            return grad
        return tf.IndexedSlices(grad.values / self._world.size, grad.indices, grad.dense_shape)
