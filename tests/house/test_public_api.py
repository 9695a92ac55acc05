"""The public names: `dir` shows them and no others, and each function and method of them says its types."""

import importlib
import inspect
import os
import types

import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import config_pb2

MODULES = [
    "checkpoint",
    "nn",
    "optimizers",
    "train",
    "data",
    "feature_column",
    "engine",
    "serving",
    "keras",
    "one_embedding",
    "distribute",
    "dynamicemb",
    "lookup",
    "options",
    "deeprec",
    "deeprec.estimator",
    "deeprec.estimator.export",
]


def public_objects():
    """[(qualified name, object)] of the public classes and functions of tf_multitier."""
    found = {}
    for module in [
        tf_multitier,
        *[importlib.import_module("tf_multitier." + name) for name in MODULES],
    ]:
        for name in module.__all__:
            value = getattr(module, name)
            if getattr(value, "__module__", "").startswith("tf_multitier"):
                found.setdefault(id(value), (f"{module.__name__}.{name}", value))
    return sorted(found.values(), key=lambda pair: pair[0])


def functions_of(name, value):
    """[(qualified name, function)] of a function, or of the public methods and properties of a class."""
    if inspect.isfunction(value):
        return [(name, value)]
    found = []
    for owner in inspect.getmro(value):
        if not owner.__module__.startswith("tf_multitier"):
            continue
        for attribute, member in vars(owner).items():
            member = member.fget if isinstance(member, property) else member
            member = getattr(member, "__func__", member)
            if not isinstance(member, types.FunctionType) or not member.__module__.startswith(
                "tf_multitier"
            ):
                continue
            if attribute == "__init__" or not attribute.startswith("_"):
                found.append((f"{name}.{attribute}", member))
    return found


def untyped(function):
    signature = inspect.signature(function)
    missing = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    return missing + (["return"] if signature.return_annotation is signature.empty else [])


def test_dir_shows_the_public_names_alone():
    assert dir(tf_multitier) == sorted(
        [
            *tf_multitier.__all__,
            "checkpoint",
            "deeprec",
            "distribute",
            "dynamicemb",
            "engine",
            "keras",
            "one_embedding",
            "serving",
        ]
    )
    assert all(getattr(tf_multitier, name) is not None for name in dir(tf_multitier))


@pytest.mark.parametrize("name", MODULES)
def test_dir_of_a_public_module_shows_its_public_names_alone(name):
    module = importlib.import_module("tf_multitier." + name)
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))


def test_dir_of_config_pb2_shows_its_values():
    assert {"StorageType", "CacheStrategy", "DRAM_SSDHASH", "LRU"} <= set(dir(config_pb2))
    assert not {"enum", "annotations", "_ProtoEnum"} & set(dir(config_pb2))


@pytest.mark.parametrize(
    "name, value", [pair for pair in public_objects() if not isinstance(pair[1], type(tf))]
)
def test_every_public_function_says_its_types(name, value):
    wrong = {qualified: untyped(f) for qualified, f in functions_of(name, value) if untyped(f)}
    assert not wrong


def test_the_package_tells_type_checkers_that_it_has_types():
    assert os.path.exists(os.path.join(os.path.dirname(tf_multitier.__file__), "py.typed"))
