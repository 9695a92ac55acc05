"""The libraries with CUDA inside load and work on a machine without a GPU, and say there why types with HBM do not."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

LIBRARIES = os.environ.get("TF_MULTITIER_CUDA_LIBRARIES")  # set by configure.py test

pytestmark = pytest.mark.skipif(LIBRARIES is None, reason="nvcc is not installed: no CUDA build")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with the package tf_multitier as a build with CUDA has it."""
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "tf_multitier").mkdir()
    source = os.path.join(ROOT, "tf_multitier")
    for name in os.listdir(source):
        if not name.endswith(".so") and name not in ("_build_info.py", "__pycache__"):
            (folder / "tf_multitier" / name).symlink_to(os.path.join(source, name))
    for name in os.listdir(LIBRARIES):
        (folder / "tf_multitier" / name).symlink_to(os.path.join(LIBRARIES, name))
    with open(os.path.join(source, "_build_info.py"), encoding="utf-8") as file:
        info = file.read().replace("CUDA_VERSION = None", 'CUDA_VERSION = "13.0"')
    (folder / "tf_multitier" / "_build_info.py").write_text(info)
    return folder


@pytest.fixture(scope="module")
def said(package):
    """What one process says of both: to import TensorFlow is most of its work."""
    done = subprocess.run(
        [sys.executable, "-c", ENGINE.format(folder=str(package)) + VARIABLE],
        env=dict(os.environ, PYTHONPATH=str(package), CUDA_VISIBLE_DEVICES=""),
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["_engine.so", "_tf_multitier_ops.so"])
def test_no_library_of_cuda_is_needed_by_name(name):
    with open(os.path.join(LIBRARIES, name), "rb") as file:
        assert b"cudaGetDeviceCount" in file.read()  # its runtime is inside
    needed = subprocess.run(
        ["readelf", "-d", os.path.join(LIBRARIES, name)], capture_output=True, text=True, check=True
    ).stdout
    assert "NEEDED" in needed and "cuda" not in needed


ENGINE = """
import numpy as np
from tf_multitier import engine
assert engine.__file__.startswith({folder!r}), engine.__file__
tables = [engine.Table(dim=4), engine.Table(dim=4, storage_type="HBM_DRAM", device="emulated", storage_size=[64])]
for table in tables:
    table.apply("sgd", np.arange(20), np.ones((20, 4), np.float32), hyper=dict(learning_rate=1.0))
np.testing.assert_array_equal(*[table.lookup(np.arange(30)) for table in tables])
try:
    engine.Table(dim=4, storage_type="HBM_DRAM")
except engine.FailedPreconditionError as error:
    print(error)
"""


def test_the_engine_trains_without_a_gpu_and_refuses_hbm_with_cudas_reason(said):
    refused = said.partition("moved")[0]
    assert (
        "storage_type HBM_DRAM: its HBM tier needs a build with CUDA and a GPU: no GPU: " in refused
    )
    assert "this build has CUDA" in refused and "use DRAM" in refused


VARIABLE = """
import tensorflow as tf, tf_multitier
v1 = tf.compat.v1
with tf.Graph().as_default(), tf.device("/GPU:0"):
    ev = tf_multitier.get_embedding_variable("ev", 4)
    on_gpu = tf_multitier.get_embedding_variable("gpu", 4, ev_option=tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption("HBM_DRAM")))
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2, 1]))
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=[ev])
    with v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
        session.run(ev.initializer)
        before = session.run(loss)
        session.run(train)
        print("moved", round(float(session.run(loss) - before), 3))
        try:
            session.run(on_gpu.initializer)
        except tf.errors.FailedPreconditionError as error:
            print(error.message)
"""


def test_a_variable_trains_without_a_gpu_and_one_in_hbm_is_refused_when_it_is_made(said):
    _, moved, refused = said.partition("moved -20.0")  # key 1 twice: 4 x (2 + 2 + 1)
    assert moved, said
    assert "its HBM tier needs a build with CUDA and a GPU: no GPU: " in refused
