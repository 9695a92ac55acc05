"""What proves the job `hbm` of tier 3 (build_tools/suites.py): its runs fail where nothing is made with HBM."""

import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

from build_tools import suites


def run(file, selection, folder, **variables):
    _, command, over_hbm = suites.over_hbm("HBM_DRAM", "4096", {file: selection}, str(folder))
    return subprocess.run(
        [sys.executable, *command[1:]],
        env=dict(os.environ, **over_hbm, **variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "file, selection, made, code",
    [
        ("test_documents.py", "readme", 0, 3),
        ("test_group_graph.py", "parts_on_several", r"[1-9]\d*", 0),
    ],
)
def test_a_file_that_makes_nothing_with_hbm_fails_in_a_run_over_hbm(
    file, selection, made, code, tmp_path
):
    done = run(file, selection, tmp_path)
    assert done.returncode == code, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(f"{file}: {made} variables and tables with HBM", done.stdout), done.stdout


def test_programs_in_a_run_over_hbm_ask_for_hbm(tmp_path):
    _, _, over_hbm = suites.over_hbm("HBM_DRAM", "4096", {}, str(tmp_path))
    command = [*suites.pytest(["test_deeprec_programs.py"], "-q", "-x", "-k", "gpu")]
    done = subprocess.run(
        [sys.executable, *command[1:]],
        env=dict(os.environ, **dict(over_hbm, TF_MULTITIER_DEVICE="")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert re.search(r"embedding variable '\w+': .*HBM_DRAM", done.stdout), done.stdout
