"""Programs in processes of their own. TensorFlow's import takes seconds, so it is done once: a process has imported it, and each
program is a fork of it. It runs as `python ...` would run it, to the end of the interpreter, from its own folder and environment.

    done = forks.run(["-m", "tf_multitier.deeprec", "program.py", "--steps", "3"], env=environ, cwd=folder)
    done.returncode, done.stdout, done.stderr                  as of subprocess.run(..., text=True)
    program = forks.start(["-c", code])                        one that runs: pid, stdin, stdout, wait(), kill()

Not for tests of what happens while TensorFlow is imported, or of what its C++ code logs: there its variables TF_CPP_* and TF_ENABLE_*
have the values of conftest.py.
"""

import atexit
import contextlib
import functools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types

_FIRST = threading.Lock()


def run(arguments, env=None, cwd=None, timeout=300):
    """What `python arguments...` prints and its exit status. After `timeout` seconds it is killed: subprocess.TimeoutExpired."""
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as errors,
    ):
        program = Program(arguments, env, cwd, [nothing, out, errors])
        try:
            status = program.wait(timeout)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), errors.read())


def start(arguments, env=None, cwd=None):
    """A Program with pipes of text, `stdin` and `stdout`, that runs. The end of its block, if it has one, kills it."""
    pipes = [os.pipe(), os.pipe()]
    with os.fdopen(pipes[0][0]) as theirs, os.fdopen(pipes[1][1], "w") as ours:
        program = Program(arguments, env, cwd, [theirs, ours, sys.__stderr__])
    program.stdin, program.stdout = os.fdopen(pipes[0][1], "w"), os.fdopen(pipes[1][0])
    return program


class Program:
    """What tests use of subprocess.Popen. Its standard streams are `files`."""

    def __init__(self, arguments, env, cwd, files):
        env = dict(os.environ if env is None else env)
        runs_deeprec = arguments[:2] == [
            "-m",
            "tf_multitier.deeprec",
        ]  # sets the variable if it is not set
        legacy = env.get("TF_USE_LEGACY_KERAS", "1" if runs_deeprec else None)
        self.arguments, self.returncode, self.stdin, self.stdout = arguments, None, None, None
        self._connection = socket.socket(socket.AF_UNIX)
        with _FIRST:
            self._connection.connect(_started(legacy))
        request = json.dumps([list(map(str, arguments)), env, str(cwd or os.getcwd())]).encode()
        size = len(request).to_bytes(8, "little")
        socket.send_fds(self._connection, [size], [file.fileno() for file in files])
        self._connection.sendall(request)
        self.pid = self._number()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.kill()
        self.wait()

    def _number(self):
        """The next line of the process that forks."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._connection.recv(1)
            assert byte, "the process that runs programs ended"
            line += byte
        return int(line)

    def wait(self, timeout=None):
        """Its exit status."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.arguments, timeout)
            self.returncode = os.waitstatus_to_exitcode(self._number())
            self._connection.close()
        return self.returncode

    def communicate(self, text="", timeout=None):
        """What it prints, given `text`, until its end. It is killed after `timeout`."""
        killer = threading.Timer(timeout or threading.TIMEOUT_MAX, self.kill)
        killer.daemon = True
        killer.start()
        self.stdin.write(text)
        self.stdin.close()
        printed = self.stdout.read()
        self.wait(timeout)
        killer.cancel()
        return printed

    def send_signal(self, number):
        if self.returncode is None:  # else the number may be another process's
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


@functools.cache
def _started(legacy):
    """The path of the socket of a process that has imported TensorFlow with this value of TF_USE_LEGACY_KERAS."""
    folder = tempfile.TemporaryDirectory(prefix="forks_")
    path = os.path.join(folder.name, "socket")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if legacy is not None:
        environ["TF_USE_LEGACY_KERAS"] = legacy
    process = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), path],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n", "the process that runs programs did not start"

    def end():
        process.stdin.close()  # ends it, also where this process is killed
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return path


def _serve(path):
    """Forks a process for each connection. Returns in the processes of programs alone: (arguments, environment, folder)."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes of connections
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os._exit(0)  # who started it has ended
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _one(connection)
        connection.close()


def _one(connection):
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    request = connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
    program = os.fork()
    if program != 0:
        for file in files:
            os.close(file)
        connection.sendall(b"%d\n" % program)
        _, status = os.waitpid(program, 0)
        with contextlib.suppress(BrokenPipeError):  # it was killed
            connection.sendall(b"%d\n" % status)
        os._exit(0)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return json.loads(request)


def _run(arguments, environ, folder):
    """As `python arguments...` does."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [path for path in paths if path]
    sys.orig_argv = [sys.executable, *arguments]
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        sys.path.insert(0, folder)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    import gc

    import tensorflow  # noqa: F401

    gc.freeze()

    _run(*_serve(sys.argv[1]))
