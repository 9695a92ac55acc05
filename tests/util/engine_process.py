"""Processes with the engine alone, for tests that kill them: tf_multitier without its __init__, which would load TensorFlow.

process = start('say(table.path); wait()', arguments...)    # `engine`, `np`, `arguments`, `say` and `wait` are there
path = process.hear()
process.go()                                                # ends a wait()
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from paths import ROOT
from paths import UTIL

PACKAGE = os.path.join(ROOT, "tf_multitier")

PRELUDE = f"""
import importlib, json, os, signal, sys, types
package = types.ModuleType("tf_multitier")
package.__path__ = [{PACKAGE!r}]
sys.modules["tf_multitier"] = package
sys.path.insert(0, {UTIL!r})
import numpy as np
engine = importlib.import_module("tf_multitier.engine")
_engine = importlib.import_module("tf_multitier._engine")
arguments = json.loads(sys.argv[1])

def say(value):
    print(json.dumps(value), flush=True)

def wait():
    sys.stdin.readline()

def error(call):
    try:
        call()
    except Exception as e:
        return [type(e).__name__, str(e)]
    return None

def fill(table, n, value=1.0, first=0):
    table.apply("sgd", np.arange(first, first + n), np.full((n, table.dim), -value), hyper={{"learning_rate": 1.0}})
"""

# Mounts in a namespace of the process's own, so that nothing stays: mount("size=8m") gives a tmpfs; skips where that is forbidden.
MOUNT = textwrap.dedent("""
    import ctypes, subprocess

    libc = ctypes.CDLL(None, use_errno=True)
    def checked(status, what):
        if status != 0:
            say({"skip": f"{what}: {os.strerror(ctypes.get_errno())}"})
            sys.exit()

    def mount(directory, options):
        checked(libc.unshare(0x00020000), "no mount namespace")
        checked(libc.mount(None, b"/", None, 0x4000 | 0x40000, None), "mount")  # private
        checked(libc.mount(b"tmpfs", directory.encode(), b"tmpfs", 0, options.encode()), "mount of a tmpfs")

    def remount(directory, options, read_only=False):
        checked(libc.mount(b"tmpfs", directory.encode(), b"tmpfs", 32 | (1 if read_only else 0), options.encode()), "remount")
""")


class Process:
    """A running one; see the top."""

    def __init__(self, code, *arguments, environment=None):
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self):
        return self.popen.pid

    def hear(self):
        """The next message of the process."""
        line = self.popen.stdout.readline()
        assert line, f"the process ended with {self.popen.wait()}"
        return json.loads(line)

    def go(self):
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def end(self):
        """Lets it run to its end, which must be good."""
        self.popen.communicate(timeout=120)
        assert self.popen.returncode == 0

    def kill(self):
        self.popen.kill()
        self.popen.communicate()


def run(code, *arguments, environment=None):
    """The first message of a process, which must succeed."""
    process = Process(code, *arguments, environment=environment)
    said = process.hear()
    process.end()
    return said


def result(said):
    """What a process with mounts said. Skips the test if it may not mount."""
    if "skip" in said:
        pytest.skip(said["skip"])
    return said
