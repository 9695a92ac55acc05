"""`tensorflow.python.ops.work_queue.WorkQueue`: all workers of a job take file names from one queue.

    queue = WorkQueue(["part0.csv", "part1.csv"], num_epochs=2)
    dataset = tf.data.TextLineDataset(queue.input_dataset())

A fast worker takes more files than a slow one, and no file is taken twice. The queue consists of two variables: the names of all
epochs, and minus the number of names that are left. To take a name, a worker increments the second variable atomically.
`tf.train.replica_device_setter` puts the variables on a parameter server. Workers share them by the queue's name.

Life: `tf.global_variables_initializer()` makes the queue, unless it is there: the init ops of a second worker take nothing back. Every
`tf.train.Saver` of the global variables saves it. A restore continues the queue if the works are the same; otherwise the queue starts
from the beginning. A name counts as taken at once. So a checkpoint does not contain the unread rest of files that were being read.
Source: DeepRec's class of that name.
"""

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import resource_variable_ops
from tf_multitier._src.tensorflow.internals import SaveableObject
from tf_multitier._src.tensorflow.internals import SaveSpec

_v1 = tf.compat.v1


class _MinusLeft(resource_variable_ops.ResourceVariable, SaveableObject):
    """Minus the number of works that are left. As a global variable, it makes, saves and restores the whole queue."""

    queue = None  # set by the queue

    @property
    def initializer(self):
        return self.queue.initializer

    @property
    def specs(self):
        return self.queue.specs

    def restore(self, restored_tensors, restored_shapes):
        del restored_shapes
        return self.queue.restore(*restored_tensors)


