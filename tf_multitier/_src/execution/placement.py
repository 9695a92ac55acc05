"""The ops that exist twice: with a kernel for the CPU alone, and, for variables with HBM, with one for GPUs too.

TensorFlow puts the handle of a variable and all ops that take it on one device: a GPU, if all of them have kernels for GPUs, and
the CPU otherwise. A variable whose rows are in the host's memory, or in several parts, has a handle op without a kernel for GPUs. So
its ops run on the CPU, also in `tf.device('/GPU:0')`, where TensorFlow's soft placement allows it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import typing

import tensorflow as tf

from tf_multitier._src.options import option_record
from tf_multitier._src.options import storage_option
from tf_multitier._src.options.handle_attrs import HBM_HANDLE_OP_TYPE
from tf_multitier._src.options.handle_attrs import is_handle
from tf_multitier._src.tensorflow.internals import device_scope
from tf_multitier._src.tensorflow.internals import EagerTensor
from tf_multitier._src.tensorflow.internals import only_in
from tf_multitier._src.tensorflow.library import ops

GROUP_LOOKUPS: tuple[str, ...] = ("MultitierGroupLookup", "MultitierHbmGroupLookup")
GROUP_LOOKUP_GRADS = ("MultitierGroupLookupGrad", "MultitierHbmGroupLookupGrad")


def may_be_on_gpu(variable: typing.Any) -> bool:
    """Whether TensorFlow may place an EmbeddingVariable, which may be a part of one, on a GPU."""
    return _may_be_on_gpu(variable.storage_type, variable.num_partitions)


def _may_be_on_gpu(storage_type, num_partitions):
    # The first tier is HBM. The kernels for GPUs take whole variables: keys are routed to parts on the CPU.
    return storage_type.split("_", maxsplit=1)[0] == "HBM" and num_partitions == 1


def _storage_type(attrs):
    record = option_record.complete(attrs["options"], value_dtype=tf.as_dtype(attrs["dtype"]).name)
    return record["storage_type"]


def has_hbm() -> bool:
    """Whether this build and this machine have storage types with HBM."""
    if os.environ.get(storage_option.ENV_DEVICE) == "emulated":
        return True
    return storage_option.built_with_cuda() and bool(tf.config.list_physical_devices("GPU"))


def is_gpu(device: str) -> bool:
    """Whether the name of a device is that of a GPU."""
    return tf.DeviceSpec.from_string(device).device_type == "GPU"


def process_of(device: str) -> str:
    """The process of a device: a name without the device's type and number. A save of one moment is possible for its variables."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type=None, device_index=None).to_string()


def handle_op(attrs: dict, **names: typing.Any) -> typing.Any:
    """A new handle op. attrs: {attribute: value} of HANDLE_ATTRS. names: container, shared_name and name of the op."""
    if _may_be_on_gpu(_storage_type(attrs), attrs["num_partitions"]):
        return ops.multitier_hbm_embedding_variable_handle(**names, **attrs)
    return ops.multitier_embedding_variable_handle(**names, **attrs)


def owned_handle(name: str, attrs: dict) -> typing.Any:
    """A new handle that owns its variable, eagerly. attrs: {attribute: value} of HANDLE_ATTRS."""
    make = ops.multitier_owned_embedding_variable_handle
    if _may_be_on_gpu(_storage_type(attrs), attrs["num_partitions"]):
        make = ops.multitier_owned_hbm_embedding_variable_handle
    return make(name, dtype=attrs["dtype"], shape=attrs["shape"])


def apart_from(variable: typing.Any, scope: typing.Any) -> typing.Any:
    """A context for TensorFlow's own ops in the update of a variable.

    An optimizer colocates all ops of an update with the variable. Some of TensorFlow's ops have no kernel for GPUs for some types,
    and one such op would keep the variable off the GPU. So with HBM, only ops that take the handle are colocated with it.

    Args:
      variable: EmbeddingVariable.
      scope: `device_scope()` of the optimizer's caller, which then places these ops.
    """
    return _apart(may_be_on_gpu(variable), scope)


def gradient_apart(gradient: typing.Any) -> typing.Any:
    """Wraps the gradient of an op that takes handles, for the same reason: `tf.gradients` colocates its ops with that op."""

    @functools.wraps(gradient)
    def wrapped(op, *grads):
        with _apart(any(_is_handle_with_hbm(tensor) for tensor in op.inputs), device_scope()):
            return gradient(op, *grads)

    return wrapped


def _is_handle_with_hbm(tensor):
    if isinstance(tensor, EagerTensor):
        return False  # nothing is colocated
    tensor = _outside_of_functions(tensor)
    if isinstance(tensor, EagerTensor):  # of the handles, those with HBM alone are on a GPU
        return tensor.dtype == tf.resource and is_gpu(tensor.device)
    return is_handle(tensor) and tensor.op.type == HBM_HANDLE_OP_TYPE


def _outside_of_functions(tensor):
    """The tensor that functions or branches captured as `tensor`, outside of all of them; `tensor` itself if none did."""
    captures = getattr(tensor.graph, "captures", [])
    for outside, inside in captures:
        if inside is tensor:
            return outside if isinstance(outside, EagerTensor) else _outside_of_functions(outside)
    return tensor


def _apart(on_hbm, scope):
    return only_in(scope) if on_hbm else contextlib.nullcontext()


def clip_by_norm(variable: typing.Any, values: typing.Any, max_norm: float) -> typing.Any:
    """The values of an EmbeddingVariable or a PartitionedEmbeddingVariable, clipped where they are. max_norm: not negative."""
    if len(variable.parts) == 1 and may_be_on_gpu(variable.parts[0]):
        return ops.multitier_hbm_clip_by_norm(variable.parts[0].handle, values, max_norm=max_norm)
    return ops.multitier_clip_by_norm(values, max_norm=max_norm)


def group_lookup_op(on_hbm: bool) -> typing.Any:
    """The function that makes the op of a grouped lookup. on_hbm: whether every member is a variable with HBM."""
    return ops.multitier_hbm_group_lookup if on_hbm else ops.multitier_group_lookup


def group_lookup_grad_op(on_hbm: bool) -> typing.Any:
    """The function that makes the op of the gradient of a grouped lookup."""
    return ops.multitier_hbm_group_lookup_grad if on_hbm else ops.multitier_group_lookup_grad


def group_apply_op(on_hbm: bool) -> typing.Any:
    """The function that makes the op that updates the variables of a grouped lookup."""
    return ops.multitier_hbm_group_apply if on_hbm else ops.multitier_group_apply
