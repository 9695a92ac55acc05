"""What mypy says about programs of users: wrong names are refused, and public functions have types."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

pytest.importorskip("mypy", reason="it is installed for `configure.py check`")


PROGRAM = """
import tf_multitier
from tf_multitier import deeprec
from tf_multitier.deeprec import estimator
from tf_multitier.lookup import embedding_lookup

deeprec.install()
table: tf_multitier.engine.Table = tf_multitier.engine.Table(4)
layer: tf_multitier.keras.Embedding = tf_multitier.keras.Embedding(16)
config: estimator.RunConfig = estimator.RunConfig(model_dir="x").replace(save_summary_steps=1)
values = embedding_lookup(tf_multitier.get_embedding_variable("a", 4), [1])
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """A function from the source of a program to mypy's errors about it."""
    folder = tmp_path_factory.mktemp("mypy")

    def check(source):
        (folder / "program.py").write_text(source)
        line = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py"]
        environ = dict(os.environ, MYPYPATH=ROOT, COLUMNS="200")
        done = subprocess.run(
            line, env=environ, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return [text for text in done.stdout.splitlines() if "program.py" in text]

    return check


def test_a_program_of_public_names_has_no_error(complaints):
    assert complaints(PROGRAM) == []


MISSPELT = """
tf_multitier.get_embeding_variable
tf_multitier.keras.Embeding
tf_multitier.serving.Modell
tf_multitier.checkpoint.laod
tf_multitier.engine.Tabel
tf_multitier.deeprec.instal
"""


def test_misspelt_names_are_refused(complaints):
    found = complaints("import tf_multitier" + MISSPELT)
    assert len(found) == len(MISSPELT.split())
    assert all("Module has no attribute" in text for text in found), found
