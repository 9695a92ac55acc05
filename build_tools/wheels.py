"""Wheels: packed from the built package, made portable, and tried in a new environment."""

import glob
import os
import shutil
import tempfile

from build_tools.bazel import PACKAGE
from build_tools.environment import VENV, VENV_PYTHON, pip_install
from build_tools.steps import ROOT, Failure, logged, output_of, step

# Run by the Python of a new environment in an empty directory, with the wheel installed: what it carries must load.
_CHECK = """
import os
import tensorflow as tf
import tf_multitier
from tf_multitier import _engine
directory = os.path.dirname(tf_multitier.__file__)
ops = tf.load_op_library(os.path.join(directory, "_tf_multitier_ops.so"))
names = [name for name in dir(ops) if not name.startswith("_")]
assert names, "the op library registers no ops"
print("imported from", directory)
"""


def make_wheel():
    """Packs tf_multitier/ as it is. Returns the path of the wheel in dist/."""
    work = tempfile.mkdtemp(prefix="tf_multitier_wheel_")
    try:
        with step("wheel packed"):
            wheel = _repair(_pack(work), work)
        with step("wheel installed and imported in a new environment"):
            _check(wheel, work)
        destination = os.path.join(ROOT, "dist")
        os.makedirs(destination, exist_ok=True)
        return shutil.copy(wheel, destination)
    finally:
        shutil.rmtree(work)


def _pack(work):
    """A wheel of tf_multitier/, from a copy, so that the checkout stays clean."""
    sources = os.path.join(work, "sources")
    os.makedirs(sources)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(os.path.join(ROOT, name), sources)
    shutil.copytree(
        PACKAGE,
        os.path.join(sources, "tf_multitier"),
        ignore=shutil.ignore_patterns("__pycache__", "*.tmp"),
    )
    raw = os.path.join(work, "raw")
    pip = [
        VENV_PYTHON,
        "-m",
        "pip",
        "wheel",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
    ]
    logged(pip + ["--wheel-dir", raw, sources], "the wheel could not be packed")
    return glob.glob(os.path.join(raw, "*.whl"))[0]


def _repair(wheel, work):
    """Adds the libraries that ours link (all but TensorFlow's) and a platform tag that says which systems they run on."""
    repaired = os.path.join(work, "repaired")
    command = [
        VENV_PYTHON,
        "-m",
        "auditwheel",
        "repair",
        "--plat",
        "auto",
        "--exclude",
        "libtensorflow_framework.so.2",
    ]
    binaries = os.path.join(VENV, "bin")
    environment = dict(os.environ, PATH=binaries + os.pathsep + os.environ.get("PATH", ""))
    logged(
        command + ["--wheel-dir", repaired, wheel],
        "auditwheel cannot make the wheel portable",
        env=environment,
    )
    return glob.glob(os.path.join(repaired, "*.whl"))[0]


def _check(wheel, work):
    """Installs the wheel in a new environment that borrows .venv's other packages, and loads its libraries."""
    environment = os.path.join(work, "environment")
    empty = os.path.join(work, "empty")
    os.makedirs(empty)
    python = os.path.join(environment, "bin", "python")
    logged(
        [VENV_PYTHON, "-m", "venv", environment],
        "could not create an environment to check the wheel in",
    )
    borrowed = glob.glob(os.path.join(VENV, "lib", "python3*", "site-packages"))[0]
    packages = glob.glob(os.path.join(environment, "lib", "python3*", "site-packages"))[0]
    with open(os.path.join(packages, "borrowed.pth"), "w") as path:
        path.write(borrowed + "\n")
    logged(
        pip_install(python) + ["--no-deps", wheel],
        "the wheel could not be installed in a new environment",
        cwd=empty,
    )
    status, stdout, stderr = output_of(
        [python, "-c", _CHECK], cwd=empty, env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    )
    if status != 0 or packages not in stdout:
        raise Failure("the installed wheel does not load:\n" + (stdout + stderr).strip())
