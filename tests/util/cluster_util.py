"""Programs of several processes on 127.0.0.1, started by tf_multitier.launch. All end with the launcher."""

import os
import re

import forks
from paths import UTIL
from paths import environment

# The beginning of each program. It has the folder of the test as its argument.
BEGIN = """
import json, os, select, signal, sys
folder = sys.argv[1]
TF_CONFIG = json.loads(os.environ["TF_CONFIG"])
job, index = TF_CONFIG["task"]["type"], TF_CONFIG["task"]["index"]
with open(f"{folder}/{job}{index}", "w") as file:
    file.write(str(os.getpid()))

def end_task(task, number):
    pid = int(open(f"{folder}/{task}").read())
    ends = os.pidfd_open(pid)
    os.kill(pid, number)
    assert select.select([ends], [], [], 30)[0]
    return pid
"""


def launch(folder, code, *arguments, status=0, module=None, seconds=300, **variables):
    """Runs BEGIN and `code` in the processes that the launcher's arguments name: ({task: its lines}, lines of the launcher).

    status: the exit status that the launcher shall have. module: another launcher than ours. variables: of the environment.
    seconds: the most that it may take.
    """
    program = folder / "program.py"
    program.write_text(BEGIN + code)
    launcher = [os.path.join(UTIL, "forked_launch.py")] if module is None else ["-m", module]
    command = [*launcher, *arguments, str(program), str(folder)]
    done = forks.run(command, environment(**variables), timeout=seconds)
    assert done.returncode == status, done.stdout + done.stderr[-5000:]
    lines = {}
    for task, line in re.findall(r"^\[(.+?)\] (.*)$", done.stdout, re.M):
        lines.setdefault(task, []).append(line)
    return lines, [line for line in done.stderr.splitlines() if line.startswith("[launch]")]
