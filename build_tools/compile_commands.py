"""compile_commands.json: how Bazel compiles each source, for clangd, clang-tidy and other tools that read C++."""

import json
import os

from build_tools.bazel import bazel_answer
from build_tools.steps import ROOT, Failure, write_if_changed

# Flags of GCC that clang does not know, and Bazel's bookkeeping.
_DROPPED = (
    "-fno-canonical-system-headers",
    "-Wunused-but-set-parameter",
    "-Wno-free-nonheap-object",
)


def write():
    """Writes the file. Returns the number of sources in it."""
    # Each source by itself: see units in cc/build_defs.bzl.
    query = [
        "--define=multitier_units=no",
        'mnemonic("CppCompile", //cc/...)',
        "--output=jsonproto",
    ]
    answer = bazel_answer("aquery", query)
    root = bazel_answer("info", ["execution_root"]).strip().splitlines()[-1]
    entries = {}
    for action in json.loads(answer)["actions"]:
        entry = _entry(action["arguments"], root)
        if entry["file"].startswith("cc/"):
            entries.setdefault(entry["file"], entry)
    if not entries:
        raise Failure("Bazel names no source of //cc that it compiles.")
    text = json.dumps([entries[file] for file in sorted(entries)], indent=1)
    write_if_changed(os.path.join(ROOT, "compile_commands.json"), text + "\n")
    return len(entries)


def _entry(arguments, root):
    """The entry of one source. It compiles in the checkout; generated and linked files are found below Bazel's root."""
    source = arguments[arguments.index("-c") + 1]
    line = []
    for previous, argument in zip([""] + arguments, arguments):
        if (
            argument in ("-MD", "-MF")
            or previous == "-MF"
            or argument.startswith("-frandom-seed")
            or argument in _DROPPED
        ):
            continue
        line.append(_absolute(previous, argument, root))
    return {"directory": ROOT, "file": source, "arguments": line}


def _absolute(previous, argument, root):
    if previous in ("-I", "-isystem", "-iquote") and argument.startswith(
        ("external/", "bazel-out/")
    ):
        return os.path.join(root, argument)
    if argument.startswith(("-Iexternal/", "-Ibazel-out/")):
        return "-I" + os.path.join(root, argument[2:])
    return argument
