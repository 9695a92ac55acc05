"""python3 -m tf_multitier.launch --workers=N [--ps=N] [--max_restarts=K] SCRIPT [ARGS]: a cluster of processes on this machine.

Each process runs SCRIPT with a TF_CONFIG of its own:

    without --ps    {"worker": N}: N equal processes. Worker 0 is the chief.
    with --ps       {"chief": 1, "worker": N - 1, "ps": M}: the chief is one of the N. In programs of TensorFlow 1 it trains as a
                    worker does. In those of TensorFlow 2 it has the ClusterCoordinator, and the N - 1 workers run its steps.

A process is a server if its job is ps, or once it has called `tf_multitier.distribute.serve()`. Servers are ended when all other
processes are done.

    without servers   a process that fails ends all. Up to K times, all start again.
    with servers      up to K times, a process that fails starts again, alone. So does a server that ends before the others.

The exit status is that of the first process that failed for good, 128 + n for signal n. Ctrl-C, SIGTERM and SIGHUP end all processes:
they get SIGTERM, and SIGKILL GRACE seconds later. When the launcher itself is killed, the kernel kills its processes.

This module imports no TensorFlow, and `_src.tensorflow.start` runs it before the package does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import typing
from collections.abc import Sequence

# The number of a file descriptor: a process that serves writes a byte to it.
SERVING = "TF_MULTITIER_LAUNCH_SERVING"
GRACE = 10.0  # seconds

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_LINE = 1 << 16  # bytes; longer ones are printed in pieces
_PR_SET_PDEATHSIG = 1


def _at_least(least):
    def number(text):
        with contextlib.suppress(ValueError):
            if int(text) >= least:
                return int(text)
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, found {text!r}")

    return number


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line: workers, ps, max_restarts, and `command`, the arguments of Python. Exits with status 2 on an error."""
    parser = argparse.ArgumentParser(
        "python3 -m tf_multitier.launch",
        description="Runs a Python program in several processes of this machine, each with a TF_CONFIG of its own.",
        epilog="docs/distributed.md says which cluster the processes form.",
        usage="python3 -m tf_multitier.launch [-h] --workers=N [--ps=N] [--max_restarts=K] (SCRIPT | -m MODULE) [ARGS]",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_at_least(1),
        required=True,
        help="processes that are no servers, with the chief",
    )
    parser.add_argument(
        "--ps", metavar="N", type=_at_least(0), default=0, help="parameter servers; default: 0"
    )
    parser.add_argument(
        "--max_restarts",
        metavar="K",
        type=_at_least(0),
        default=0,
        help="times that processes which failed are started again; default: 0",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER)
    parser.add_argument("script", metavar="SCRIPT", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(arguments)
    if parsed.module:
        parsed.command = ["-m", *parsed.module]
    elif not parsed.script:
        parser.error("SCRIPT: expected a file, found none")
    elif not os.path.isfile(parsed.script[0]):
        parser.error(f"SCRIPT: expected a file, found {parsed.script[0]!r}")
    else:
        parsed.command = parsed.script
    if "TF_CONFIG" in os.environ:
        parser.error(
            f"TF_CONFIG: expected none, because the launcher sets it, found {os.environ['TF_CONFIG']!r}: start the processes of "
            "several machines by their scheduler, or unset it"
        )
    return parsed


class _Ports:
    """Free ports. Until it is closed, no other program gets them from the system.

    The sockets are bound and do not listen. So TensorFlow's servers, whose sockets also have SO_REUSEADDR, can bind the ports.
    """

    def __init__(self, number):
        self._sockets = [socket.socket() for _ in range(number)]
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("", 0))

    def addresses(self):
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in self._sockets]

    def close(self):
        for each in self._sockets:
            each.close()


def cluster_of(workers: int, servers: int, addresses: Sequence[str]) -> dict:
    """{job: addresses} of a cluster of workers + servers tasks."""
    if not servers:
        return {"worker": list(addresses)}
    jobs = {"chief": 1, "worker": workers - 1, "ps": servers}
    taken = iter(addresses)
    return {job: [next(taken) for _ in range(count)] for job, count in jobs.items() if count}


def _write(out, left):
    """Writes bytes. Not with out.write: CPython loses the rest of a write that a signal interrupts."""
    while left:
        try:
            left = left[os.write(out.fileno(), left) :]
        except BlockingIOError:  # another program that has the terminal, or pipe, made it so
            select.select([], [out], [])


