"""`tf.staged`: a part of the graph that threads run ahead of the training step.

    features = tf.staged(iterator.get_next(), capacity=2)
    ...
    with tf.train.MonitoredTrainingSession(hooks=[tf.make_prefetch_hook()]) as session:

The life of a stage:

1. `staged` puts a queue between the given tensors and the rest of the graph.
2. When a session is created, the hook starts the stage's threads. Each thread repeatedly runs the given tensors and enqueues them.
   Meanwhile the steps train on results from the queue. A stage does not affect results.
3. At the end of the data, the last thread closes the queue. The steps get the rest of the queue, then OutOfRangeError. After any
   other error, a thread stops the session's coordinator, and the waiting step raises that error.
4. Closing the session cancels the runs of the threads, and the threads end.

A stage does not prefetch embeddings. To read rows from a disk while the previous step trains, use
`tf_multitier.data.prefetch_embeddings` as the last stage of the input pipeline.

Threads: one thread makes a `_Stage`. Its threads share a lock for the feed generator and a count of running threads.
"""

import contextlib
import threading

import tensorflow as tf

from tf_multitier._src.execution.graph_state import state_of
from tf_multitier._src.tensorflow.internals import exception_type_from_error_code

STAGE = ("make_prefetch_hook", "prefetch_join", "staged")
TRAIN = ("mark_target_node",)

_v1 = tf.compat.v1
_END = (tf.errors.OutOfRangeError, tf.errors.CancelledError)
_CODES = 16  # TensorFlow numbers its errors from 1 to this
_KEY = "deeprec.stages"


def staged(
    features,
    feed_dict=None,
    capacity=1,
    num_threads=1,
    num_clients=1,
    timeout_millis=300000,
    closed_exception_types=_END,
    ignored_exception_types=(),
    use_stage_subgraph_thread_pool=False,
    stage_subgraph_thread_pool_id=0,
    stage_subgraph_stream_id=0,
    name=None,
    items=None,
    feed_generator=None,
):
    """Computes `features` ahead of their use, on threads that `tf.make_prefetch_hook()` starts. Source: DeepRec's `tf.staged`.

    Without the hook, a step waits for the features forever.

    Args:
      features: a Tensor, SparseTensor, RaggedTensor, or a structure of them. None in a structure stays None.
      feed_dict: {tensor: tensor}: in each run of `features`, the first tensor is fed with the value of the second.
      capacity: number of results in the queue, >= 1.
      num_threads: number of threads that run `features`, >= 1. With more than one, the order of the results may change.
      closed_exception_types: errors that mean the end of the data: exception classes, or their codes in `tf.errors`.
      ignored_exception_types: errors after which a thread continues with the next run.
      name: name scope of the operations.
      items: tensors or placeholders that are fed from `feed_generator`.
      feed_generator: a generator that yields one list of values for `items` per run, or a function that returns one. Its end is the
        end of the data.
      num_clients, timeout_millis, use_stage_subgraph_thread_pool, stage_subgraph_thread_pool_id, stage_subgraph_stream_id: have no
        effect. A thread waits while the queue is full.

    Returns:
      The structure of `features`, with tensors of the same dtypes and static shapes.

    Raises:
      TypeError, ValueError: a bad argument.
    """
    del (
        num_clients,
        timeout_millis,
        use_stage_subgraph_thread_pool,
        stage_subgraph_thread_pool_id,
        stage_subgraph_stream_id,
    )
    _check_integer("num_threads", num_threads)
    if (items is None) != (feed_generator is None):
        raise ValueError(
            f"tf.staged: expected both items and feed_generator or neither, found {items!r} and {feed_generator!r}"
        )
    stage = _Stage(name, [features], capacity, closed_exception_types, ignored_exception_types)
    generator = feed_generator() if callable(feed_generator) else feed_generator
    stage.runs = stage.enqueues * num_threads
    stage.feed = _Feed(feed_dict or {}, items or [], generator)
    return stage.next()


def prefetch_join(
    thread_to_features,
    feed_dict=None,
    capacity=1,
    num_clients=1,
    timeout_millis=300000,
    closed_exception_types=_END,
    ignored_exception_types=(),
    name=None,
):
    """`staged` with one thread for each structure in the list `thread_to_features`. All structures have the same dtypes.

    Raises:
      TypeError, ValueError: a bad argument.
    """
    del num_clients, timeout_millis
    if not isinstance(thread_to_features, (list, tuple)) or not thread_to_features:
        raise ValueError(
            f"tf.prefetch_join: thread_to_features: expected a list of at least one structure, found {thread_to_features!r}"
        )
    stage = _Stage(
        name, thread_to_features, capacity, closed_exception_types, ignored_exception_types
    )
    stage.runs = stage.enqueues
    stage.feed = _Feed(feed_dict or {}, [], None)
    return stage.next()


def make_prefetch_hook():
    """A session hook that starts the threads of all stages of the graph. The threads run until the session is closed."""
    return _PrefetchHook()


def mark_target_node(nodes):
    """DeepRec's hint where its smart stage ends. It has no effect: a stage consists of the tensors passed to `tf.staged`."""
    del nodes


def _check_integer(what, value):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"tf.staged: {what}: expected an integer, found {value!r}")
    if value < 1:
        raise ValueError(f"tf.staged: {what}: expected at least 1, found {value}")


def _error_classes(argument, given):
    """A tuple of exception classes from classes and error codes."""
    classes = []
    for error in given if isinstance(given, (list, tuple)) else [given]:
        if isinstance(error, type) and issubclass(error, Exception):
            classes.append(error)
        elif isinstance(error, int) and 1 <= error <= _CODES:
            classes.append(exception_type_from_error_code(error))
        else:
            raise TypeError(
                f"tf.staged: {argument}: expected exception classes or error codes of TensorFlow, found {error!r}"
            )
    return tuple(classes)


