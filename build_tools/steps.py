"""The output of configure.py: a line for each step, with its time. The output of other programs goes to a log file.

    with step("Python packages of requirements.txt"):
        logged(["pip", "install", ...], "pip could not install requirements.txt")

A program that fails raises Failure, with the end of what it printed and the name of the log file.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOG = os.path.join(ROOT, "configure.log")

_LINES_SHOWN = 30
_BAZEL_PROGRESS = re.compile(r"^(?:Loading|Analyzing): |^\[([0-9,]+ / [0-9,]+)\]")


class Failure(Exception):
    """One message for the user; the process exits with 1."""


def say(message):
    print(message, flush=True)


def duration(seconds):
    """0.31 -> '0.3 s', 75 -> '1 min 15 s'."""
    if seconds < 60:
        return "%.1f s" % seconds
    return "%d min %02d s" % divmod(round(seconds), 60)


@contextlib.contextmanager
def step(title):
    """Prints `title`, runs the body, and completes the line with the time that took."""
    print("  %-50s " % title, end="", flush=True)
    started = time.time()
    try:
        yield
    except BaseException:
        print("failed after " + duration(time.time() - started), flush=True)
        raise
    print("%12s" % duration(time.time() - started), flush=True)


class Meanwhile:
    """Runs `body` in a thread, next to what else is done. Its line is printed when wait() sees its end, on `stream`."""

    def __init__(self, title, body, stream=None):
        self._title, self._body, self._stream = title, body, stream or sys.stdout
        self._error, self._seconds = None, 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.daemon = True  # Ctrl-C ends the process
        self._thread.start()

    def _run(self):
        started = time.time()
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001  wait() raises it
            self._error = error
        self._seconds = time.time() - started

    def wait(self):
        """Waits for the end. Raises what the body raised."""
        self._thread.join()
        took = duration(self._seconds)
        line = "%12s" % took if self._error is None else "failed after " + took
        self._stream.write("  %-50s %s\n" % (self._title, line))
        self._stream.flush()
        if self._error is not None:
            raise self._error


def side_by_side(runs):
    """Runs programs, [(title, command, {variable: value})], as many at a time as there are cores. Their output goes to the log.

    Raises Failure, with the end of the output of each that failed.
    """
    failures, waiting = [], list(runs)
    while waiting:
        now = [waiting.pop(0) for _ in range(min(len(waiting), os.cpu_count() or 1))]
        for running in [Meanwhile(run[0], _program(*run)) for run in now]:
            try:
                running.wait()
            except Failure as failure:
                failures.append(str(failure))
    if failures:
        raise Failure("\n\n".join(failures))


def _program(title, command, variables):
    return lambda: logged(command, title + " FAILED", env=dict(os.environ, **variables))


@contextlib.contextmanager
def temporary_folder():
    folder = tempfile.mkdtemp(prefix="tf_multitier_")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def begin_log(command):
    """Empties the log."""
    with open(LOG, "w") as log:
        log.write("configure.py %s, %s\n" % (command or "", time.strftime("%Y-%m-%d %H:%M:%S")))


def logged(command, complaint, shown=None, **kwargs):
    """Runs a program with its output in the log. Returns the output.

    Raises Failure where it exits with another status than 0: `complaint`, and a part of the output. `shown` chooses that
    part; without it, it is the end.
    """
    lines = []
    # Unbuffered: the lines of programs that run at once do not mix.
    with open(LOG, "ab", 0) as log:
        log.write(("\n$ " + " ".join(command) + "\n").encode("utf-8", "replace"))
        try:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=kwargs.pop("cwd", ROOT),
                **kwargs,
            )
        except OSError as error:
            raise Failure("%s: %s" % (complaint, error))
        with process.stdout, _Progress() as progress:
            for line in process.stdout:
                text = line.decode("utf-8", "replace").rstrip()
                if progress.takes(text):
                    continue
                log.write(line)
                lines.append(text)
        status = process.wait()
    if status != 0:
        part = shown(lines) if shown else lines[-_LINES_SHOWN:]
        raise Failure("%s.\n\n%s\n\nThe whole output is in %s" % (complaint, "\n".join(part), LOG))
    return "\n".join(lines)


class _Progress:
    """Bazel's `[126 / 169]`, shown at the end of the step's line on a terminal, and nowhere else."""

    def __init__(self):
        self._width = 0

    def takes(self, line):
        """Whether `line` reports progress."""
        found = _BAZEL_PROGRESS.match(line)
        if found and found.group(1) and sys.stdout.isatty():
            self._show(found.group(1))
        return found is not None

    def _show(self, text):
        print("\b" * self._width + text.ljust(self._width), end="", flush=True)
        self._width = max(self._width, len(text))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._show("")
        print("\b" * self._width, end="", flush=True)


def failed_tests(lines):
    """The part of the output of `bazel test` to show: output of failed tests and the summary; all if the build failed."""
    found, inside = [], False
    for line in lines:
        inside = inside or line.startswith("==================== Test output for ")
        if inside or re.match(
            r"^(ERROR|FAILED|//\S+ +(FAILED|TIMEOUT|FAILED TO BUILD|NO STATUS)|Executed )", line
        ):
            found.append(line)
        if inside and line == "=" * 80:
            inside = False
    return found or lines[-_LINES_SHOWN:]


def output_of(command, **kwargs):
    """(exit status, stdout, stderr) of a program."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        cwd=kwargs.pop("cwd", ROOT),
        **kwargs,
    )
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def run(command, **kwargs):
    """The exit status of a program whose output the user sees."""
    sys.stdout.flush()
    return subprocess.call(command, cwd=kwargs.pop("cwd", ROOT), **kwargs)


def write_if_changed(path, text):
    """Leaves the time of a file alone that has this text: Bazel and Python look at it."""
    if os.path.exists(path):
        with open(path) as existing:
            if existing.read() == text:
                return
    temporary = path + ".tmp"
    with open(temporary, "w") as new:
        new.write(text)
    os.replace(temporary, path)
