"""The version of TensorFlow that a DeepRec script sees."""

import importlib.metadata
import sys
import types

import pytest
import tensorflow as tf

from tf_multitier.deeprec import version_check


@pytest.fixture(params=["without setuptools", "with setuptools"])
def pkg_resources(request, monkeypatch):
    """The module that a script gets, and the one of setuptools if there is one."""
    if request.param == "with setuptools":
        real = types.ModuleType("pkg_resources")
        real.get_distribution = lambda name: f"setuptools' {name}"
        real.resource_filename = lambda *parts: parts
        monkeypatch.setitem(sys.modules, "pkg_resources", real)
        monkeypatch.setattr(version_check.importlib.util, "find_spec", lambda name: name)
    else:
        monkeypatch.setattr(version_check.importlib.util, "find_spec", lambda name: None)
        real = None
    return version_check.pkg_resources(), real


@pytest.mark.parametrize(
    "name", ["Tensorflow", "tensorflow", "tensorflow-cpu", "TensorFlow_GPU", "tensorflow>=1.15"]
)
def test_tensorflow_says_that_it_is_deeprec(pkg_resources, name):
    version = pkg_resources[0].get_distribution(name).version
    assert "deeprec" in version and version.startswith(tf.__version__)


def test_other_packages_are_as_ever(pkg_resources):
    made, real = pkg_resources
    if real is not None:
        assert made.get_distribution("numpy") == "setuptools' numpy" and made.resource_filename(
            "a"
        ) == ("a",)
        assert (
            real.get_distribution("tensorflow") == "setuptools' tensorflow"
        )  # for all but the script
    else:
        assert made.get_distribution("numpy").version == importlib.metadata.version("numpy")
        with pytest.raises(made.DistributionNotFound, match="no-such-package"):
            made.get_distribution("no-such-package")
