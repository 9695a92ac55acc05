"""The world: the processes that train together, and the collectives between them.

Each process is an ordinary program. TensorFlow's collectives connect them: its strategy of several workers is made, which starts them, and
its scope is never entered. Nothing of ours opens a socket.

    swap        from each process to each: one tensor for every other one; all pad to the largest, in steps of a sixteenth
    all_reduce  one flat sum of dense tensors

Collectives of a process run in the order of its program: eagerly one after the other, in functions by an ordering token, which TensorFlow
takes for a variable that each of them writes. So all exchanges share instance keys, and processes may trace their functions at different
steps. A collective's shape is fixed for its key at its first use: the key has the number of the padded size.

A watch (cc/tensorflow/train/watch_kernels.cc) bounds the time of each collective. TensorFlow's own timeouts take a thread each.

A graph of TensorFlow 1 has no such order. There the number of the exchange in its graph is part of the key.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import functools
import itertools
import typing
import weakref
import zlib

import numpy as np
import tensorflow as tf

from tf_multitier._src.tensorflow.library import build
from tf_multitier._src.tensorflow.library import ops

_GROUP_KEY = 0x7F4D54
_FIRST_REDUCE = 2**30
_MOST_IN_A_GRAPH = 2**17  # exchanges

# Swaps of an exchange, each of a shape that its padded size decides.
_WIRE_TYPES = (tf.float32, tf.bfloat16, tf.half)
SIZES, REQUESTS = "sizes", "requests"
ROWS, GRADIENTS = "rows", "gradients"
ANSWERS, AGREEMENTS = "answers", "agreements"
_KINDS = [(kind, tf.int64) for kind in (SIZES, REQUESTS, ANSWERS, AGREEMENTS)]
_KINDS += [(ANSWERS, tf.float32)]
_KINDS += [(kind, its_type) for its_type in _WIRE_TYPES for kind in (ROWS, GRADIENTS)]
_TEXT_BYTES = 4096
NOT_SENT = (tf.string, tf.resource, tf.variant)


def _padded_sizes():
    """Up to 2 GiB of int64: gRPC sends no larger message."""
    sizes, step = [256], 16
    while sizes[-1] + step < 2**28:
        sizes.append(sizes[-1] + step)
        step = 2 ** (sizes[-1].bit_length() - 1) // 16
    return sizes


_PADDED = _padded_sizes()
_KEYS_OF_A_KIND = 512
assert len(_PADDED) <= _KEYS_OF_A_KIND
assert len(_KINDS) * _KEYS_OF_A_KIND * _MOST_IN_A_GRAPH < _FIRST_REDUCE


def _first_key(kind, dtype, exchange):
    """The instance key of a swap of the smallest size."""
    return (exchange * len(_KINDS) + _KINDS.index((kind, dtype))) * _KEYS_OF_A_KIND + 1


_CURE = ": let train, evaluate, predict and branches be the same on all ranks"


class World:
    """The processes that train together.

    Attributes:
      rank: the number of this process.
      size: the number of processes.
      device: of the collectives of this process.
      timeout: seconds that a collective waits for the other processes.
      devices: those of the collectives of all processes, in order of rank.
      strategy: the CollectiveStrategy.
      addresses: "host:port" of all processes, in order of rank.
    """

    def __init__(
        self, rank: int, size: int, device: str, timeout: float, devices: typing.Any = ()
    ) -> None:
        self.rank = rank
        self.devices = list(devices)
        self.size = size
        self.device = device
        self.timeout = timeout
        self.strategy: typing.Any = None
        self.addresses: list = []
        self._token: typing.Any = None
        # The name of collectives, which TensorFlow's errors of a lost process tell.
        self._waits = f"rank_{rank}_of_{size}_waits_for_the_same_step_of_all_ranks"
        self._is_late = (
            f"collective training: rank {rank} of {size}: expected all ranks in the same step within {timeout:g} seconds, found one that "
            "is late or dead"
        )
        self._in_graph: typing.Any = weakref.WeakKeyDictionary()  # of a graph of TensorFlow 1
        self._graphs: typing.Any = weakref.WeakKeyDictionary()  # their numbers
        self._numbers = itertools.count()  # of graphs
        self._graph_keys: typing.Any = weakref.WeakKeyDictionary()  # see _graph_key
        self._agreements = 0

    def number_of_graph(self, graph: tf.Graph) -> int:
        """The number of a v1 graph with variables of the world. All processes make them in the same order."""
        if graph not in self._graphs:
            self._graphs[graph] = next(self._numbers)
        return self._graphs[graph]

    def is_used_in(self, graph: tf.Graph) -> bool:
        """Whether a v1 graph has variables or collectives of the world."""
        return graph in self._graphs or graph in self._graph_keys

    def new_exchange(self) -> int:
        """The number of an exchange in its graph."""
        return self._place_in_graph("exchange", _MOST_IN_A_GRAPH)

    def _place_in_graph(self, what, most):
        """How many exchanges, or reductions, the current graph of TensorFlow 1 has already. Elsewhere 0: they run in order."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            return 0
        counts = self._in_graph.setdefault(outermost_graph(), collections.Counter())
        place = counts[what]
        counts[what] += 1
        if place >= most:
            raise ValueError(
                f"collective training: expected at most {most} lookups in a graph, found more: look ids up together"
            )
        return place

    def _ordering_token(self):
        """What a collective takes, so that those of a function run in the order of the program."""
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return []
        if self._token is None:
            with tf.init_scope(), tf.device(self.device):
                self._token = tf.Variable(0.0, trainable=False)
        return [self._token.handle]

    def agreed(
        self, words: list, elements: typing.Any, what: str, where: str, exchange: int
    ) -> tuple:
        """The largest number of words, and of elements, that any process sends to any other: int64 scalars, the same in all.

        Args:
          words: int64 scalars: those of the request for each process.
          elements: int64 [world], or scalars: those of the answer to each request.
          what: text that is the same in all processes, else all get an error.
          where: what the error names.
          exchange: its number.
        """
        mark = digest(f"{build()} {what}")
        mine = tf.stack([tf.reduce_max(words), tf.reduce_max(elements), mark])
        every = self.all_to_all(tf.tile(mine[None], [self.size, 1]), SIZES, exchange)
        with tf.device(self.device):
            others = tf.where(tf.not_equal(every[:, 2], mark))[:, 0]
            expected = (
                f"collective training: rank {self.rank}: expected lookups of the same embedding variables, of the same dims and "
                "options, in the same order on all ranks, with the same version of tf_multitier, found others than here on ranks"
            )
            here = f"here: {where}, tf_multitier {build()}"
            check = tf.debugging.Assert(tf.equal(tf.size(others), 0), [expected, others, here])
            with tf.control_dependencies([] if check is None else [check]):
                largest = tf.reduce_max(every[:, :2], 0)
            most = (
                f"collective training: expected at most {_PADDED[-1]} numbers for each rank in the request or the answer of a lookup: "
                "look up smaller batches, found"
            )
            check = tf.debugging.Assert(tf.reduce_max(largest) <= _PADDED[-1], [most, largest])
            with tf.control_dependencies([] if check is None else [check]):
                largest = tf.identity(largest)
        return largest[0], largest[1]

    def swap(self, tensors: list, largest: typing.Any, kind: str, exchange: int) -> list:
        """The tensors that the other processes have for this one, in order of rank, with padding.

        Args:
          tensors: 1-D, one for each process.
          largest: int64 scalar: the most elements that any process has for any other. The same in all.
          kind: REQUESTS, ROWS, GRADIENTS or ANSWERS.
          exchange: its number.
        """
        with tf.device(self.device):
            number = tf.searchsorted(tf.constant(_PADDED, tf.int64), largest[None])[0]
            size = tf.cast(tf.gather(_PADDED, number), tf.int32)
            padded = tf.stack([tf.pad(each, [[0, size - tf.size(each)]]) for each in tensors])
            return tf.unstack(self.all_to_all(padded, kind, exchange, number), self.size)

    def all_to_all(
        self, rows: typing.Any, kind: str, exchange: int, size: typing.Any = 0
    ) -> typing.Any:
        """[world, n]: row r is what process r has for this one. rows: what this one has for each. size: the number of n."""
        key = _first_key(kind, rows.dtype, exchange)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        types = {"CollectiveAllToAllV2": "MultitierSwap"}
        override = graph.gradient_override_map(types) if graph else contextlib.nullcontext()
        with override:
            return self.collective(tf.raw_ops.CollectiveAllToAllV2, rows, instance_key=key + size)

    def collective(
        self, op: collections.abc.Callable, value: tf.Tensor, **attrs: typing.Any
    ) -> tf.Tensor:
        """What a collective of tf.raw_ops makes of a value. DeadlineExceededError, when run: other ranks do not come in time."""
        tokens = self._ordering_token()
        before = tf.control_dependencies([value, *self._graph_key()])
        with tf.device(self.device), before:
            watch = ops.multitier_watch(
                tokens,
                seconds=self.timeout,
                message=self._is_late,
                cure=_CURE,
                processes=[device.partition("/device:")[0] for device in self.devices],
            )
        try:
            with tf.device(self.device), tf.control_dependencies([watch]):
                found = op(
                    input=value,
                    group_size=self.size,
                    group_key=_GROUP_KEY,
                    ordering_token=tokens,
                    name=self._waits,
                    **attrs,
                )
                return ops.multitier_watched(found, watch)
        finally:
            del watch  # or the traceback of an error holds it

    def all_reduce(self, tensors: list, mean: bool, what: str = "") -> list:
        """The sums, or the means, of tensors of one type over the processes. Their static shapes are known. what: the same in all."""
        shapes = [tensor.shape for tensor in tensors]
        sizes = [shape.num_elements() for shape in shapes]
        total = sum(sizes)
        place = self._place_in_graph("reduce", 2**20)
        key = zlib.crc32(repr((shapes, tensors[0].dtype.name, place, what)).encode())
        with tf.device(self.device):
            flat = self.collective(
                tf.raw_ops.CollectiveReduceV2,
                tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0),
                instance_key=_FIRST_REDUCE + key % 2**30,
                merge_op="Add",
                final_op="Div" if mean else "Id",
            )
            flat.set_shape([total])
            return [tf.reshape(each, shape) for each, shape in zip(tf.split(flat, sizes), shapes)]

    def broadcast(self, tensors: list) -> list:
        """The tensors of rank 0, bit for bit. Their static shapes are known, and the same on all ranks.

        They are sums of bits, those of other ranks 0: TensorFlow's broadcasts take no ordering token.
        """
        for tensor in tensors:
            if not tensor.shape.is_fully_defined() or tensor.dtype in NOT_SENT:
                raise ValueError(
                    f"broadcast: expected tensors of known shapes and types of numbers, found {tensor.shape} {tensor.dtype.name}"
                )
        sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors]
        size = sum(sizes)
        if size == 0:
            return tensors
        flat = tf.concat([_bytes_of(tensor) for tensor in tensors], 0)
        flat = tf.bitcast(tf.reshape(tf.pad(flat, [[0, -size % 4]]), [-1, 4]), tf.int32)
        [words] = self.all_reduce([tf.zeros_like(flat) if self.rank else flat], mean=False)
        flat = tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:size]
        parts = tf.split(flat, sizes)
        return [_of_bytes(part, tensor) for part, tensor in zip(parts, tensors)]

    def give_first(self, variables: list) -> None:
        """Gives variables the values of rank 0. Eagerly, also while a function is traced; all ranks have the same in the same order."""
        with tf.init_scope():
            values = [tf.convert_to_tensor(variable) for variable in variables]
            for variable, value in zip(variables, self.broadcast(values)):
                variable.assign(value)

    def _graph_key(self):
        """What the collectives of a graph of TensorFlow 1 wait for: nothing, but its Sessions then have collectives at all.

        A Session connects those of version 2 by RunOptions alone, which hooks cannot give, or if it runs a graph with one of version 1.
        It may be in a branch that is never taken.
        """
        if tf.compat.v1.executing_eagerly_outside_functions():
            return []
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._graph_keys:
            with tf.name_scope(""), tf.control_dependencies(None), tf.device(self.device):
                never = tf.compat.v1.placeholder_with_default(False, [], "never")
                connects = functools.partial(
                    tf.raw_ops.CollectiveReduce,
                    input=tf.ones([1]),
                    group_size=self.size,
                    group_key=_GROUP_KEY,
                    instance_key=2**31 - 1,
                    merge_op="Add",
                    final_op="Id",
                    subdiv_offsets=[0],
                )
                self._graph_keys[graph] = tf.cond(never, connects, lambda: tf.zeros([1])).name
        return [graph.get_tensor_by_name(self._graph_keys[graph])]

    def bits_of_first(self, number: int) -> int:
        """The number of rank 0, of 64 bits without a sign, in all processes. Eagerly, also while a function is traced."""
        with tf.init_scope():
            mine = tf.constant(np.array([number], np.uint64).view(np.int64))
            return int(self.broadcast([mine])[0].numpy().view(np.uint64)[0])

    def text_of_first(self, text: str) -> str:
        """The text of rank 0, in all processes. Eagerly, at most 4096 bytes."""
        data = text.encode() if self.rank == 0 else b""
        if len(data) > _TEXT_BYTES:
            raise ValueError(
                f"expected at most {_TEXT_BYTES} bytes of text, found {len(data)}: {text[:80]}..."
            )
        [codes] = self.broadcast([tf.constant(list(data.ljust(_TEXT_BYTES, b"\0")), tf.uint8)])
        return codes.numpy().tobytes().rstrip(b"\0").decode()

    def ranks_with(self, found: bool) -> list:
        """The ranks of the processes where `found` is true. Eagerly."""
        own = tf.one_hot(self.rank, self.size) * float(found)
        [flags] = self.all_reduce([own], mean=False)
        return [rank for rank, flag in enumerate(flags.numpy()) if flag]

    def new_agreement(self) -> int:
        """The number of a new agreement. All processes make them in the same order."""
        self._agreements += 1
        return self._agreements

    def of_all(self, number: typing.Any, agreement: int) -> tf.Tensor:
        """int64 [world]: the numbers that all processes have for an agreement. number: int64 scalar of this one."""
        with tf.device(self.device):
            return self.all_to_all(tf.fill([self.size, 1], number), AGREEMENTS, agreement)[:, 0]


