"""`import tf_multitier.v1 as tf`: the names of tf.compat.v1 and ours, once each."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys

import forks
import pytest
import tensorflow as tf

import tf_multitier
import tf_multitier.v1 as facade

v1 = tf.compat.v1


def test_star_import_has_both_kinds_of_names():
    names = {}
    exec("from tf_multitier.v1 import *", names)
    assert names["placeholder"] is v1.placeholder and names["Session"] is v1.Session
    assert names["get_embedding_variable"] is tf_multitier.get_embedding_variable
    assert names["EmbeddingVariableOption"] is tf_multitier.EmbeddingVariableOption
    assert {n for n in v1.__all__ if not n.startswith("_")} | set(tf_multitier.__all__) == set(
        facade.__all__
    )


@pytest.mark.parametrize("name", ["train", "feature_column", "nn", "data"])
def test_our_submodules_are_modules_that_can_be_imported(name):
    module = importlib.import_module(f"tf_multitier.v1.{name}")
    assert module is getattr(facade, name)
    names = {}
    exec(f"from tf_multitier.v1.{name} import *", names)
    for theirs in (n for n in dir(getattr(v1, name)) if not n.startswith("_")):
        assert theirs in names
    assert "AdagradDecayOptimizer" in names or name != "train"


@pytest.mark.parametrize("name", ["math", "losses", "summary", "nn.rnn_cell"])
def test_tensorflows_submodules_are_attributes_and_no_second_copies(name):
    with pytest.raises(ModuleNotFoundError, match="is not a package"):
        importlib.import_module("tf_multitier.v1." + name)
    assert "tf_multitier.v1." + name not in sys.modules
    assert facade.math is v1.math and facade.nn.rnn_cell is v1.nn.rnn_cell


@pytest.mark.parametrize("module", [facade, facade.nn, facade.train])
@pytest.mark.parametrize("name", ["__path__", "__version__", "__nothing__"])
def test_special_names_of_tensorflow_are_not_ours(module, name):
    assert not hasattr(module, name)


def test_the_engine_is_an_attribute_loaded_when_first_used():
    code = (
        "import sys, tf_multitier as mt; assert 'tf_multitier.engine' not in sys.modules; assert 'engine' in dir(mt); "
        "assert mt.engine.Table(dim=2).total_count() == 0; assert not hasattr(mt, 'nothing')"
    )
    done = forks.run(["-c", code])
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "before, eager",
    [("import tensorflow as tf", False), ("import tensorflow as tf; tf.constant(0)", True)],
)
def test_eager_execution_is_off_unless_the_program_has_used_it(before, eager):
    code = f"{before}; import tf_multitier.v1 as v1; assert v1.executing_eagerly() is {eager}"
    done = forks.run(["-c", code])
    assert done.returncode == 0, done.stderr[-2000:]


def _undocumented(module, names):
    """Public functions, classes, methods and properties of `names` that are ours and have no docstring."""
    found = []
    for name in names:
        thing = getattr(module, name)
        if not (getattr(thing, "__module__", None) or "").startswith("tf_multitier"):
            continue
        members = vars(thing).items() if inspect.isclass(thing) else ()
        for path, value in [(name, thing)] + [
            (f"{name}.{n}", v) for n, v in members if not n.startswith("_")
        ]:
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if callable(value) and not inspect.getdoc(value):
                found.append(f"{module.__name__}.{path}")
    return found


def _public_modules():
    """The modules of the package that say what is public in them."""
    names = ["tf_multitier"]
    for found in pkgutil.walk_packages(tf_multitier.__path__, "tf_multitier."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            with open(importlib.util.find_spec(found.name).origin, encoding="utf-8") as source:
                names += [found.name] if "\n__all__ = " in source.read() else []
    return names


@pytest.mark.parametrize("module", _public_modules())
def test_every_public_thing_says_what_it_does(module):
    module = importlib.import_module(module)
    assert _undocumented(module, module.__all__) == []


def test_the_modules_that_are_looked_at_are_the_public_ones():
    found = {name.removeprefix("tf_multitier").lstrip(".") for name in _public_modules()}
    assert found >= {"", "checkpoint", "data", "engine", "keras", "nn", "optimizers", "train"}
