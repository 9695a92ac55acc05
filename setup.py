"""Packs the Python package with the shared libraries that Bazel built. `python3 configure.py wheel` runs it.

Pip runs it in a source distribution, where nothing is built: configure.py then builds for this Python and one TensorFlow.

TF_MULTITIER_WHEEL_PYTHON names the Python that the wheel is for ("cp312") where it is not the one that runs this.
"""

import os
import pathlib
import re
import runpy
import subprocess
import sys

import setuptools
from setuptools.command import bdist_wheel

_PACKAGE = pathlib.Path(__file__).resolve().parent / "tf_multitier"
_VERSION = runpy.run_path(str(_PACKAGE / "_version.py"))["VERSION"]

# Of a source distribution, which pip builds for the TensorFlow of requirements.txt.
_IS_BUILT = all((_PACKAGE / name).exists() for name in ("_engine.so", "_build_info.py"))


def _minors():
    """The minor versions of TensorFlow that there are ops for, or will be."""
    if _IS_BUILT:
        return runpy.run_path(str(_PACKAGE / "_build_info.py"))["OPS"]
    pins = (_PACKAGE.parent / "requirements.txt").read_text()
    return re.findall(r"^tensorflow-cpu==(\d+\.\d+)", pins, re.MULTILINE)


_MINORS = [int(minor.split(".")[1]) for minor in _minors()]
_TENSORFLOW = f">=2.{min(_MINORS)},<2.{max(_MINORS) + 1}"

# TensorFlow 2.20 accepts every newer protobuf, but writes graphs (MonitoredTrainingSession does) with an argument that protobuf 7
# no longer has.
_PROTOBUF = ["protobuf<7"] if 20 in _MINORS else []


def _readme():
    """README.md. Of links to files of the repository, which a page of an index does not have, the text alone."""
    text = (_PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


class BinaryDistribution(setuptools.Distribution):
    """Makes the wheel's tags name a Python and this platform, though setuptools compiles nothing."""

    def has_ext_modules(self):
        return True


class BdistWheel(bdist_wheel.bdist_wheel):
    """Builds the libraries first where they are absent. Lets one Python pack the wheel of another."""

    def run(self):
        if not _IS_BUILT:
            # Not pip's own packages: .venv gets those of requirements.txt.
            variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            variables["TF_MULTITIER_PYTHON"] = sys.executable
            command = [sys.executable, str(_PACKAGE.parent / "configure.py"), "build"]
            if subprocess.run(command, env=variables, check=False).returncode != 0:
                raise SystemExit("tf_multitier: configure.py could not build the libraries.")
        super().run()

    def get_tag(self):
        python, abi, platform = super().get_tag()
        other = os.environ.get("TF_MULTITIER_WHEEL_PYTHON")
        return (other, other, platform) if other else (python, abi, platform)


setuptools.setup(
    version=_VERSION,
    long_description=_readme(),
    long_description_content_type="text/markdown",
    extras_require={
        "tensorflow": [f"tensorflow{_TENSORFLOW}", *_PROTOBUF],
        "tensorflow-cpu": [f"tensorflow-cpu{_TENSORFLOW}", *_PROTOBUF],
        "parquet": ["pyarrow>=20"],
        "tensorboard": ["tensorboard"],
        "serving": ["uvicorn>=0.54"],
        "examples": ["absl-py", "matplotlib"],
        # What DeepRec's programs use in addition to TensorFlow. tf_keras asks for `tensorflow`: with tensorflow-cpu install it
        # with --no-deps.
        "deeprec": [f"tf_keras{_TENSORFLOW}", "pyarrow>=20"],
    },
    cmdclass={"bdist_wheel": BdistWheel},
    distclass=BinaryDistribution,
)