class _Process:
    """A task of the cluster and its process, the first of a process group of its own.

    poll, signal, reap and start are called by the launcher's one thread: a child is killed when the thread that started it ends.
    """

    def __init__(self, job, index, command, environment, selector):
        self.name = f"{job} {index}"
        self.job = job
        self._command, self._environment, self._selector = command, environment, selector
        self._process = None
        self._pipes: dict[typing.Any, tuple] = {}  # {pipe: (where to, begun line)}
        self._serves = False

    @property
    def is_server(self):
        return self.job == "ps" or self._serves

    def start(self):
        launcher, libc = os.getpid(), ctypes.CDLL(None)

        def end_with_launcher():
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:  # it ended before
                os.kill(os.getpid(), signal.SIGKILL)

        serving, tells = os.pipe()
        self._serves = False
        self._process = subprocess.Popen(
            self._command,
            env={**self._environment, SERVING: str(tells)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[tells],
            start_new_session=True,
            preexec_fn=end_with_launcher,  # noqa: PLW1509  this program has one thread
        )
        os.close(tells)
        for pipe, out in (
            (self._process.stdout, sys.stdout),
            (self._process.stderr, sys.stderr),
            (os.fdopen(serving, "rb", buffering=0), None),
        ):
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe] = (out, b"")
            self._selector.register(pipe, selectors.EVENT_READ, self)

    def read(self, pipe):
        """Prints the lines that are there. Returns whether there may be more."""
        out, begun = self._pipes[pipe]
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if out is None:
            self._serves = self._serves or bool(data)
        else:
            *lines, begun = (begun + data).split(b"\n")
            if begun and (not data or len(begun) > _LONGEST_LINE):
                lines, begun = [*lines, begun], b""
            self._print(out, lines)
            self._pipes[pipe] = (out, begun)
        if not data:
            self._close(pipe)
        return bool(data)

    def _print(self, out, lines):
        """Prints whole lines."""
        _write(out, b"".join(b"[%s] %s\n" % (self.name.encode(), line) for line in lines))

    def _close(self, pipe):
        self._selector.unregister(pipe)
        del self._pipes[pipe]
        pipe.close()

    @property
    def is_running(self):
        return self._process is not None

    def poll(self):
        """The exit status of the process, None while it runs. It is not reaped: its process group keeps its number."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, self._process.pid, options)
        if ended is None:
            return None
        killed = ended.si_code != os.CLD_EXITED
        return 128 + ended.si_status if killed else ended.si_status

    def signal(self, number):
        os.killpg(self._process.pid, number)

    def reap(self):
        """Kills what the ended process has left in its group, and prints the rest of its output."""
        self.signal(signal.SIGKILL)
        for pipe in list(self._pipes):
            while self.read(pipe):
                pass
            if pipe in self._pipes:  # a process of another group has it
                out, begun = self._pipes[pipe]
                if begun:
                    self._print(out, [begun])
                self._close(pipe)
        ended = self._process
        self._process = None  # first: `signal` would hit another process that has its number
        ended.wait()


class _Launcher:
    """The processes of a cluster, and the loop that waits for them."""

    def __init__(self, command, cluster, max_restarts):
        self._selector = selectors.DefaultSelector()
        self._has_servers = "ps" in cluster
        self._restarts, self._max_restarts = 0, max_restarts
        self._asked: int | None = None  # the signal that ends the launcher
        self._waits_since: float | None = None  # when the chief was done; inf: the user knows
        self._processes = []
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                task = {"cluster": cluster, "task": {"type": job, "index": index}}
                environment = {"PYTHONUNBUFFERED": "1", **os.environ, "TF_CONFIG": json.dumps(task)}
                one = _Process(job, index, command, environment, self._selector)
                self._processes.append(one)

    def run(self):
        """Runs the processes until all are done or one failed. Returns the exit status."""
        with self._signals():
            try:
                return self._run()
            except OSError as error:
                no_reader = isinstance(error, BrokenPipeError)
                if not no_reader:
                    with contextlib.suppress(OSError):
                        self._say(
                            f"expected to start a process or print its output, found: {error}"
                        )
                with open(os.devnull, "wb") as nowhere:
                    for stream in (sys.stdout, sys.stderr):
                        os.dup2(nowhere.fileno(), stream.fileno())
                return 128 + signal.SIGPIPE if no_reader else 1
            finally:
                self._end()

    @contextlib.contextmanager
    def _signals(self):
        """Signals and the end of a process wake the loop."""
        wakes, woken = socket.socketpair()
        for end in (wakes, woken):
            end.setblocking(False)
        self._selector.register(wakes, selectors.EVENT_READ)
        # nohup ignores SIGHUP, for us too.
        heard = [each for each in _STOP_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._stop) for number in heard}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        fd = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            wakes.close()
            woken.close()

    def _stop(self, number, unused_frame):
        if self._asked is not None:  # asked twice: at once
            for each in self._running():
                each.signal(signal.SIGKILL)
        self._asked = number

    def _running(self):
        return [each for each in self._processes if each.is_running]

    def _others(self):
        """Those that run and are no servers."""
        return [each for each in self._running() if not each.is_server]

    def _wait(self, timeout=None):
        """Prints output, until something happens or the timeout passes. Returns [(process, status)] of those that have ended."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                while True:
                    try:
                        key.fileobj.recv(4096)
                    except BlockingIOError:
                        break
            elif key.fileobj in key.data._pipes:
                key.data.read(key.fileobj)
        return [(each, status) for each in self._running() if (status := each.poll()) is not None]

    def _run(self):
        while True:
            for each in self._processes:
                if self._asked is None and not each.is_running:
                    each.start()
            status = self._until_one_fails()
            if status is None or self._restarts == self._max_restarts:
                return status or 0
            if self._asked is not None:
                return 128 + self._asked
            self._restarts += 1
            self._end()
            self._say(f"all start again, {self._restarts} of {self._max_restarts}")

    def _until_one_fails(self):
        """None if the processes that are no servers are done; else the exit status of one that failed for good."""
        while self._asked is None:
            ended = self._wait(self._time_to_say())
            for each, _ in ended:
                each.reap()
            # Of those that are found at once, a server may have ended after the others.
            for each, status in sorted(ended, key=lambda one: one[0].is_server):
                if each.is_server and not self._others():
                    return None
                if status == 0 and not each.is_server:
                    continue
                self._say(
                    f"{each.name} ended with status {status}"
                    + " before the workers" * each.is_server
                )
                if not self._has_servers or self._restarts == self._max_restarts:
                    return status or 1
                self._restarts += 1
                self._say(f"{each.name} starts again, {self._restarts} of {self._max_restarts}")
                each.start()
            left = self._others()
            if not left:
                return None
            self._say_who_is_left(left)
        return 128 + self._asked

    def _time_to_say(self):
        if self._waits_since in (None, float("inf")):
            return None
        return max(0.0, self._waits_since + GRACE - time.monotonic())

    def _say_who_is_left(self, left):
        """A worker of a ClusterCoordinator that serves without `serve` would be waited for in silence, for ever."""
        if not self._has_servers or left[0].job == "chief":
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = time.monotonic()
        elif self._time_to_say() == 0:
            self._waits_since = float("inf")
            self._say(
                f"the chief is done, and {', '.join(each.name for each in left)} still run: expected their end, or a call of "
                "tf_multitier.distribute.serve() in workers that run the steps of a ClusterCoordinator"
            )

    def _end(self):
        """Ends all processes."""
        for each in self._running():
            each.signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        while self._running():
            left = until - time.monotonic()
            if left <= 0:
                for each in self._running():
                    each.signal(signal.SIGKILL)
            for each, _ in self._wait(left if left > 0 else None):
                each.reap()

    def _say(self, text):
        _write(sys.stderr, f"[launch] {text}\n".encode())


def _open_standard_streams():
    """Opens those that are closed: pipes would get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout, sys.stderr = (each or open(os.devnull, "w") for each in (sys.stdout, sys.stderr))  # noqa: SIM115


def main(arguments: Sequence[str]) -> int:
    """Runs a command line, without the name of the program. Returns the exit status."""
    _open_standard_streams()
    parsed = parse(arguments)
    try:
        ports = _Ports(parsed.workers + parsed.ps)
    except OSError as error:
        print(
            f"python3 -m tf_multitier.launch: expected {parsed.workers + parsed.ps} free ports, found fewer: {error.strerror}",
            file=sys.stderr,
        )
        return 1
    with contextlib.closing(ports):
        cluster = cluster_of(parsed.workers, parsed.ps, ports.addresses())
        command = [sys.executable, *parsed.command]
        return _Launcher(command, cluster, parsed.max_restarts).run()


# Under a debugger or a profiler; else `_src.tensorflow.start` has run it.
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
