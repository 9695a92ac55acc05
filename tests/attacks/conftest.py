"""The library that makes calls fail, compiled once a session."""

import os
import shutil
import subprocess

import pytest

_HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="session")
def calls(tmp_path_factory):
    """The library that makes calls fail."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = str(tmp_path_factory.mktemp("attacks") / "failing_calls.so")
    source = os.path.join(_HERE, "failing_calls.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library
