"""Packs the Python package with the two shared libraries that Bazel built. `python3 configure.py wheel` runs it."""

import pathlib

import setuptools

_PACKAGE = pathlib.Path(__file__).resolve().parent / "tf_multitier"

for _name in ("_engine.so", "_tf_multitier_ops.so", "_build_info.py"):
    if not (_PACKAGE / _name).exists():
        raise SystemExit(f"tf_multitier/{_name} is not built: run `python3 configure.py wheel` in a checkout of the sources.")


class BinaryDistribution(setuptools.Distribution):
    """Makes the wheel's tags name this Python and this platform, though setuptools compiles nothing."""

    def has_ext_modules(self):
        return True


setuptools.setup(distclass=BinaryDistribution)
