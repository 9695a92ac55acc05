"""The notebooks of examples/notebooks run, and what they say is True is so."""

import json
import os
import tempfile

import pytest
from paths import ROOT

FOLDER = os.path.join(ROOT, "examples", "notebooks")
BOOKS = ["keras_quick_start.ipynb", "larger_than_memory.ipynb"]


def code_cells(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as book:
        return [cell for cell in json.load(book)["cells"] if cell["cell_type"] == "code"]


def test_every_notebook_is_run():
    assert sorted(name for name in os.listdir(FOLDER) if name.endswith(".ipynb")) == BOOKS


@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_runs_and_learns(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = code_cells(name)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(compile("".join(cell["source"]), name, "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    texts = ["".join(output.get("text", "")) for cell in cells for output in cell["outputs"]]
    said = [line for text in texts for line in text.splitlines() if "True" in line]
    assert said
    assert [line for line in printed if "True" in line] == said
    loss = names["history"].history["loss"]
    assert loss[-1] < 0.8 * loss[0]
