"""Shared set-up of the Python tests.

The suite runs in TensorFlow's v2 behaviour with explicit graphs; with TF_MULTITIER_TEST_BEHAVIOR=v1 in the environment it runs
after `tf.compat.v1.disable_v2_behavior()`. With TF_MULTITIER_TEST_GPU=<plugin> TensorFlow gets a device of type GPU. Jobs of
tier 3 do both (build_tools/suites.py).
"""

import gc
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
from paths import ROOT


def pytest_configure(config):
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # its workers run the tests
    import tensorflow as tf

    if "TF_MULTITIER_TEST_GPU" in os.environ:
        from tensorflow.python.framework import load_library

        load_library.load_pluggable_device_library(os.environ["TF_MULTITIER_TEST_GPU"])
    if os.environ.get("TF_MULTITIER_TEST_BEHAVIOR") == "v1":
        tf.compat.v1.disable_v2_behavior()
    else:
        tf.constant(0)  # eager execution is in use: importing tf_multitier.v1 leaves it on
    gc.freeze()  # TensorFlow stays: no collection looks at it


@pytest.fixture
def graph():
    """A fresh graph, as the default one."""
    import tensorflow as tf

    with tf.Graph().as_default() as g:
        yield g


@pytest.fixture
def emulated_device(monkeypatch):
    """Storage types with HBM work without a GPU."""
    monkeypatch.setenv("TF_MULTITIER_DEVICE", "emulated")


@pytest.fixture
def session(graph):
    """A session of a fresh graph."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=graph) as s:
        yield s


@pytest.fixture(params=["session", "eager", "function"])
def world(request):
    """One of the three ways to run a program: worlds.py."""
    import tensorflow as tf
    import worlds

    if request.param != "session" and not tf.compat.v1.executing_eagerly_outside_functions():
        pytest.skip("eager execution is off in v1 behaviour")
    with worlds.make_world(request.param) as made:
        yield made


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """The path of the C++ program of examples/serving, built as its README says, once for all processes of pytest."""
    import fcntl
    import subprocess

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    program = folder / "serve"
    script = os.path.join(ROOT, "examples", "serving", "build.sh")
    with open(folder / "serve.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            environ = dict(os.environ, PYTHON=sys.executable)
            subprocess.run([script, program], check=True, env=environ, timeout=300)
    return str(program)
