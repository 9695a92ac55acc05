"""Modules of NumPy 1 for DeepRec scripts."""

import forks
import numpy as np
import pytest

from tf_multitier.deeprec import numpy_names

numpy_2 = pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 has these functions itself")


@numpy_2
@pytest.mark.parametrize(
    "module, name",
    [("npyio", "save"), ("function_base", "percentile"), ("arraysetops", "unique")],
)
def test_functions_that_numpy_2_moved_come_from_the_package(module, name):
    made = numpy_names.module(f"numpy.lib.{module}", (name, "no_such_name"))
    assert getattr(made, name) is getattr(np, name) and not hasattr(made, "no_such_name")


def test_modules_that_lack_nothing_stay_numpys():
    assert numpy_names.module("numpy.lib.npyio", ("NpzFile",)) is None
    assert numpy_names.module("numpy.linalg", ("norm",)) is None


@numpy_2
def test_only_the_script_gets_them(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
import importlib
from numpy.lib.npyio import save, NpzFile
from numpy.lib.function_base import average as mean
import numpy as np

assert save is np.save and mean is np.average
assert not hasattr(importlib.import_module("numpy.lib.npyio"), "save")
try:
    from numpy.lib.npyio import no_such_name
except ImportError as error:
    print(error)
"""
    )
    done = forks.run(["-m", "tf_multitier.deeprec", str(script)])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "cannot import name 'no_such_name' from 'numpy.lib.npyio'" in done.stdout
