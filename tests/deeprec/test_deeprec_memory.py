"""The runner keeps freed memory for the next step."""

import os
import subprocess
import sys

import forks
from paths import ROOT

SCRIPT = """
import resource
for step in range(40):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (48 << 20)
print("faults", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(tmp_path, *runner, **environment):
    """Of 30 times 48 MiB, allocated, written and freed."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    line, environ = [*runner, str(script)], {**os.environ, **environ}
    if runner:  # imports TensorFlow
        run = forks.run(line, environ)
        run.check_returncode()
    else:
        run = subprocess.run(
            [sys.executable, *line], env=environ, capture_output=True, text=True, check=True
        )
    return int(run.stdout.rpartition("faults ")[2])


def test_the_runner_keeps_freed_memory_unless_the_environment_sets_malloc(tmp_path):
    runner = ("-m", "tf_multitier.deeprec")
    assert page_faults(tmp_path) > 500  # memory that goes back to the system
    assert page_faults(tmp_path, *runner) < 100
    assert page_faults(tmp_path, *runner, MALLOC_MMAP_THRESHOLD_="1000000") > 500
