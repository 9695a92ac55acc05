"""What `import pkg_resources` means in a DeepRec script: the packages that are installed, with a TensorFlow that says it is DeepRec.

Programs look for DeepRec in the version of the package:

    'deeprec' in pkg_resources.get_distribution('Tensorflow').version

`setuptools` no longer brings `pkg_resources`. Where it is installed, the script gets it with another `get_distribution`; where not, a module
with `get_distribution` and its errors, over `importlib.metadata`. Installed packages get what they got before.
"""

import collections
import importlib.metadata
import importlib.util
import re
import types

import tensorflow as tf

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")

Distribution = collections.namedtuple("Distribution", ("project_name", "version"))
Distribution.__doc__ = "A package that is installed: its name and version, as `pkg_resources` calls them."


class DistributionNotFound(Exception):
    """The package is not installed."""


def deeprec_version():
    """TensorFlow's version, which says "deeprec" too: "2.21.0+deeprec"."""
    return f"{tf.__version__}+deeprec"


def _installed(name):
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise DistributionNotFound(f"the package {name!r} is not installed") from None
    return Distribution(found.metadata["Name"], found.version)


def _answer(get_distribution):
    """`get_distribution` with DeepRec's version for TensorFlow."""

    def answer(dist):
        name = dist if isinstance(dist, str) else getattr(dist, "project_name", "")
        plain = re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[(]", name.strip())[0]).lower()
        return Distribution(name, deeprec_version()) if plain in _TENSORFLOW else get_distribution(dist)

    return answer


def pkg_resources():
    """The module that a script gets for `import pkg_resources`."""
    made = types.ModuleType("pkg_resources", "What a DeepRec program asks of setuptools' pkg_resources, from tf_multitier.")
    found, content = _installed, {"DistributionNotFound": DistributionNotFound, "Distribution": Distribution}
    if importlib.util.find_spec("pkg_resources") is not None:
        content = vars(importlib.import_module("pkg_resources"))
        found = content["get_distribution"]
    made.__dict__.update({**content, "get_distribution": _answer(found)})
    return made
