"""`configure.py check`: static checks of the sources, in less than a minute.

  formats   clang-format on C++ (.clang-format), ruff format on Python (pyproject.toml)
  lint      ruff's rules on Python (pyproject.toml)
  types     mypy on the public Python API
  locks     clang's thread-safety analysis, and its warnings, on the engine's files that use cc/base/mutex.h
  texts     tier 0 of the tests: the include rules of cc/; links, line lengths, unclear words; the form of messages

`configure.py check --fix` first formats files and applies ruff's fixes.
"""

import os
import re
import subprocess
import tempfile

from build_tools import suites
from build_tools.environment import VENV
from build_tools.steps import ROOT, Failure, Meanwhile, logged, output_of, step

# One real check must be on for clang-tidy to run at all; this one finds errors.
_TIDY_CHECKS = "--checks=-*,bugprone-use-after-move,clang-diagnostic-*"
_TIDY_FLAGS = [
    "-x",
    "c++",
    "-std=c++17",
    "-I.",
    "-Wall",
    "-Wextra",
    "-Wthread-safety",
    "-Wno-unknown-warning-option",
]
# Code that the analysis does not cover: it includes TensorFlow or Python.
_NOT_ENGINE = ("cc/tensorflow/", "cc/python/")


def check(fix):
    files = _tracked_files()
    cpp = [
        path
        for path in files
        if path.startswith(("benchmarks/", "cc/")) and path.endswith((".h", ".cc"))
    ]
    python = [path for path in files if path.endswith(".py")]
    if fix:
        _fix(cpp, python)
    # Those of one process each run side by side, before the locks, which take all cores.
    small = [
        ("types", lambda: logged([_tool("mypy")], "mypy found wrong or missing types", shown=_all)),
        ("layers, texts", _run_texts),
        ("format", lambda: check_formats(cpp, python)),
        (
            "lint",
            lambda: logged(
                [_tool("ruff"), "check", "--quiet"], "ruff found what its rules forbid", shown=_all
            ),
        ),
    ]
    failures = []
    for group in (small, [("locks", lambda: check_locks(cpp))]):
        for title, running in [(title, Meanwhile(title, look)) for title, look in group]:
            try:
                running.wait()
            except Failure as failure:
                failures.append("%s: %s" % (title, failure))
    if failures:
        raise Failure("\n\n".join(failures))


def _all(lines):
    return lines


def _tool(name):
    return os.path.join(VENV, "bin", name)


def _tracked_files():
    """The files that git tracks or would track; without git, every file."""
    status, stdout, _ = output_of(["git", "ls-files", "--cached", "--others", "--exclude-standard"])
    if status == 0:
        return sorted(
            path for path in set(stdout.splitlines()) if os.path.isfile(os.path.join(ROOT, path))
        )
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith((".", "bazel-"))]
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(found)


def _fix(cpp, python):
    with step("formatting"):
        logged([_tool("clang-format"), "-i"] + cpp, "clang-format failed")
        logged([_tool("ruff"), "check", "--quiet", "--fix-only"], "ruff failed")
        logged([_tool("ruff"), "format", "--quiet"] + python, "ruff format failed")


def check_formats(cpp, python):
    clang_format = [_tool("clang-format"), "--dry-run", "-Werror"]
    ruff = [_tool("ruff"), "format", "--check", "--output-format=concise"]
    for command, sources in ((clang_format, cpp), (ruff, python)):
        if not sources:
            continue
        logged(
            command + sources,
            "these files are not formatted: run `python3 configure.py check --fix`",
            shown=_files_named,
        )


def _files_named(lines):
    """The files at the beginning of a formatter's messages, each once."""
    found = {line.split(":")[0] for line in lines if re.match(r"[\w./]+:\d+:\d+: ", line)}
    return sorted(found) or lines


def uses_locks(path):
    """True if a source of the engine includes cc/base/mutex.h, or if its header or a header of its folder does."""
    if (
        path.startswith(_NOT_ENGINE)
        or not path.endswith(".cc")
        or path.endswith(("_test.cc", "_benchmark.cc", ".cu.cc"))  # clang here knows no CUDA
    ):
        return False
    with open(os.path.join(ROOT, path), encoding="utf-8") as source:
        text = source.read()
    headers = re.findall(r'#include "(cc/[^"]+)"', text)
    return re.search(r"\bMutexLock\b", text) is not None or any(
        _declares_locks(header) for header in headers
    )


def _declares_locks(header):
    path = os.path.join(ROOT, header)
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as source:
        return "MT_GUARDED_BY" in source.read()


def check_locks(cpp):
    """Runs clang-tidy over the sources that use locks: those of a folder as one, since their headers cost the time."""
    folders = {}
    for path in filter(uses_locks, cpp):
        folders.setdefault(os.path.dirname(path), []).append(path)
    with tempfile.TemporaryDirectory() as units:
        waiting = []
        for number, sources in enumerate(sorted(folders.values(), key=len)):
            waiting.append(os.path.join(units, "%d.cc" % number))
            with open(waiting[-1], "w", encoding="utf-8") as unit:
                unit.writelines('#include "%s"\n' % path for path in sources)
        found = _tidy(waiting)
    if found:
        raise Failure("clang found errors in the use of locks.\n\n" + "\n".join(found))


def _tidy(waiting):
    """What clang-tidy says of sources, the last first, as many at a time as the machine has processors."""
    running, found = [], []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            line = [_tool("clang-tidy"), "--quiet", _TIDY_CHECKS, "--header-filter=.*"]
            line += ["--warnings-as-errors=*", waiting.pop(), "--"] + _TIDY_FLAGS
            running.append(
                subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
        process = running.pop(0)
        output = process.communicate()[0].decode("utf-8", "replace")
        if process.returncode != 0:
            found.append(output)
    return found


def _run_texts():
    logged(
        suites.pytest(suites.CHECK, "-q", "--noconftest"),
        "a rule of the layout is broken",
        shown=_all,
    )
