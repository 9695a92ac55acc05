"""The kernels for GPUs that are registered. The job `gpu` of tier 3 runs them (build_tools/suites.py)."""

import tensorflow as tf
from tensorflow.core.framework import kernel_def_pb2  # noqa: F401
from tensorflow.python.framework import kernels
from tensorflow.python.framework import op_def_registry

import tf_multitier

# Ops of variables in the host's memory. They have no kernel for GPUs, so that TensorFlow keeps such a variable on the CPU. BeginStep and
# LeastInFlight take step counters, which are made on the CPU. Watch is at a collective, whose device is a CPU.
ON_CPU_ONLY = {
    "MultitierBeginStep",
    "MultitierEmbeddingVariableHandle",
    "MultitierGroupApply",
    "MultitierGroupLookup",
    "MultitierLeastInFlight",
    "MultitierServe",
    "MultitierWatch",
}

# The inputs and outputs that are in device memory on a GPU; all others are in host memory.
IN_DEVICE_MEMORY = {
    "MultitierApply": {"keys", "grads", "counts"},
    "MultitierHbmClipByNorm": {"values", "clipped"},
    "MultitierHbmClipByNormGrad": {"values", "grad", "value_grads"},
    "MultitierHbmGroupApply": {"sums", "grads"},
    "MultitierHbmGroupLookup": {"matrices", "keys", "indices", "weights", "values"},
    "MultitierLookup": {"keys", "values"},
    "MultitierLookupSparse": {"keys", "indices", "weights", "pooled"},
    "MultitierLookupSparseGrad": {
        "keys",
        "indices",
        "weights",
        "grad",
        "entry_grads",
        "weight_grads",
    },
}


def test_every_op_of_a_handle_has_a_kernel_for_gpus():
    names = [
        name
        for name in dir(tf_multitier._src.tensorflow.library.ops)
        if name.startswith("multitier_")
    ]
    assert len(names) > 50
    for name in names:
        op = op_def_registry.get("".join(word.capitalize() for word in name.split("_")))
        if op is None or not any(arg.type == tf.resource.as_datatype_enum for arg in op.input_arg):
            continue
        registered = kernels.get_registered_kernels_for_op(op.name).kernel
        on_gpu = [kernel for kernel in registered if kernel.device_type == "GPU"]
        assert len(on_gpu) == (op.name not in ON_CPU_ONLY), op.name
        everything = {arg.name for arg in [*op.input_arg, *op.output_arg]}
        for kernel in on_gpu:
            found = everything - set(kernel.host_memory_arg)
            assert found == IN_DEVICE_MEMORY.get(op.name, set()), op.name
