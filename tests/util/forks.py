"""Programs in processes of their own. TensorFlow's import takes seconds, so it is done once: a process has imported it, and each
program is a fork of it. It runs as `python ...` would run it, to the end of the interpreter, from its own folder and environment.
A program that begins with an import of tf_multitier is a fork of a process that has imported that, too.

    done = forks.run(["-m", "tf_multitier.deeprec", "program.py", "--steps", "3"], env=environ, cwd=folder)
    done.returncode, done.stdout, done.stderr                  as of subprocess.run(..., text=True)
    program = forks.start(["-c", code])                        one that runs: pid, stdin, stdout, wait(), kill()

Not for tests of what happens while TensorFlow is imported, or of what its C++ code logs: there its variables TF_CPP_* and TF_ENABLE_*
have the values of conftest.py.
"""

import ast
import atexit
import contextlib
import functools
import gc
import importlib
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

# A process of each has imported it. Each is a fork of the one before.
_IMPORTED = ["tensorflow", "tf_multitier", "tf_multitier.deeprec.script"]


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
        cwd = str(cwd or os.getcwd())
        imported = _first_import(arguments, cwd)
        runs_deeprec = imported == _IMPORTED[2]  # sets the variable if it is not set
        legacy = env.get("TF_USE_LEGACY_KERAS", "1" if runs_deeprec else None)
        self.arguments, self.returncode, self.stdin, self.stdout = arguments, None, None, None
        self._connection = socket.socket(socket.AF_UNIX)
        with _FIRST:
            folder = _started(legacy)
        self._connection.connect(os.path.join(folder, imported))
        request = json.dumps([list(map(str, arguments)), env, cwd]).encode()
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
            with contextlib.suppress(ProcessLookupError):  # it has ended, and `wait` has not asked
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _first_import(arguments, cwd):
    """What of _IMPORTED a program imports before it does anything else."""
    kind, *rest = map(str, arguments)
    if kind == "-m":
        if rest[0] == "tf_multitier.deeprec":
            return _IMPORTED[2]
        return _IMPORTED[1 if rest[0].startswith("tf_multitier.") else 0]
    if os.path.basename(kind) == "forked_launch.py":
        return _IMPORTED["-m" not in rest]
    if kind == "-c":
        text = rest[0]
    else:
        with open(os.path.join(cwd, kind), encoding="utf-8") as file:
            text = file.read()
    try:
        body = ast.parse(text).body
    except SyntaxError:  # the program will say so
        return _IMPORTED[0]
    for statement in body:
        if isinstance(statement, ast.Import):
            names = [name.name for name in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # its docstring
        else:
            break
        if any(name.partition(".")[0] == "tf_multitier" for name in names):
            return _IMPORTED[1]
    return _IMPORTED[0]


@functools.cache
def _started(legacy):
    """The folder with the sockets of processes that have imported TensorFlow with this value of TF_USE_LEGACY_KERAS."""
    from paths import ROOT  # here, so that the processes of programs have no module of this name

    folder = tempfile.TemporaryDirectory(prefix="forks_")
    environ = dict(os.environ, PYTHONPATH=ROOT)
    if legacy is not None:
        environ["TF_USE_LEGACY_KERAS"] = legacy
    process = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), folder.name],
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
    return folder.name


def _serve(folder):
    """Forks a process for each connection. Returns in the processes of programs alone: (arguments, environment, folder)."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes of connections
    listener = _imported(folder, _IMPORTED[: 3 if "TF_USE_LEGACY_KERAS" in os.environ else 2])
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


def _imported(folder, modules):
    """Imports the first of `modules`, and in forks of this process those after it. A listener for programs that begin so."""
    importlib.import_module(modules[0])
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, modules[0]))
    listener.listen(16)
    if len(modules) == 1:
        os.write(1, b"ready\n")
    elif os.fork() == 0:
        listener.close()
        return _imported(folder, modules[1:])
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)  # its reader sees the end where an import fails
    return listener


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
    if environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:2] = [path for path in paths if path]
    sys.orig_argv = [sys.executable, *arguments]
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        if "tf_multitier" in sys.modules:
            # It reads the command line.
            importlib.reload(sys.modules["tf_multitier._src.tensorflow.start"])
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
    _run(*_serve(sys.argv[1]))
