"""Packs the Python package with the two shared libraries that Bazel built. `python3 configure.py wheel` runs it.

TF_MULTITIER_WHEEL_PYTHON names the Python that the wheel is for ("cp312") where it is not the one that runs this.
"""

import os
import pathlib
import runpy

import setuptools
from setuptools.command import bdist_wheel

_PACKAGE = pathlib.Path(__file__).resolve().parent / "tf_multitier"
_VERSION = runpy.run_path(str(_PACKAGE / "_version.py"))["VERSION"]

for _name in ("_engine.so", "_tf_multitier_ops.so", "_build_info.py"):
    if not (_PACKAGE / _name).exists():
        raise SystemExit(
            f"tf_multitier/{_name} is not built: run `python3 configure.py wheel` in a checkout of the sources."
        )

# The minor version of TensorFlow that the ops were built against is part of the wheel's version.
_TENSORFLOW = ".".join(
    runpy.run_path(str(_PACKAGE / "_build_info.py"))["TF_VERSION"].split(".")[:2]
)


# TensorFlow 2.20 accepts every newer protobuf, but writes graphs (MonitoredTrainingSession does) with an argument that protobuf 7
# no longer has.
_PROTOBUF = ["protobuf<7"] if _TENSORFLOW == "2.20" else []


class BinaryDistribution(setuptools.Distribution):
    """Makes the wheel's tags name a Python and this platform, though setuptools compiles nothing."""

    def has_ext_modules(self):
        return True


class BdistWheel(bdist_wheel.bdist_wheel):
    """Lets one Python pack the wheel of another: nothing in it depends on the Python that packs."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        other = os.environ.get("TF_MULTITIER_WHEEL_PYTHON")
        return (other, other, platform) if other else (python, abi, platform)


setuptools.setup(
    version=f"{_VERSION}+tf{_TENSORFLOW}",
    extras_require={
        "tensorflow": [f"tensorflow=={_TENSORFLOW}.*", *_PROTOBUF],
        "tensorflow-cpu": [f"tensorflow-cpu=={_TENSORFLOW}.*", *_PROTOBUF],
        "serving": ["uvicorn>=0.54"],
        "examples": ["absl-py", "matplotlib"],
        # What DeepRec's programs use in addition to TensorFlow. tf_keras asks for `tensorflow`: with tensorflow-cpu install it
        # with --no-deps.
        "deeprec": [f"tf_keras=={_TENSORFLOW}.*", "pyarrow>=20"],
    },
    cmdclass={"bdist_wheel": BdistWheel},
    distclass=BinaryDistribution,
)
