"""Programs that are killed, many times: a process imports what they need once, and each life is a child that it forks.

    with Lives("import test_x", "test_x.live({path!r})", path=path) as lives:
        for seed in range(50):
            with lives.begin() as life:
                done = [life.line() for _ in range(3)][-1]
            done = (life.rest() or [done])[-1]     what the program said before it was killed, at the end of the block

The program calls `say(values)`, which writes a line in one call: a kill leaves no half of it. The imports must start no thread and no
Session: a child has only the thread that forks.
"""

import contextlib
import os
import select
import signal
import textwrap

import forks
from engine_util import STRESS
from paths import environment

# Rounds of each test with kills.
KILLS = int(os.environ.get("TF_MULTITIER_KILLS", "50" if STRESS else "10"))

_PARENT = """
import os, sys, traceback
{imports}
def say(*values):
    os.write(1, (" ".join(map(str, values)) + "\\n").encode())
for given in sys.stdin:
    given = given.strip()
    child = os.fork()
    if child == 0:
        try:
            say(os.getpid())
            {life}
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    say("dead", status)
"""


class Life:
    """One child, which runs."""

    def __init__(self, lines):
        self._lines = lines
        self._rest: list = []
        self._status = None  # once it is dead, as os.waitpid gives it
        self.pid = int(lines.readline())

    def line(self):
        """The next line that the child says."""
        line = self._next()
        assert line is not None, f"the program ended by itself: {self._status}"
        return line

    def wait(self, seconds):
        """Waits until the child says another line, at most so long."""
        select.select([self._lines], [], [], seconds)

    def is_dead(self):
        """Whether the next line says so. Keeps another one for `rest`."""
        line = self._next()
        if line is not None:
            self._rest.append(line)
        return line is None

    def rest(self):
        """The lines that the child said and `line` did not give, once it is dead."""
        return self._rest

    def end(self):
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):  # it has killed itself
                os.kill(self.pid, signal.SIGKILL)
        while (line := self._next()) is not None:
            self._rest.append(line)

    def was_killed(self):
        """Whether SIGKILL ended the child, not an exception. Only once it is dead."""
        return self._status == f"dead {int(signal.SIGKILL)}"

    @property
    def status(self):
        """What the parent said of the child's end."""
        return self._status

    def _next(self):
        if self._status is not None:
            return None
        line = self._lines.readline().strip()
        if line and not line.startswith("dead "):
            return line
        self._status = line or "no process is there"
        return None


class Lives:
    """The process that forks. imports, life: Python code; {names} in it stand for the keyword arguments."""

    def __init__(self, imports, life, **arguments):
        life = textwrap.indent(textwrap.dedent(life).strip(), " " * 12).strip()
        self._code = _PARENT.format(imports=imports, life=life.format(**arguments))

    def __enter__(self):
        self._process = forks.start(["-c", self._code], env=environment())
        return self

    def __exit__(self, *unused):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    @contextlib.contextmanager
    def begin(self, given=""):
        """A child, which is killed at the end of the block. given: one line, the child's variable `given`."""
        self._process.stdin.write(f"{given}\n")
        self._process.stdin.flush()
        life = Life(self._process.stdout)
        try:
            yield life
        except BaseException:
            life.end()
            raise
        life.end()
        assert life.was_killed(), f"expected that SIGKILL ended the program, found {life.status}"
