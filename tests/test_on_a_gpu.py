"""What TensorFlow does with embedding variables where it has a GPU: host_memory_gpu/plugin.cc gives it one whose memory is the host's.

The cases of gpu_cases.py and gpu_pooling_cases.py, and suites of other files, run in processes that load the plugin. HBM is on the emulated device.
"""

import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.core.framework import kernel_def_pb2  # noqa: F401
from tensorflow.python.framework import kernels
from tensorflow.python.framework import op_def_registry

import tf_multitier

_HERE = os.path.dirname(os.path.abspath(__file__))

# Ops of variables in the host's memory. They have no kernel for GPUs, so that TensorFlow keeps such a variable on the CPU.
ON_CPU_ONLY = {
    "MultitierEmbeddingVariableHandle",
    "MultitierGroupApply",
    "MultitierGroupLookup",
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


def stress(*suite):
    """A suite that runs only with TF_MULTITIER_STRESS."""
    skip = pytest.mark.skipif(
        not os.environ.get("TF_MULTITIER_STRESS"),
        reason="takes a minute: set TF_MULTITIER_STRESS",
    )
    return pytest.param(*suite, marks=skip)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    library = str(tmp_path_factory.mktemp("plugin") / "libhost_memory_gpu.so")
    command = ["g++", *tf.sysconfig.get_compile_flags(), "-O1", "-fPIC", "-shared", "-o", library]
    source = os.path.join(_HERE, "host_memory_gpu", "plugin.cc")
    subprocess.run([*command, source, *tf.sysconfig.get_link_flags()], check=True)
    return library


def run(plugin, file, selection="", **environment):
    """The last line of pytest's output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", selection],
        env=dict(
            os.environ,
            TF_MULTITIER_TEST_GPU=plugin,
            TF_MULTITIER_DEVICE="emulated",
            **environment,
        ),
        cwd=_HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("file", ["gpu_cases.py", "gpu_pooling_cases.py"])
def test_the_cases_pass(file, plugin):
    assert re.match(r"\d+ passed(, \d+ warnings?)? in", run(plugin, file))


# Bytes of HBM: a few rows, so that rows come and go in every step.
@pytest.mark.parametrize(
    "file, selection",
    [
        ("test_group_lookup.py", ""),
        ("test_group_updates.py", "adam-some or two_optimizers"),
        # Left out: an op of the CPU.
        stress("test_group_updates.py", "not adadelta and not hyperparameters_are_once"),
        stress("test_group_columns.py", ""),
        stress("test_group_concat.py", "not one_op_each_way"),
        stress("test_group_errors.py", ""),
        stress("test_group_stock.py", ""),
        stress("test_saver.py", ""),
    ],
)
def test_suite_passes_on_a_gpu(plugin, file, selection):
    hbm = dict(TF_MULTITIER_STORAGE_TYPE="HBM_DRAM", TF_MULTITIER_STORAGE_SIZE="4096")
    assert " passed" in run(plugin, file, selection, **hbm)


def test_every_op_of_a_handle_has_a_kernel_for_gpus():
    names = [name for name in dir(tf_multitier._library.ops) if name.startswith("multitier_")]
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
