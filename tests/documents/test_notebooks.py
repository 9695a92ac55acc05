"""The notebooks of examples/notebooks run, and what they say is True is so."""

import glob
import json
import os
import tempfile

import pytest
from paths import ROOT

BOOKS = glob.glob(os.path.join(ROOT, "examples", "notebooks", "*.ipynb"))


def code_cells(path):
    with open(path, encoding="utf-8") as book:
        return [cell for cell in json.load(book)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", BOOKS, ids=map(os.path.basename, BOOKS))
def test_a_notebook_runs_and_learns(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = code_cells(path)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(compile("".join(cell["source"]), path, "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    texts = ["".join(output.get("text", "")) for cell in cells for output in cell["outputs"]]
    said = [line for text in texts for line in text.splitlines() if "True" in line]
    assert said
    assert [line for line in printed if "True" in line] == said
    loss = names["history"].history["loss"]
    assert loss[-1] < 0.8 * loss[0]
