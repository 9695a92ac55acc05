"""What we rely on in TensorFlow beyond its public API is as it was when we read it."""

import os
import re
import sys

import pytest
import tensorflow as tf

from tf_multitier import patches
from tf_multitier import tensorflow_internals

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from build_tools import wheels  # noqa: E402

PACKAGE = os.path.dirname(tensorflow_internals.__file__)


def test_what_we_rely_on_is_as_it_was_when_we_read_it():
    assert tensorflow_internals.unknown() == []


def test_a_minor_version_that_we_do_not_know_fails_with_the_whole_list(monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    listed = tensorflow_internals.unknown()
    assert len(listed) == len(tensorflow_internals.RELIED_ON)
    assert any(
        line.startswith("training.optimizer._get_processor (patches.py): ") for line in listed
    )


def test_a_source_that_changed_is_named_alone(monkeypatch):
    reliance = tensorflow_internals.RELIED_ON[0]
    known = dict(tensorflow_internals.KNOWN[tensorflow_internals.minor_version()])
    known[reliance.name] = "0" * 16
    monkeypatch.setitem(tensorflow_internals.KNOWN, tensorflow_internals.minor_version(), known)
    [line] = tensorflow_internals.unknown()
    assert line.startswith(reliance.name)


def test_a_function_that_is_missing_is_not_known():
    missing = tensorflow_internals.Reliance("training.optimizer", "_none", "x.py", "")
    assert tensorflow_internals.source_hash(missing) == "missing"


def test_the_versions_that_are_known_are_those_that_wheels_are_built_for():
    assert list(tensorflow_internals.KNOWN) == [minor for minor, _, _ in wheels.TENSORFLOWS]


def test_every_wrapped_function_is_listed():
    listed = {reliance.name for reliance in tensorflow_internals.RELIED_ON}
    for name in patches.wrapped_functions():
        assert any(entry.endswith(name) for entry in listed), name


@pytest.mark.parametrize("reliance", tensorflow_internals.RELIED_ON, ids=lambda r: r.name)
def test_the_file_that_relies_on_it_exists(reliance):
    assert os.path.exists(os.path.join(PACKAGE, reliance.used_by)) and len(reliance.granted) > 10


def test_every_private_name_of_tensorflow_in_a_patch_is_listed():
    """`module._name` where the module is imported from tensorflow.python."""
    listed = {reliance.attribute.split(".")[0] for reliance in tensorflow_internals.RELIED_ON}
    for file in ("patches.py", "optimizer.py", "saver.py"):
        with open(os.path.join(PACKAGE, file), encoding="utf-8") as source:
            text = source.read()
        modules = re.findall(
            r"^from tensorflow\.python[\w.]* import (\w+)(?: as (\w+))?", text, re.MULTILINE
        )
        for imported, alias in modules:
            for private in re.findall(rf"\b{alias or imported}\.(_[a-z]\w*)\b", text):
                assert private in listed, f"{file}: {imported}.{private}"
