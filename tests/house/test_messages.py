"""Messages about wrong values have one form: "NAME: expected X, found Y" (CONTRIBUTING.md, Texts)."""

import ast
import os
import re

import pytest
from paths import ROOT


# Parts of messages that may say "must".
MAY_SAY_MUST: tuple = ()
# Parts of messages that may say "found" without "expected": those of ImportErrors, which say what is missing.
MAY_ONLY_SAY_FOUND = ("tf.layers needs Keras 2", "tf_multitier.keras needs Keras 3")


def documentation(tree):
    """ids of the constants of a module that are docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }


def texts(tree):
    """[(line, text)] of the strings of a module that a user could read; "{}" stands for a value."""
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    skipped = documentation(tree) | inner
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            found.append((node.lineno, "".join(parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
    return found


def wrong_forms(source):
    """Strings of Python source that say "must", or what was found without what was expected, as sentences."""
    wrong = []
    for line, text in texts(ast.parse(source)):
        if re.search(r"\bmust\b", text) and not any(part in text for part in MAY_SAY_MUST):
            wrong.append(f'line {line}: "must": write "NAME: expected X, found Y": {text}')
        elif (
            re.search(r"\S.*[,;] found ", text)
            and "expected" not in text
            and not any(part in text for part in MAY_ONLY_SAY_FOUND)
        ):
            wrong.append(f'line {line}: "found" without "expected": {text}')
    return wrong


def modules():
    for folder, _, names in os.walk(os.path.join(ROOT, "tf_multitier")):
        yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))


def test_messages_of_the_package():
    found = []
    for path in sorted(modules()):
        with open(path, encoding="utf-8") as file:
            found += [f"{os.path.relpath(path, ROOT)}: {text}" for text in wrong_forms(file.read())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError(f"dim must be at least 1, found {dim}")',
        'raise ValueError("embedding_dim must not be 0")',
        'raise ValueError(f"{name}: dims need two numbers, found {dims}")',
        'message = "keep needs a storage type with files; found " + kind\nraise ValueError(message)',
    ],
)
def test_another_form_is_found(source):
    assert len(wrong_forms(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError(f"dim: expected at least 1, found {dim}")',
        'raise ValueError(f"{name}: expected {expected}; found {value}")',
        'def f():\n    """name: must be a string."""',
        "# The caller must hold the lock.\nx = 1",
        "raise KeyError(\"checkpoint 'p' exists\")",
    ],
)
def test_the_one_form_passes(source):
    assert wrong_forms(source) == []