class _Stage:
    """One queue, and the operations that fill it.

    Attributes:
      runs: the enqueue operations, one per thread.
      feed: the _Feed of the runs.
      closed: exception classes that mean the end of the data.
      ignored: exception classes after which a thread continues.
    """

    def __init__(self, name, structures, capacity, closed, ignored):
        _check_integer("capacity", capacity)
        self.closed = _error_classes("closed_exception_types", closed)
        self.ignored = _error_classes("ignored_exception_types", ignored)
        self._structure = structures[0]
        all_tensors = [self._tensors(structure) for structure in structures]
        self._given = all_tensors[0]
        if not self._given:
            raise ValueError("tf.staged: features: expected at least one tensor, found none")
        dtypes = [tensor.dtype for tensor in self._given]
        for tensors in all_tensors[1:]:
            if [tensor.dtype for tensor in tensors] != dtypes:
                raise ValueError(
                    f"tf.prefetch_join: thread_to_features: expected the dtypes {dtypes} in each structure, found "
                    f"{[tensor.dtype for tensor in tensors]}"
                )
        with tf.name_scope(name or "prefetch"):
            self._queue = _v1.FIFOQueue(capacity, dtypes, name="buffer")
            self.enqueues = [self._queue.enqueue(tensors) for tensors in all_tensors]
            self.close = self._queue.close()
            self._is_closed = self._queue.is_closed()
            self._destroy = tf.raw_ops.DestroyResourceOp(
                resource=self._queue.queue_ref, ignore_lookup_error=True
            )
            taken = self._queue.dequeue(name="next")
        self._taken = taken if isinstance(taken, (list, tuple)) else [taken]
        state_of(_v1.get_default_graph()).shared.setdefault(_KEY, []).append(self)

    @staticmethod
    def _tensors(structure):
        """The tensors of a structure, including the component tensors of sparse and ragged tensors."""
        return [
            tf.convert_to_tensor(part)
            for part in tf.nest.flatten(structure, expand_composites=True)
            if part is not None
        ]

    def next(self):
        """The structure of the next result in the queue."""
        taken = list(zip(self._taken, self._given))
        for tensor, given in taken:
            tensor.set_shape(given.shape)
        parts = iter(tensor for tensor, _ in taken)
        flat = tf.nest.flatten(self._structure, expand_composites=True)
        return tf.nest.pack_sequence_as(
            self._structure,
            [None if part is None else next(parts) for part in flat],
            expand_composites=True,
        )

    def renew(self, session):
        """Drops a queue that an earlier session of the same server closed."""
        if session.run(self._is_closed):
            session.run(self._destroy)


class _Feed:
    """Computes the feed_dict of each run of a stage."""

    def __init__(self, feed_dict, items, generator):
        self._tensors = feed_dict
        self._items = items
        self._generator = generator
        self._lock = threading.Lock()  # guards _generator

    def next(self, session):
        """The feed_dict of the next run. OutOfRangeError at the end of the generator."""
        feed = {}
        if self._tensors:
            feed = dict(zip(self._tensors, session.run(list(self._tensors.values()))))
        if self._items:
            with self._lock:
                values = next(self._generator, None)
            if values is None:
                raise tf.errors.OutOfRangeError(
                    None, None, "tf.staged: feed_generator is at its end"
                )
            feed.update(zip(self._items, values, strict=True))
        return feed


class _Threads:
    """The threads of one stage in one session."""

    def __init__(self, stage, session, coordinator):
        self._stage, self._session, self._coordinator = stage, session, coordinator
        self._lock = threading.Lock()  # guards _live
        self._live = 0

    def start(self):
        """RuntimeError where a thread cannot start: the stage then ends, and a step that waits for it gets OutOfRangeError."""
        threads = [
            threading.Thread(target=self._run, args=(enqueue,), name="tf.staged", daemon=True)
            for enqueue in self._stage.runs
        ]
        self._live = len(threads)
        for number, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError as error:
                self._coordinator.request_stop(error)
                self._ended(len(threads) - number)
                raise

    def _ended(self, count):
        """Takes `count` threads off those that run. The last one closes the queue."""
        with self._lock:
            self._live -= count
            last = not self._live
        if last or self._coordinator.should_stop():
            self._close()

    def _run(self, enqueue):
        try:
            self._enqueue_until_the_end(enqueue)
        except Exception as error:  # noqa: BLE001  the step that waits raises it
            if not self._coordinator.should_stop():
                self._coordinator.request_stop(error)
        self._ended(1)

    def _enqueue_until_the_end(self, enqueue):
        stage = self._stage
        while not self._coordinator.should_stop():
            try:
                self._session.run(enqueue, stage.feed.next(self._session))
            except stage.closed:
                return
            except stage.ignored:
                continue

    def _close(self):
        """Closes the queue. The steps get the rest of the queue, then OutOfRangeError."""
        with contextlib.suppress(
            tf.errors.OpError, RuntimeError
        ):  # the session is closed: no step waits
            self._session.run(self._stage.close)


class _PrefetchHook(_v1.train.SessionRunHook):
    """Starts the threads of all stages of the graph when a session is created, also when it is created again after a failure."""

    def after_create_session(self, session, coord):
        for stage in state_of(session.graph).shared.get(_KEY, ()):
            stage.renew(session)
            _Threads(stage, session, coord).start()
