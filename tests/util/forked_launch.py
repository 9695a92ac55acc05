"""python forked_launch.py ARGS: tf_multitier.launch, whose processes are forks of this one. forks.run() runs it, so that all have
imported TensorFlow and tf_multitier. test_launch.py has the launcher itself.
"""

import gc
import importlib.util
import os
import subprocess
import sys

import forks
from paths import ROOT

_LAUNCH = os.path.join(ROOT, "tf_multitier", "launch.py")


class Program(BaseException):
    """Goes up to the end of this file in a new process: a program begins where the interpreter ends."""


class Popen:
    """What the launcher uses of subprocess.Popen."""

    def __init__(self, command, env, pass_fds, preexec_fn, **_):
        pipes = [os.pipe(), os.pipe()]
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            preexec_fn()
            for number, (_, end) in enumerate(pipes, 1):
                os.dup2(end, number)
            os.set_inheritable(pass_fds[0], True)
            launch._Launcher._end = lambda self: None  # the others go on
            raise Program(command[1:], env, pass_fds[0])
        for _, end in pipes:
            os.close(end)
        self.stdout, self.stderr = (os.fdopen(end, "rb", buffering=0) for end, _ in pipes)

    def wait(self):
        os.waitpid(self.pid, 0)


def program():
    """Runs the launcher. Returns in the processes of programs alone: (arguments, environment, file that stays open)."""
    if "-m" not in sys.argv:  # the module may prepare its process before it imports tf_multitier
        import tf_multitier  # noqa: F401  once for all programs
    launch.subprocess = type("subprocess", (), {**vars(subprocess), "Popen": Popen})
    try:
        status = launch.main(sys.argv[1:])
    except Program as started:
        return started.args
    sys.exit(status)


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("launch", _LAUNCH)
    launch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launch)
    launch.GRACE = float(os.environ.get("LAUNCH_GRACE", launch.GRACE))
    arguments, environment, kept = program()
    gc.collect()  # closes the launcher's files
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 10)
    forks._run(arguments, environment, os.getcwd())
