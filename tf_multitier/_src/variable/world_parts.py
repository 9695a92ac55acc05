"""The parts of an embedding variable of a v1 graph that is divided among the processes of a world.

A rank looks up and trains its own part. Rank 0 initializes, saves and restores the parts of all ranks, through their servers:

    rank 0       its initializer, Saver and slots are those of all parts. The others are in its graph, on the devices of their ranks.
    other ranks  their initializers and restores do nothing; a save is an error.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.processes import world_steps
from tf_multitier._src.tensorflow.internals import SaveSpec
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.embedding_variable import make_variable


class PartOfRank(EmbeddingVariable):
    """The part of this rank, which is not rank 0."""

    @property
    def initializer(self) -> tf.Operation:
        """An op that does nothing: rank 0 initializes the part."""
        return graph_state.shared(
            ("initializer", self.name), lambda: tf.no_op(self._shared_name + "/Initializer")
        )

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """True: rank 0 says whether the parts of all ranks are initialized."""
        return tf.constant(True, name=name)

    @property
    def specs(self) -> list:
        """What a Saver restores: a slice that every checkpoint has. It is an error to save it."""
        [first, *_] = saver.SaveSpecs(self)
        return [SaveSpec(self._refuse, first.slice_spec, first.name, first.dtype, self.device)]

    def _refuse(self):
        rank = self.of_world.rank
        message = f"a save of embedding variable '{self.variable_name}': expected rank 0, which saves the parts of all ranks, found rank {rank}"
        with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
            return tf.zeros([0], tf.int32)

    def restore(
        self, restored_tensors: typing.Any, restored_shapes: typing.Any = None
    ) -> typing.Any:
        """An op that does nothing: rank 0 restores the part."""
        return tf.no_op()


class PartOfRank0(EmbeddingVariable):
    """The part of rank 0, with the parts of the other ranks."""

    others: typing.Any = ()

    @property
    def _all(self):
        return [self, *self.others]

    @property
    def initializer(self) -> tf.Operation:
        """An op that initializes the parts of all ranks."""
        return tf.group(super().initializer, *[part.initializer for part in self.others])

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """A bool scalar: True once the parts of all ranks are initialized."""
        found = [super().is_initialized(), *[part.is_initialized() for part in self.others]]
        return tf.reduce_all(tf.stack(found), name=name)

    def ensure_slots(self, slots: typing.Any) -> None:
        """See EmbeddingVariable.ensure_slots. The parts of all ranks get them."""
        super().ensure_slots(slots)
        for part in self.others:
            part.ensure_slots(slots)

    @property
    def specs(self) -> list:
        """The specs of the parts of all ranks."""
        return _AllSpecs(self._all)

    def restore(
        self, restored_tensors: typing.Any, restored_shapes: typing.Any = None
    ) -> typing.Any:
        """An op that restores the parts of all ranks."""
        pairs = zip(self._all, restored_tensors)
        return tf.group(*[saver.restore(part, [tensor]) for part, tensor in pairs])


class _SpecsOfOther(saver.SaveSpecs):
    """The specs of the part of another rank. A save waits until the rank has ended its step.

    They are on the device of rank 0: a Saver wants those of a variable on one.
    """

    def __init__(self, part, device):
        self._device = device
        super().__init__(part)

    def _spec(self, read, name, dtype, slice_spec=""):
        return SaveSpec(read, slice_spec, name, dtype=dtype, device=self._device)

    def _manifest(self):
        part = self._variable
        with tf.control_dependencies([world_steps.ended(part.of_world, part.partition_index)]):
            return super()._manifest()


class _AllSpecs(saver.PartsSpecs):
    def __init__(self, parts):
        mine, *others = parts
        self._of_parts = [saver.SaveSpecs(mine)]
        self._of_parts += [_SpecsOfOther(part, mine.device) for part in others]
        list.__init__(self, [specs[0] for specs in self._of_parts])


def make(world, full_name, attrs, matrix, trainable, collections):
    """The part of this rank of a new variable of a world, in a v1 graph. For the other arguments see make_variable."""
    world.number_of_graph(tf.compat.v1.get_default_graph())
    name = f"{full_name}/part_{world.rank}"
    kind = PartOfRank if world.rank else PartOfRank0
    part = make_variable(name, attrs, matrix, trainable, collections, kind)
    part.of_world = world
    if world.rank == 0:
        part.others = [
            _other(world, rank, full_name, attrs, matrix) for rank in range(1, world.size)
        ]
    return part


def _other(world, rank, full_name, attrs, matrix):
    attrs = dict(attrs, partition_index=rank)
    with tf.device(world.devices[rank]):
        part = make_variable(
            f"{full_name}/part_{rank}", attrs, matrix, False, [], EmbeddingVariable
        )
    part.of_world = world
    return part
