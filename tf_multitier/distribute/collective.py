"""CollectiveStrategy: one ordinary program in each process, whose embedding variables are divided by whole keys.

strategy = tf_multitier.distribute.CollectiveStrategy()    # before anything else of TensorFlow
with strategy.scope():
    table = tf_multitier.get_embedding_variable("user", 16)
...
grads = strategy.reduce_gradients(tape.gradient(loss, variables))
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import typing

import tensorflow as tf

from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier.distribute import sessions
from tf_multitier.distribute import world_data

# What schedulers set in each of several processes: {variable: what has the cluster}.
_SCHEDULERS = {
    "SLURM_NTASKS": "tf.distribute.cluster_resolver.SlurmClusterResolver()",
    **dict.fromkeys(
        ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"),
        "one of tf.distribute.cluster_resolver",
    ),
}


def _resolver_of_environment():
    if os.environ.get("TF_CONFIG"):
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    for name, resolver in _SCHEDULERS.items():
        if os.environ.get(name, "1") not in ("", "0", "1"):
            raise ValueError(
                f"CollectiveStrategy: cluster_resolver: expected one where {name}={os.environ[name]} says that there are several "
                f"processes, found None: pass {resolver}, give each process a TF_CONFIG, or start them by python3 -m tf_multitier.launch"
            )
    return None


@contextlib.contextmanager
def _signal_kept(number):
    """A context at whose end a signal does what it did before. TensorFlow takes SIGTERM, and does nothing."""
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


class CollectiveStrategy:
    """The processes that train together.

    An evaluator of the cluster is a world of one process, which restores the checkpoints of the others. SIGTERM does what it did before,
    though TensorFlow would take it.

    Args:
      cluster_resolver: of tf.distribute.cluster_resolver. None: TF_CONFIG; without it, a world of one process.
      timeout: seconds that a step waits for the other processes, at most 1e9.
    """

    def __init__(self, cluster_resolver: typing.Any = None, timeout: float = 60) -> None:
        world = worlds.connected()
        if world is not None and world.size > 1:
            raise RuntimeError(
                "CollectiveStrategy: expected one in a process, found a second: pass the first one on"
            )
        if not 0 < timeout <= 1e9:
            raise ValueError(
                f"CollectiveStrategy: timeout: expected more than 0 and at most 1e9 seconds, found {timeout}"
            )
        resolver = cluster_resolver or _resolver_of_environment()
        is_alone = resolver is None or resolver.task_type == "evaluator"
        jobs = {} if is_alone else resolver.cluster_spec().as_dict()
        tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
        rank, devices, self._runtime = 0, [""], None
        addresses = [jobs[job][i] for job, i in tasks]
        if len(tasks) > 1:
            mine = resolver.task_type, resolver.task_id
            if mine not in tasks:
                raise ValueError(
                    f"CollectiveStrategy: task: expected chief, worker or evaluator of the cluster, found {mine[0]} {mine[1]}"
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
        self._world.strategy, self._world.addresses = self, addresses
        self._said = False
        worlds.connect(self._world)
        if len(tasks) > 1:
            sessions.connect(self._world, resolver)
            if tf.compat.v1.executing_eagerly_outside_functions():
                from tf_multitier.distribute import keras_models

                keras_models.install()

    def _connected(self, resolver):
        """What keeps this process connected with the others."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            with _signal_kept(signal.SIGTERM):
                return tf.distribute.MultiWorkerMirroredStrategy(resolver)
        return sessions.server(resolver)

    def rank(self) -> int:
        """The number of this process."""
        return self._world.rank

    def world_size(self) -> int:
        """The number of processes."""
        return self._world.size

    @contextlib.contextmanager
    def scope(self) -> typing.Iterator[None]:
        """A context in which new embedding variables are divided among the processes by whole keys.

        At its end, the dense variables that were made in it get the values of rank 0. All processes make the same variables. Layers of
        Keras that are made in it, and built later, draw the same initial values in all processes.
        """
        made: list = []

        def creator(next_creator, **kwargs):
            made.append(next_creator(**kwargs))
            return made[-1]

        is_alone = self._world.size == 1 or not tf.executing_eagerly()
        with (
            worlds.scope(self._world),
            contextlib.nullcontext() if is_alone else self._same_seeds(),
            contextlib.nullcontext() if is_alone else tf.variable_creator_scope(creator),
        ):
            yield
        if made:
            self.broadcast_variables([v for v in made if isinstance(v, tf.Variable)])

    embedding_scope = scope

    @contextlib.contextmanager
    def _same_seeds(self):
        """A context in which layers of Keras draw the same seeds in all processes: they take them from Python's random numbers."""
        seed = self._world.bits_of_first(random.getrandbits(64))
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)

    def optimizer(self, optimizer: typing.Any, op: str = "mean") -> typing.Any:
        """An optimizer like `optimizer`, not yet used, which trains with the gradients of all processes.

        Its first step gives all processes the dense values of rank 0. Clipping is that of the gradients of the world. Learning rates stay
        as they are; a step of Keras' checks that all processes have the same.

        Args:
          optimizer: of keras.optimizers, or a name, for `Model.compile`. Where tf_multitier.keras.with_rows takes it, it trains rows too.
            Or one of tf_multitier.optimizers, for rows in loops of one's own. Or, in graphs of TensorFlow 1, of tf.compat.v1.train.
          op: "mean" or "sum", see `reduce_gradients`.

        Raises:
          NotImplementedError: a LossScaleOptimizer or MultiOptimizer, or one that trains no rows, see with_rows.
        """
        _check_op("optimizer", op)
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            if self._world.size == 1:
                return optimizer
            return sessions.WorldOptimizer(self, self._world, optimizer, op)
        from tf_multitier.distribute import keras_models
        from tf_multitier.distribute import keras_world

        keras_models.install()
        self._say(op)
        return keras_world.of_world(self, optimizer, op)

    def dataset(self, dataset: tf.data.Dataset, end: str = "all") -> tf.data.Dataset:
        """This process' batches, ended where the processes agree. All processes call it, and iterate, in the same order.

        Where a dataset does not know the number of its batches, the processes agree for eight batches at a time, which each reads ahead.
        Let it be the last of a pipeline: a prefetch() after it may wait for processes that have stopped in the middle.

        Args:
          dataset: batches. Their first dimension is that of the examples.
          end: "all": until all are out of data; a process that has none goes on with batches of no examples. "shortest": all stop with
            the first that is out of data.

        Raises:
          ValueError: elements without a dimension of examples.
        """
        return world_data.agreed(self._world, dataset, end)

    def all_reduce(self, tensors: typing.Any, op: str = "sum") -> typing.Any:
        """The sums ("sum") or means ("mean") of tensors, over the processes, in the structure of `tensors`.

        Raises:
          ValueError: a tensor whose shape is not known when the function is traced; or the mean of integers.
        """
        _check_op("all_reduce", op)
        return tensors if self._world.size == 1 else self._all_reduce(tensors, op)

    def _all_reduce(self, tensors, op, what=""):
        """See all_reduce. what: the same on all ranks."""
        flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(tensors)]
        by_type: dict = {}
        for i, tensor in enumerate(flat):
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"all_reduce: expected tensors of known shapes, found {tensor.shape}: use tf.ensure_shape(), for a gradient with "
                    "its variable's shape"
                )
            if op == "mean" and (tensor.dtype.is_integer or tensor.dtype.is_bool):
                raise ValueError(
                    f"all_reduce: op: expected 'sum' for {tensor.dtype.name}, found 'mean', which would be cut off: cast to float32"
                )
            by_type.setdefault(tensor.dtype, []).append(i)
        for places in by_type.values():
            found = self._world.all_reduce([flat[i] for i in places], op == "mean", what)
            for i, tensor in zip(places, found):
                flat[i] = tensor
        return tf.nest.pack_sequence_as(tensors, flat)

    def barrier(self) -> tf.Operation | None:
        """Waits until all processes are here. In a v1 graph it returns an op, which waits."""
        [reached] = self.all_reduce([tf.zeros([1])])
        return None if tf.compat.v1.executing_eagerly_outside_functions() else reached.op

    def checkpoints(
        self,
        directory: str | os.PathLike,
        every: int,
        max_to_keep: int | None = 5,
        max_deltas: int = 0,
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
          directory, max_to_keep, max_deltas: as of CheckpointManager.
          every: number of batches.
        """
        from tf_multitier.distribute import keras_checkpoints

        return keras_checkpoints.SaveCheckpoints(self, directory, every, max_to_keep, max_deltas)

    def export_saved_model(self, model: typing.Any, directory: str | os.PathLike) -> None:
        """Writes a model for serving, as `model.export` of Keras or `tf.saved_model.save` does in one process. All processes call it.

        Each process writes its rows. Rank 0 traces the model, and does not read them.

        Args:
          model: of Keras, built in `scope()`; or a tf.Module with tf.functions, as tf.saved_model.save takes it.
          directory: a new folder. All processes see its parent.

        Raises:
          NotImplementedError: an embedding variable was made outside of `scope()`.
          FileExistsError: the directory exists.
          tf.errors.DeadlineExceededError, tf.errors.AbortedError, ValueError: as CheckpointManager.save.
        """
        from tf_multitier.distribute import exporting

        exporting.export(self._world, model, os.path.abspath(directory))

    def reduce_gradients(
        self, grads: typing.Any, op: str = "mean", variables: typing.Any = None
    ) -> list:
        """The gradients of the world: dense ones and those of rows alike.

        Args:
          grads: list of gradients of this process: tensors, IndexedSlices of embedding variables or of dense ones, or None. The gradient
            of a divided variable is a list of that of its part, or the part's. IndexedSlices of dense variables become dense.
          op: "mean": that of the processes' gradients; "sum": for losses that are sums.
          variables: those of the gradients, in the same order. None: IndexedSlices tell by their shape whether they are of rows.

        Raises:
          TypeError: grads is a tensor, and no list.
          ValueError: a dense gradient whose shape is not known when the function is traced; IndexedSlices of unknown shape, without
            variables; or a gradient that is one of the world already.
        """
        _check_op("reduce_gradients", op)
        if isinstance(grads, (tf.Tensor, tf.IndexedSlices)):
            raise TypeError(
                f"reduce_gradients: grads: expected a list of gradients, found {type(grads).__name__}: put it in a list"
            )
        grads = list(grads)
        variables = [None] * len(grads) if variables is None else list(variables)
        if len(variables) != len(grads):
            raise ValueError(
                f"reduce_gradients: variables: expected {len(grads)}, one for each gradient, found {len(variables)}"
            )
        if self._world.size == 1:
            return grads
        for i, grad in enumerate(grads):
            for each in tf.nest.flatten(grad):
                reduced_gradients.check_new(f"reduce_gradients: gradient {i}", each)
        self._say(op)
        for i, (grad, variable) in enumerate(zip(grads, variables)):
            if isinstance(grad, tf.IndexedSlices) and not _is_of_rows(grad, variable):
                grads[i] = tf.convert_to_tensor(grad)
            if isinstance(grads[i], tf.Tensor) and variable is not None and not _has_rows(variable):
                grads[i] = tf.ensure_shape(grads[i], variable.shape)
        dense = [i for i, grad in enumerate(grads) if isinstance(grad, tf.Tensor)]
        which = repr(
            (len(grads), dense)
        )  # a gradient that one rank lacks is none of another variable
        for i, grad in zip(dense, self._all_reduce([grads[i] for i in dense], op, which)):
            grads[i] = grad
        for i, grad in enumerate(grads):
            if isinstance(grad, (list, tuple)):
                grads[i] = [self._rows(each, op) for each in grad]
            elif isinstance(grad, tf.IndexedSlices):
                grads[i] = self._rows(grad, op)
        reduced_gradients.mark(grads)
        return grads

    def reduce_all(self) -> None:
        """From now on, all optimizers of tf.compat.v1.train use the gradients of the world: their mean over processes."""
        if self._world.size > 1:
            sessions.reduce_all(self, self._world)

    def clip_by_global_norm(self, grads: typing.Any, clip_norm: float) -> tuple:
        """`tf.clip_by_global_norm` of what `reduce_gradients` returned: (list of gradients, norm). The rows of all ranks count.

        Args:
          grads: list of float32 tensors, IndexedSlices of rows, or None. That of a divided variable may be a list.
          clip_norm: the largest norm.
        """
        grads = list(grads)
        flat = tf.nest.flatten(grads)
        squares = {True: [tf.zeros([])], False: [tf.zeros([])]}
        for grad in flat:
            is_rows = isinstance(grad, tf.IndexedSlices)
            if grad is not None:
                squares[is_rows].append(tf.reduce_sum((grad.values if is_rows else grad) ** 2))
        [of_rows] = self.all_reduce([tf.add_n(squares[True])])
        norm = tf.sqrt(of_rows + tf.add_n(squares[False]))
        clipped, norm = tf.clip_by_global_norm(flat, clip_norm, use_norm=norm)
        if self._world.size > 1:
            for i, grad in enumerate(flat):
                if isinstance(grad, tf.IndexedSlices):
                    clipped[i] = reduced_gradients.with_values(grad, clipped[i].values)
            reduced_gradients.mark([grad for grad in clipped if isinstance(grad, tf.Tensor)])
        return tf.nest.pack_sequence_as(grads, clipped), norm

    def broadcast(self, tensor: typing.Any) -> tf.Tensor:
        """The tensor of rank 0, whose shape is known and the same on all ranks."""
        tensor = tf.convert_to_tensor(tensor)
        return tensor if self._world.size == 1 else self._world.broadcast([tensor])[0]

    def broadcast_variables(self, variables: typing.Any = None) -> tf.Operation | None:
        """Gives dense variables, on all ranks, the values of rank 0. All ranks call it.

        In a v1 graph it returns an op. MonitoredTrainingSession runs that of all dense variables; in a tf.compat.v1.Session all ranks
        run it once: after initializers and restores, before the first step.

        Args:
          variables: list of tf.Variables, or of weights of Keras. The same on all ranks, in the same order. None, in a v1 graph: all its
            dense variables.
        """
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return sessions.broadcast_variables(self._world, variables)
        if variables is None:
            raise ValueError(
                "broadcast_variables: variables: expected a list outside of graphs of TensorFlow 1, found None: pass the dense variables"
            )
        if self._world.size > 1:
            self._world.give_first(list(variables))
        return None

    def _rows(self, grad, op):
        """The home has summed the gradients of all processes."""
        if grad is None:
            return grad
        values = tf.identity(grad.values) if op == "sum" else grad.values / self._world.size
        return tf.IndexedSlices(values, tf.identity(grad.indices), grad.dense_shape)

    def _say(self, op):
        """Once, by rank 0: how gradients are reduced."""
        if self._world.rank == 0 and self._world.size > 1 and not self._said:
            self._said = True
            tf.get_logger().warning(
                "tf_multitier: gradients are the %s over %d processes; learning rates are unchanged",
                op,
                self._world.size,
            )


def _check_op(what, op):
    if op not in ("sum", "mean"):
        raise ValueError(f"{what}: op: expected 'sum' or 'mean', found {op!r}")


def _has_rows(variable):
    """Whether a variable, or weight of Keras, is an embedding variable. None is not."""
    return is_embedding_variable(getattr(variable, "embedding_variable", variable))


def _is_of_rows(grad, variable):
    """Whether IndexedSlices are the gradient of an embedding variable, whose dense shape is [0, dim]. variable: theirs, or None."""
    if variable is not None:
        return _has_rows(variable)
    shape = None if grad.dense_shape is None else tf.get_static_value(grad.dense_shape)
    if shape is None:
        raise ValueError(
            "reduce_gradients: expected IndexedSlices whose shape is known, found some of a function of their own: pass variables=, those "
            "of the gradients"
        )
    return int(shape[0]) == 0
