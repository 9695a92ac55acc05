"""The suites of savers, prefetch and grouped lookups again, over HBM: the first tier of variables without a storage_option.

The device is emulated. HBM holds a few rows, so that rows come and go in every step. A run that makes nothing with HBM fails
(hbm_plugin.py).
"""

import os
import re
import subprocess
import sys

import pytest
from storage_util import HBM_TYPES

_HERE = os.path.dirname(os.path.abspath(__file__))

SIZES = {"HBM_DRAM": "4096", "HBM_DRAM_SSDHASH": "4096,8192"}  # bytes of each tier but the last

# (file, -k expression). Left out: optimizers without a kernel for HBM, which are refused there by name, and tests that say in
# which tier each row is without HBM. test_storage.py has both for HBM.
SUITES = [
    ("test_saver.py", ""),
    ("test_engine_group.py", ""),
    ("test_group_lookup.py", ""),
    ("test_group_updates.py", "not adadelta"),
    ("test_group_columns.py", ""),
    ("test_group_concat.py", "not one_op_each_way"),  # variables with HBM have an op of their own
    ("test_group_errors.py", ""),
    ("test_group_graph.py", ""),
    ("test_group_stock.py", ""),
    ("test_group_sequence_columns.py", ""),
    ("test_restore.py", "not a_bar_on_a_terminal"),  # over a tier below it reads rows three times
    ("test_save_moment.py", ""),
    ("test_incremental_saver.py", ""),
    ("test_storage_path.py", ""),
    ("test_storage_sharing.py", ""),
    ("test_deeprec_programs.py", "gpu"),  # with tf.device('/GPU:0') and no GPU
]

# The same of tests whose variables have types of their own: HBM is put above those with DRAM (storage_util.option).
WITH_OPTIONS = [
    ("test_prefetch.py", ""),
    (
        "test_storage.py",
        "not adadelta and not adagrad_decay and not drops and not by_hand and not definition and not statistics",
    ),
]

# Each runs for more than half a minute: only with TF_MULTITIER_STRESS.
LONG = ("test_incremental_saver.py", "test_storage_path.py", "test_storage_sharing.py")

RUNS = [(kind, *suite) for kind in HBM_TYPES for suite in SUITES]
RUNS += [("HBM_DRAM_SSDHASH", *suite) for suite in WITH_OPTIONS]


def run_of(kind, file, selection):
    """The parameters of a run. Each suite that is not LONG runs over one type always, and all over both with TF_MULTITIER_STRESS."""
    always = "HBM_DRAM_SSDHASH" if file in ("test_saver.py", *dict(WITH_OPTIONS)) else "HBM_DRAM"
    stress = pytest.mark.skipif(
        (kind != always or file in LONG) and not os.environ.get("TF_MULTITIER_STRESS"),
        reason="takes minutes: set TF_MULTITIER_STRESS",
    )
    return pytest.param(kind, file, selection, marks=stress, id=f"{kind}-{file}")


# Its tests run programs in processes of their own, in which the plugin counts nothing.
PROGRAMS = "test_deeprec_programs.py"


def run(kind, file, selection, folder, device, *options):
    python_path = [_HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        + [os.path.join(_HERE, file), "-k", selection],
        env=dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(python_path),
            TF_MULTITIER_DEVICE=device,
            TF_MULTITIER_STORAGE_TYPE=kind,
            TF_MULTITIER_STORAGE_PATH=str(folder),
            TF_MULTITIER_STORAGE_SIZE=SIZES[kind],
        ),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind, file, selection", [run_of(*run) for run in RUNS])
def test_suite_passes_over_hbm(kind, file, selection, tmp_path):
    options = () if file == PROGRAMS else ("-p", "hbm_plugin")
    done = run(kind, file, selection, tmp_path, "emulated", *options)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_run_over_hbm_without_hbm_fails(tmp_path):
    """What the runs above prove: the plugin refuses one that makes nothing with HBM, and the programs ask for HBM."""
    done = run("HBM_DRAM", "test_documents.py", "readme", tmp_path, "emulated", "-p", "hbm_plugin")
    assert done.returncode == 3 and "variables and tables with HBM: 0" in done.stdout, done.stdout
    done = run("HBM_DRAM", PROGRAMS, "gpu", tmp_path, "", "-x")
    assert done.returncode == 1 and re.search(r"embedding variable '\w+': .*HBM_DRAM", done.stdout)
