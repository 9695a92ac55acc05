"""The world: the processes that train together, and the collectives between them.

Each process is an ordinary program. TensorFlow's collectives connect them: its strategy of several workers is made, which starts them, and
its scope is never entered. Nothing of ours opens a socket.

    swap        from each process to each: one tensor for every other one; all pad to the largest, in steps of a sixteenth
    all_reduce  one flat sum of dense tensors

A collective's shape is fixed for its instance key at its first use. So a key is that of the exchange, plus the number of the padded size.
Keys belong to variables and never to traces, because processes trace their functions at different steps.
"""

from __future__ import annotations

import collections
import contextlib
import typing
import weakref
import zlib

import tensorflow as tf

_GROUP_KEY = 0x7F4D54
SIZES_PER_KEY = 512
_SWAPS = 4  # of an exchange: sizes, requests, rows and gradients
_MOST_IN_A_GRAPH = 32  # exchanges that begin with one variable
_MOST_VARIABLES = 2**15
_FIRST_REDUCE = 2**30 + 2**29
_TEXT_BYTES = 4096


def _padded_sizes():
    sizes = [256]
    while sizes[-1] < 2**28:
        sizes.append(sizes[-1] + 2 ** (sizes[-1].bit_length() - 1) // 16)
    return sizes


_PADDED = _padded_sizes()
assert len(_PADDED) <= SIZES_PER_KEY


class World:
    """The processes that train together.

    Attributes:
      rank: the number of this process.
      size: the number of processes.
      device: of the collectives of this process.
      timeout: seconds that a collective waits for the other processes.
    """

    def __init__(self, rank: int, size: int, device: str, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.timeout = timeout
        self._numbers: dict = {}  # of variables, by name
        self._in_graph: typing.Any = (
            weakref.WeakKeyDictionary()
        )  # of a graph: numbers of its exchanges and reductions

    def number_of(self, name: str) -> int:
        """The number of a new variable of the world. All processes make them in the same order."""
        number = self._numbers.setdefault(name, len(self._numbers))
        if number >= _MOST_VARIABLES:
            raise ValueError(
                f"embedding variable '{name}': expected at most {_MOST_VARIABLES} variables in a world of processes"
            )
        return number

    def first_key(self, number: int) -> int:
        """The first instance key of a new exchange whose first variable has this number."""
        place = self._place_in_graph(number, _MOST_IN_A_GRAPH)
        return ((number * _MOST_IN_A_GRAPH + place) * _SWAPS) * SIZES_PER_KEY + 1

    def _place_in_graph(self, what, most):
        """How many exchanges, or reductions, `what` the current graph has already. Eagerly 0: one follows the other."""
        if tf.executing_eagerly():
            return 0
        graph = tf.compat.v1.get_default_graph()
        counts = self._in_graph.setdefault(graph, collections.Counter())
        place = counts[what]
        counts[what] += 1
        if place >= most:
            raise ValueError(
                f"collective training: expected at most {most} lookups in a function that begin with the same variable: look its "
                "ids up together"
            )
        return place

    def swap(self, tensors: list, largest: typing.Any, key: int) -> list:
        """The tensors that the other processes have for this one, in order of rank, with padding.

        Args:
          tensors: 1-D, one for each process.
          largest: int64 scalar: the most elements that any process has for any other. The same in all.
          key: the first instance key; the next ones belong to this swap too.
        """
        with tf.device(self.device):
            number = tf.searchsorted(tf.constant(_PADDED, tf.int64), largest[None])[0]
            size = tf.cast(tf.gather(_PADDED, number), tf.int32)
            padded = tf.stack([tf.pad(each, [[0, size - tf.size(each)]]) for each in tensors])
            swapped = self.all_to_all(padded, key + number)
            return tf.unstack(swapped, self.size)

    def all_to_all(self, rows: typing.Any, key: typing.Any) -> typing.Any:
        """[world, n]: row r is what process r has for this one. rows: what this one has for each."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        types = {"CollectiveAllToAllV2": "MultitierSwap"}
        with graph.gradient_override_map(types) if graph else contextlib.nullcontext():
            return tf.raw_ops.CollectiveAllToAllV2(
                input=rows,
                group_size=self.size,
                group_key=_GROUP_KEY,
                instance_key=key,
                ordering_token=[],
                timeout_seconds=self.timeout,
            )

    def all_reduce(self, tensors: list, mean: bool) -> list:
        """The sums, or the means, of float32 tensors over the processes. Their static shapes are known."""
        shapes = [tensor.shape for tensor in tensors]
        sizes = [shape.num_elements() for shape in shapes]
        total = sum(sizes)
        key = zlib.crc32(repr((total, self._place_in_graph(("reduce", total), 2**20))).encode())
        with tf.device(self.device):
            flat = tf.raw_ops.CollectiveReduceV2(
                input=tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0),
                group_size=self.size,
                group_key=_GROUP_KEY,
                instance_key=_FIRST_REDUCE + key % 2**28,
                ordering_token=[],
                merge_op="Add",
                final_op="Div" if mean else "Id",
                timeout_seconds=self.timeout,
            )
            flat.set_shape([total])
            return [tf.reshape(each, shape) for each, shape in zip(tf.split(flat, sizes), shapes)]

    def text_of_first(self, text: str) -> str:
        """The text of rank 0, in all processes. Eagerly, at most 4096 bytes."""
        data = text.encode() if self.rank == 0 else b""
        if len(data) > _TEXT_BYTES:
            raise ValueError(
                f"expected at most {_TEXT_BYTES} bytes of text, found {len(data)}: {text[:80]}..."
            )
        codes = tf.constant(list(data.ljust(_TEXT_BYTES, b"\0")), tf.float32)
        [codes] = self.all_reduce([codes], mean=False)
        return bytes(tf.cast(codes, tf.uint8).numpy()).rstrip(b"\0").decode()

    def ranks_with(self, found: bool) -> list:
        """The ranks of the processes where `found` is true. Eagerly."""
        own = tf.one_hot(self.rank, self.size) * float(found)
        [flags] = self.all_reduce([own], mean=False)
        return [rank for rank, flag in enumerate(flags.numpy()) if flag]


def digest(text: str) -> int:
    """A number that differs for other texts."""
    return zlib.crc32(text.encode())


_current: list = []  # of the scopes that are entered
_connected: list = []  # the world of this process


def connect(world: World) -> None:
    """Says that the collectives of this process are those of a world."""
    _connected.append(world)


def is_connected() -> bool:
    """Whether the collectives of this process are those of a world."""
    return bool(_connected)


def current() -> World | None:
    """The world in whose scope variables are made, or None."""
    return _current[-1] if _current else None


@contextlib.contextmanager
def scope(world: World) -> typing.Iterator[None]:
    """A context in which new embedding variables are divided among the processes of a world."""
    _current.append(world)
    try:
        yield
    finally:
        _current.pop()


@tf.RegisterGradient("MultitierSwap")
def _gradient_of_swap(op, grad):
    """The way back, which has the next keys."""
    size, group, key = op.inputs[1:4]
    back = tf.raw_ops.CollectiveAllToAllV2(
        input=grad,
        group_size=size,
        group_key=group,
        instance_key=key + SIZES_PER_KEY,
        ordering_token=[],
        timeout_seconds=op.get_attr("timeout_seconds"),
    )
    return [back] + [None] * (len(op.inputs) - 1)
