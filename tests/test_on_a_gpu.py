"""What TensorFlow does with embedding variables where it has a GPU: host_memory_gpu/plugin.cc gives it one whose memory is the host's.

The cases of gpu_cases.py run in processes that load the plugin. HBM is on the emulated device.
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


def test_the_cases_pass(plugin):
    assert re.match(r"\d+ passed(, \d+ warnings?)? in", run(plugin, "gpu_cases.py"))


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
            assert everything == set(kernel.host_memory_arg), op.name