def _bytes_of(tensor):
    tensor = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tensor
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _of_bytes(flat, like):
    """A tensor of the type and shape of `like`."""
    if like.dtype.size == 1:
        flat = tf.cast(flat, tf.bool) if like.dtype == tf.bool else tf.bitcast(flat, like.dtype)
    else:
        flat = tf.bitcast(tf.reshape(flat, [-1, like.dtype.size]), like.dtype)
    return tf.reshape(flat, like.shape)


def outermost_graph() -> tf.Graph:
    """The graph of TensorFlow 1 that is built, also while one of its functions is."""
    with tf.init_scope():
        return tf.compat.v1.get_default_graph()


def refuse_v1_graph(what: str, cure: str) -> None:
    """NotImplementedError in a program of graphs and Sessions. cure: what to do in its place."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise NotImplementedError(
            f"{what}: expected eager execution, found a graph of TensorFlow 1: {cure}"
        )


def digest(text: str) -> int:
    """A number that differs for other texts."""
    return zlib.crc32(text.encode())


_current: list[World | None] = []  # of the scopes that are entered
_connected: list = []  # the world of this process


def connect(world: World) -> None:
    """Says that the collectives of this process are those of a world."""
    _connected.append(world)


def connected() -> World | None:
    """The world whose collectives are those of this process, also of size 1, or None."""
    return _connected[-1] if _connected else None


def current() -> World | None:
    """The world of several processes in whose scope variables are made, or None."""
    world = _current[-1] if _current else None
    return world if world is not None and world.size > 1 else None


def place_of(world: World | None) -> tuple:
    """(rank, size) of a world. None: (0, 1)."""
    return (0, 1) if world is None else (world.rank, world.size)


@contextlib.contextmanager
def scope(world: World | None) -> typing.Iterator[None]:
    """A context in which new embedding variables are divided among the processes of a world. None: in which they are not."""
    _current.append(world)
    try:
        yield
    finally:
        _current.pop()


@tf.RegisterGradient("MultitierSwap")
def _gradient_of_swap(op, grad):
    """The way back. In a v1 graph each has the number of an exchange of its own: a lookup may have several gradients."""
    world, key = connected(), op.inputs[3]
    first = _first_key(GRADIENTS, grad.dtype, world.new_exchange())
    back = world.collective(
        tf.raw_ops.CollectiveAllToAllV2, grad, instance_key=first + (key - 1) % _KEYS_OF_A_KIND
    )
    return [back] + [None] * (len(op.inputs) - 1)


@tf.RegisterGradient("MultitierWatched")
def _gradient_of_watched(op, grad):
    return [grad, None]


tf.no_gradient("MultitierWatch")