class WorkQueue:
    """A queue of works (names of files or tables) that the workers of a job share.

    Args:
      works: a list of strings.
      num_epochs: number of times that each work is taken, >= 1.
      shuffle: whether to shuffle each epoch.
      seed: an integer for the shuffling. None: another order each time, unless the graph has a seed.
      prefix: string that is put before each work that is taken.
      num_slices: has no effect. A work is a whole file.
      num_clients: has no effect. Any number of threads may take works.
      name: name of the queue. Workers share the queue by this name. It is made unique in the graph.
      local_work_mgr: must be None.

    Raises:
      TypeError, ValueError: a bad argument.
      NotImplementedError: local_work_mgr is given.
    """

    def __init__(
        self,
        works,
        num_epochs=1,
        shuffle=True,
        seed=None,
        prefix=None,
        num_slices=None,
        num_clients=1,
        name=None,
        local_work_mgr=None,
    ):
        del num_slices
        if local_work_mgr is not None:
            raise NotImplementedError(
                f"WorkQueue: local_work_mgr: expected None, found {local_work_mgr!r}: give several smaller files"
            )
        shuffle = boolean("WorkQueue: shuffle", shuffle)
        self._works = _checked_works(works)
        if isinstance(num_epochs, bool) or not hasattr(num_epochs, "__index__") or num_epochs < 1:
            raise ValueError(
                f"WorkQueue: num_epochs: expected an integer, at least 1, found {num_epochs!r}"
            )
        self._prefix = prefix
        self._num_clients = num_clients
        name = _v1.get_default_graph().unique_name(name or "work_queue", mark_as_used=False)
        self._local_device = tf.no_op(name=f"{name}/worker").device
        self._num_epochs, self._shuffle, self._seed = int(num_epochs), shuffle, seed
        self.name = name
        with _v1.variable_scope(None, default_name=name):
            self._names = self._variable(
                resource_variable_ops.ResourceVariable, "works", tf.zeros([0], tf.string), [None]
            )
            self._minus_left = self._variable(_MinusLeft, "minus_left", tf.zeros([], tf.int64), [])
        self._device = self._minus_left.device
        with tf.name_scope(f"{name}/state/"), tf.device(self._device):
            # _fill sets minus_left last.
            self.initializer = tf.group(
                tf.cond(
                    self._minus_left.is_initialized(),
                    tf.no_op,
                    lambda: self._fill(self._all_names()),
                )
            )
            left = self._names.read_value()[_size(self._names) + self._minus_left.read_value() :]
            self.specs = [
                SaveSpec(tf.constant(self.digest), "", f"{name}_digest"),
                SaveSpec(left, "", f"{name}_works"),
            ]
        self._minus_left.queue = self
        _v1.add_to_collection(_v1.GraphKeys.GLOBAL_VARIABLES, self._minus_left)

    def _all_names(self):
        """The works of all epochs, as strings [n], in a new order each time it runs."""
        works = tf.constant(self._works)
        if not self._shuffle:
            return tf.tile(works, [self._num_epochs])
        seeds = [
            None if self._seed is None else self._seed + epoch for epoch in range(self._num_epochs)
        ]
        return tf.concat([_v1.random_shuffle(works, seed) for seed in seeds], 0)

    @staticmethod
    def _variable(kind, name, value, shape):
        return kind(
            initial_value=value,
            trainable=False,
            collections=[],
            validate_shape=False,
            name=name,
            shape=shape,
        )

    def __len__(self):
        """The number of works of one epoch."""
        return len(self._works)

    @property
    def works(self):
        """The works, as bytes."""
        return list(self._works)

    @property
    def num_clients(self):
        return self._num_clients

    @property
    def digest(self):
        """Identifies the works in a checkpoint."""
        return b",".join(self._works)

    def take(self):
        """A string scalar: the next work, with the prefix. When run: OutOfRangeError if no work is left."""
        with tf.name_scope(f"{self.name}/take"):
            with tf.device(self._device):
                before = tf.raw_ops.ResourceCountUpTo(
                    resource=self._minus_left.handle, limit=0, T=tf.int64
                )
                work = self._names.sparse_read(_size(self._names) + before)
            with tf.device(self._local_device):
                work = tf.identity(work)
                return work if self._prefix is None else tf.strings.join([self._prefix, work])

    def input_producer(self):
        """A local FIFOQueue for readers: `tf.TextLineReader().read(queue.input_producer())`.

        Its queue runner takes one work ahead. MonitoredTrainingSession and tf.train.start_queue_runners start it.
        """
        with tf.name_scope(f"{self.name}/producer"), tf.device(self._local_device):
            proxy = _v1.FIFOQueue(1, [tf.string], [[1]], name="proxy")
            enqueue = proxy.enqueue(tf.reshape(self.take(), [1]))
            _v1.train.add_queue_runner(
                _v1.train.QueueRunner(proxy, [enqueue], proxy.close(cancel_pending_enqueues=True))
            )
            return proxy

    def input_dataset(self):
        """A Dataset of the works, as string scalars. It takes a work when the iterator needs it. The iterator must be initializable.

        If the queue is on another machine, the dataset reads from an `input_producer` of this worker.
        """
        if _same_task(self._device, self._local_device):
            next_work = self.take
        else:
            proxy = self.input_producer()
            next_work = lambda: tf.reshape(proxy.dequeue(), [])
        with tf.name_scope(f"{self.name}/dataset"), tf.device(self._local_device):
            dataset = _v1.data.Dataset.from_tensors(0).repeat().map(lambda _: next_work())
        # ParquetDataset reads the first file when the graph is built.
        prefix = self._prefix.encode() if isinstance(self._prefix, str) else self._prefix or b""
        dataset.file_names = [(prefix + work).decode() for work in self._works]
        return dataset

    def add_summary(self):
        """Adds a scalar summary: the number of works that are left, divided by those of an epoch."""
        with tf.name_scope(f"{self.name}/summary"), tf.device(self._device):
            left = tf.cast(-self._minus_left.read_value(), tf.float32)
        _v1.summary.scalar(f"{self.name}/fraction_of_{len(self)}_full", left / len(self))

    def restore(self, digest, left):
        """An op that restores the works that are left, or all works if the checkpoint has other works."""
        with tf.name_scope(f"{self.name}/restore"), tf.device(self._device):

            def anew():
                note = tf.print(
                    f"Work queue {self.name}: the checkpoint has other works; the queue starts from the beginning."
                )
                with tf.control_dependencies([note]):
                    return self._all_names()

            names = tf.cond(tf.equal(digest, self.digest), lambda: left, anew)
            return self._fill(tf.ensure_shape(names, [None]))

    def _fill(self, names):
        """The operation that sets the works that are left to `names`."""
        assign = _v1.assign(self._names, names, validate_shape=False)
        with tf.control_dependencies([assign.op]):
            return _v1.assign(self._minus_left, -tf.size(names, out_type=tf.int64)).op


def _size(names):
    return tf.size(names.read_value(), out_type=tf.int64)


def _checked_works(works):
    """The works as bytes, stripped."""
    if not isinstance(works, list) or not all(isinstance(work, (str, bytes)) for work in works):
        raise TypeError(f"WorkQueue: works: expected a list of strings, found {works!r}")
    if not works:
        raise ValueError("WorkQueue: works: expected at least one string, found none")
    return [(work.encode() if isinstance(work, str) else work).strip() for work in works]


def _same_task(device, other):
    """True if two devices are of one process, or if the first names no job."""
    device, other = tf.DeviceSpec.from_string(device), tf.DeviceSpec.from_string(other)
    return (device.job, device.task or 0) == (other.job, other.task or 0) or not device.job


def LocalWorkMgr(*args, **kwargs):
    """NotImplementedError. In DeepRec, it keeps the works that a worker has not finished."""
    raise NotImplementedError(
        "LocalWorkMgr is not supported: give several smaller files to WorkQueue, which restores from checkpoints"
    )


MODULES = {
    "tensorflow.python.ops.work_queue": {"WorkQueue": WorkQueue, "LocalWorkMgr": LocalWorkMgr}
}
