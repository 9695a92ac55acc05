"""Packs the Python package with the shared libraries that Bazel built. `python3 configure.py wheel` runs it.

TF_MULTITIER_WHEEL_PYTHON names the Python that the wheel is for ("cp312") where it is not the one that runs this.
"""

import os
import pathlib
import runpy

import setuptools
from setuptools.command import bdist_wheel

_PACKAGE = pathlib.Path(__file__).resolve().parent / "tf_multitier"
_VERSION = runpy.run_path(str(_PACKAGE / "_version.py"))["VERSION"]

for _name in ("_engine.so", "_build_info.py"):
    if not (_PACKAGE / _name).exists():
        raise SystemExit(
            f"tf_multitier/{_name} is not built: run `python3 configure.py wheel` in a checkout of the sources."
        )

# The minor versions of TensorFlow that there are ops for.
_MINORS = [
    int(minor.split(".")[1]) for minor in runpy.run_path(str(_PACKAGE / "_build_info.py"))["OPS"]
]
_TENSORFLOW = f">=2.{min(_MINORS)},<2.{max(_MINORS) + 1}"

# TensorFlow 2.20 accepts every newer protobuf, but writes graphs (MonitoredTrainingSession does) with an argument that protobuf 7
# no longer has.
_PROTOBUF = ["protobuf<7"] if 20 in _MINORS else []


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
    version=_VERSION,
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
