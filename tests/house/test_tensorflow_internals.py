"""What we rely on in TensorFlow beyond its public API is as it was when we read it."""

import ast
import os
import re
import sys

import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier._src.tensorflow import internals as tensorflow_internals
from tf_multitier._src.tensorflow import sources

from build_tools import wheels

PACKAGE = os.path.dirname(tf_multitier.__file__)


def test_what_we_rely_on_is_as_it_was_when_we_read_it():
    assert sources.unknown() == []


def test_a_minor_version_that_we_do_not_know_fails_with_the_whole_list(monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    listed = sources.unknown()
    assert len(listed) == len(sources.RELIED_ON)
    assert any(
        line.startswith("training.optimizer._get_processor (_src/patches.py): ") for line in listed
    )


def test_a_source_that_changed_is_named_alone(monkeypatch):
    reliance = sources.RELIED_ON[0]
    minor = sources.minor_version()
    differing = {**sources.KNOWN[minor], reliance.name: "0" * 16}
    monkeypatch.setitem(sources.KNOWN, minor, differing)
    [line] = sources.unknown()
    assert line.startswith(reliance.name)


def test_a_function_that_is_missing_is_not_known():
    missing = sources.Reliance("", "training.optimizer:_none", "x.py", "")
    assert sources.source_hash(missing) == "missing"


def test_the_versions_that_are_known_are_those_that_wheels_are_built_for():
    assert list(sources.KNOWN) == [minor for minor, _, _ in wheels.TENSORFLOWS]


def test_every_wrapped_function_is_listed():
    listed = {reliance.name for reliance in sources.RELIED_ON}
    for name in tensorflow_internals.WRAPPED:
        assert any(entry.endswith(name) for entry in listed), name


@pytest.mark.parametrize("reliance", sources.RELIED_ON, ids=lambda r: r.name)
def test_the_file_that_relies_on_it_exists(reliance):
    assert os.path.exists(os.path.join(PACKAGE, reliance.used_by)) and len(reliance.granted) > 10


def package_files():
    """[(path in the package, its syntax tree)], without _src/tensorflow/internals.py."""
    found = []
    for folder, _, names in os.walk(PACKAGE):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), PACKAGE)
            if name.endswith(".py") and path != "_src/tensorflow/internals.py":
                with open(os.path.join(PACKAGE, path), encoding="utf-8") as source:
                    found.append((path, ast.parse(source.read())))
    return found


def imports_of_internals(tree):
    """The lines of a syntax tree that import tensorflow.python or tensorflow.core."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        if any(module.startswith(("tensorflow.python", "tensorflow.core")) for module in modules):
            yield node.lineno


def private_names(trees):
    """{private attribute that the trees read and none of them defines: line of a use}."""
    own, used = {"_replace", "_exit"}, {}  # documented: of namedtuple and of os
    for path, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, (ast.arg, ast.keyword)):
                own.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
                used[node.attr] = f"{path}:{node.lineno}: {node.attr}"
    return {name: line for name, line in used.items() if name not in own}


def test_one_file_imports_the_internals():
    found = [
        f"{path}:{line}" for path, tree in package_files() for line in imports_of_internals(tree)
    ]
    assert not found, "import these from _src/tensorflow/internals.py: " + ", ".join(found)


def test_one_file_names_the_internals_of_keras():
    found = []
    for folder, _, names in os.walk(PACKAGE):
        for name in names:
            if name.endswith(".py") and name != "keras_internals.py":
                with open(os.path.join(folder, name), encoding="utf-8") as source:
                    found += [name] if "keras.src" in source.read() else []
    assert not found, "use these through keras_internals.py: " + ", ".join(found)


def test_the_internals_of_keras_are_where_we_look_for_them():
    keras = pytest.importorskip("keras")
    internals = pytest.importorskip("tf_multitier.keras.keras_internals")
    assert internals.SAVING_MODULE in sys.modules
    keras.utils.set_random_seed(5)
    assert internals.seed_of_program() == 5


def test_every_private_name_that_is_not_ours_is_listed():
    listed = " ".join(f"{r.place} {r.granted}" for r in sources.RELIED_ON)
    words = set(re.findall(r"\w+", listed))
    files = [file for file in package_files() if file[0] != "keras/keras_internals.py"]  # of Keras
    missing = [line for name, line in private_names(files).items() if name not in words]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "text", ["from tensorflow.python.ops import x", "def f():\n  import tensorflow.core.y"]
)
def test_an_import_of_internals_is_found(text):
    assert len(list(imports_of_internals(ast.parse(text)))) == 1


def test_a_private_name_that_is_not_ours_is_found():
    tree = ast.parse("self._ours = graph._theirs\ndef _function(): module._function()")
    assert private_names([("a.py", tree)]) == {"_theirs": "a.py:1: _theirs"}
