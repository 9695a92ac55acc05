"""The layout rules. cc/: who may include whom, where TensorFlow may appear, where threads are started. tf_multitier/: who may
import whom, without a cycle. Tests: none sleeps. All files: no path of one machine."""

import ast
import graphlib
import os
import re
import shutil
import subprocess

import pytest
from paths import ROOT


# A folder may include itself and those before it.
LAYERS = [
    "base",
    "env",
    "row",
    "optimizer",
    "index",
    "policy",
    "options",
    "tier",
    "table",
    "device",
    "hbm",
    "storage_types",
    "partition",
    "group_lookup",
    "checkpoint_files",
    "tensorflow",
    "python",
]

# The rooms of a folder, in the same order. Tests and benchmarks are above all of them. Those of cc/table are packages of Bazel, which
# sees to their order.
FOLDER_ROOMS = {
    "tensorflow": ["ops", "common", "variable", "lookup", "checkpoint", "train", "device"],
}

# The rooms of tf_multitier/_src, with the public modules that lie there. A module imports its own and those before it. What is
# in none lies above them all.
ROOMS = [
    ("_src.tensorflow", "launch", "_version"),
    ("_src.options", "external_storage", "options"),
    ("_src.execution",),
    ("_src.processes",),
    ("engine",),
    ("_src.variable",),
    ("_src.lookup", "lookup", "nn"),
    ("_src.training", "optimizers"),
    ("_src.patches",),
    ("_src.columns", "feature_column"),
]

# Only this one may include TensorFlow's headers, and nothing outside it may include its own.
TENSORFLOW_LAYERS = {"tensorflow"}

# Headers of TensorFlow's wheel, which also has those of Abseil, protobuf, Eigen and XLA.
_TENSORFLOW = re.compile(r"^(tensorflow|tsl|xla|absl|google/protobuf|unsupported/Eigen|Eigen)/")
_INSTALLED = re.compile(
    r"^((gtest|gmock|benchmark|leveldb|pybind11)/|(snappy|liburing|libpmem|Python)\.h$)"
)
_INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
_SOURCE = (".h", ".cc", ".inc", ".cu", ".cuh")

# Absolute paths of somebody's home or working directory; written so that this file does not match itself.
_MACHINE_PATH = re.compile(r"(?:(?<![\w.~$}*-])|(?<=-[IL]))/(?:root|work|home/[a-z]\w*)" + "/")


# What starts a thread. Each of these ends the process, or throws, where the system has none to give: cc/base/thread.cc alone
# does it, with a Status. Tests and benchmarks may use std::thread.
_STARTS_THREAD = re.compile(
    r"\bstd::j?thread\b(?!::id)|\bstd::async\b|\bpthread_create\b|\bthrd_create\b|\bUnboundedWorkQueue\b|"
    r"->StartThread\b|\bSchedClosure|\bthread::ThreadPool\s*\(|#\s*include\s*<future>"
)
_COMMENT = re.compile(r"//.*")
_TEST_ONLY = re.compile(
    r"(_test|_benchmark|_test_util|/tier_conformance\w*|/crash_env|/fault_env)\.(h|cc)$"
)


def thread_starts(path, text):
    """The lines of cc/ file `path` that start a thread where only cc/base/thread.cc may."""
    if path == "cc/base/thread.cc" or _TEST_ONLY.search(path):
        return []
    lines = [_COMMENT.sub("", line) for line in text.splitlines()]
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if _STARTS_THREAD.search(line)
    ]


def tier_backend(path):
    """`dram` of cc/row/row_slab.h; None of a file of cc/tier itself."""
    parts = path.split("/")
    return parts[2] if len(parts) > 3 and parts[1] == "tier" else None


def include_violations(path, text):
    """The errors in the includes of cc/ file `path`, as a list of sentences."""
    layer = path.split("/")[1]
    if layer not in LAYERS:
        return [f"{path}: folder cc/{layer} is not in the layout"]
    found = []
    for quote, header in _INCLUDE.findall(text):
        if header.startswith("cc/"):
            found += _own_include_violations(path, layer, header)
        elif _TENSORFLOW.match(header):
            if layer not in TENSORFLOW_LAYERS:
                found.append(
                    f"{path}: includes {header}, but only cc/tensorflow may include TensorFlow"
                )
        elif quote == '"' and not _INSTALLED.match(header):
            found.append(
                f'{path}: includes "{header}", but headers of ours are named from the root: "cc/..."'
            )
    return found


def _own_include_violations(path, layer, header):
    other = header.split("/")[1]
    if other not in LAYERS or LAYERS.index(other) > LAYERS.index(layer):
        return [f"{path}: includes {header}, but cc/{layer} lies below cc/{other}"]
    if other in TENSORFLOW_LAYERS and layer not in TENSORFLOW_LAYERS:
        return [f"{path}: includes {header}, which needs TensorFlow"]
    rooms = FOLDER_ROOMS.get(layer, [])
    if layer == other and rooms:
        room, below = path.split("/")[2], header.split("/")[2]
        if rooms.index(below) > rooms.index(room):
            return [
                f"{path}: includes {header}, but cc/{layer}/{room} lies below cc/{layer}/{below}"
            ]
    backend, other_backend = tier_backend(path), tier_backend(header)
    if backend and other_backend and backend != other_backend:
        return [f"{path}: includes {header}, but no tier includes another"]
    return []


def repository_files():
    """Paths, from the root, of the files that git tracks or would track; without git, of all files."""
    if os.path.exists(os.path.join(ROOT, ".git")) and shutil.which("git"):
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            return [
                path
                for path in listing.stdout.splitlines()
                if os.path.isfile(os.path.join(ROOT, path))
            ]
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in (".git", ".venv", "build", "dist")
            and not name.startswith("bazel-")
            and not name.endswith("_cache")  # other checks, which run meanwhile, write there
        ]
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return [
        path
        for path in found
        if not path.endswith((".so", ".pyc")) and path != ".tf_configure.bazelrc"
    ]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def test_every_include_points_up_the_layers():
    sources = [
        path for path in repository_files() if re.match(r"cc/\w+/", path) and path.endswith(_SOURCE)
    ]
    assert len(sources) > 20
    violations = [
        violation for path in sources for violation in include_violations(path, read(path))
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    "document, names",
    [
        ("CONTRIBUTING.md", r"^    (base  env  .*\n    .*)$"),
        ("cc/README.md", r"^```\n((?: *\w+/.*\n)+)```$"),
    ],
)
def test_documents_name_the_layers_in_their_order(document, names):
    text = re.search(names, read(document), re.MULTILINE).group(1)
    if "/" in text:  # a line for each folder, or for two of them
        found = [
            name
            for line in text.splitlines()
            for name in re.match(r"(?:\w+/ *)+", line).group().split()
        ]
    else:
        found = text.replace("|", " ").split()
    assert [name.rstrip("/") for name in found] == LAYERS


def test_threads_are_started_in_one_place():
    sources = [
        path for path in repository_files() if re.match(r"cc/\w+/", path) and path.endswith(_SOURCE)
    ]
    found = [line for path in sources for line in thread_starts(path, read(path))]
    assert not found, "use cc/base/thread.h:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "std::thread([this] { Work(); }).detach();",
        "  std::vector<std::thread> threads;",
        "auto done = std::async(std::launch::async, work);",
        "pthread_create(&thread, nullptr, body, argument);",
        "env->StartThread(options, name, body);",
        "static tensorflow::UnboundedWorkQueue queue(env, name);",
    ],
)
def test_a_thread_started_elsewhere_is_found(text):
    assert thread_starts("cc/env/a.cc", text)
    assert not thread_starts("cc/env/a_test.cc", text)


@pytest.mark.parametrize(
    "text", ["std::thread::id of;", "std::this_thread::yield();", "// std::thread throws"]
)
def test_what_starts_no_thread_passes(text):
    assert not thread_starts("cc/env/a.cc", text)


# A call of a function that only prefetches is lost, unless it prefetches by cc/base/prefetch.h.
def bare_prefetches(path, text):
    if path == "cc/base/prefetch.h":
        return []
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if "__builtin_prefetch" in line or "_mm_prefetch" in line
    ]


def test_prefetches_go_through_one_header():
    sources = [
        path for path in repository_files() if re.match(r"cc/\w+/", path) and path.endswith(_SOURCE)
    ]
    found = [line for path in sources for line in bare_prefetches(path, read(path))]
    assert not found, "use cc/base/prefetch.h:\n" + "\n".join(found)


@pytest.mark.parametrize("text", ["__builtin_prefetch(row);", "  _mm_prefetch(row, _MM_HINT_T0);"])
def test_a_bare_prefetch_is_found(text):
    assert bare_prefetches("cc/row/a.h", text)
    assert not bare_prefetches("cc/base/prefetch.h", text)


# TensorFlow 2.20 has Abseil's stream operators of numbers, but does not export all that they call.
_STREAMED_LOG = re.compile(r'\bLOG\(\w+\)\s*<<(?:[^;"]|"(?:\\.|[^"])*")*?<<')


def test_a_line_of_the_log_is_one_text():
    found = [
        f"{path}: {match.group()}"
        for path in repository_files()
        if path.startswith("cc/tensorflow/") and path.endswith(_SOURCE)
        for match in _STREAMED_LOG.finditer(read(path))
    ]
    assert not found, "use LOG(...) << StrCat(...):\n" + "\n".join(found)


def test_a_line_of_the_log_in_pieces_is_found():
    assert _STREAMED_LOG.search('LOG(INFO) << "it has; " << rows;')
    assert not _STREAMED_LOG.search('LOG(INFO) << StrCat("it << has ", rows);')


# A test waits for an event, a condition or a thread that is blocked (cc/base/blocked_test_util.h), never for a time.
_SLEEP = re.compile(r"\b(sleep_for|sleep_until|u?sleep|nanosleep|SleepMicros)\s*\(")
_MAY_SLEEP = {
    "cc/env/env_test.cc": "SleepMicros is what is tested",
    "cc/env/crash_env.cc": "a disk that takes its time",
    "cc/env/fault_env.h": "passes SleepMicros on",
}


def sleeps(path, text):
    """The lines of a test, or of a file that only tests use, that sleep."""
    if not (path.startswith("tests/") or _TEST_ONLY.search(path)):
        return []
    if "benchmark" in path or path in _MAY_SLEEP:
        return []
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if _SLEEP.search(line)
    ]


def test_no_test_sleeps():
    sources = [path for path in repository_files() if path.endswith((*_SOURCE, ".py", ".sh"))]
    found = [line for path in sources for line in sleeps(path, read(path))]
    assert not found, "wait for an event or a condition:\n" + "\n".join(found)


@pytest.mark.parametrize("name", ["std::this_thread::sleep_for", "::usleep", "time.sleep"])
def test_a_test_that_sleeps_is_found(name):
    assert sleeps("tests/test_a.py", f"    {name}(1)\n") and sleeps(
        "cc/env/a_test.cc", f"{name}(1);"
    )
    assert not sleeps("cc/env/a.cc", f"{name}(1);")


# Built modules: they have no source, and import nothing of ours.
_BUILT_MODULES = {"_build_info", "_engine"}


def nodes_that_run(tree):
    """The nodes of a module, without those below `if typing.TYPE_CHECKING`, which only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def imported_modules(module, text, modules):
    """The modules of `modules`, {name: path}, that the source of one of them imports, inside of functions too."""
    found = set()
    for node in nodes_that_run(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write imports of ours with their full name"
            names = [alias.name for alias in node.names if alias.name not in _BUILT_MODULES]
            wholes = [f"{node.module}.{name}" for name in names]
            found.update(whole if whole in modules else node.module for whole in wholes)
    return found & set(modules) - {module}


def room(module):
    """The number of the room of a module."""
    for number, places in enumerate(ROOMS):
        if any(f"{module}.".startswith(f"tf_multitier.{place}.") for place in places):
            return number
    return len(ROOMS)


def room_violations(module, text, modules):
    """The imports of a module from rooms above its own, as a list of sentences."""
    return [
        f"{module}: imports {other}, which lies above"
        for other in sorted(imported_modules(module, text, modules))
        if room(other) > room(module)
    ]


def import_cycle(sources):
    """A list of modules, each imported by the one before it, whose last is its first; None where there is none.

    sources: {name of a module: its source}.
    """
    imports = {name: imported_modules(name, text, sources) for name, text in sources.items()}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def package_sources():
    """{name of a module of tf_multitier: its source}."""
    paths = [p for p in repository_files() if re.match(r"tf_multitier/.*\.py$", p)]
    return {p[:-3].replace("/", ".").removesuffix(".__init__"): read(p) for p in paths}


def test_the_modules_of_the_package_import_each_other_without_a_cycle():
    sources = package_sources()
    assert len(sources) > 50 and import_cycle(sources) is None


def test_no_room_imports_one_above_it():
    sources = package_sources()
    of_rooms = [module for module in sources if module.startswith("tf_multitier._src.")]
    assert len(of_rooms) > 40 and all(room(module) < len(ROOMS) for module in of_rooms)
    violations = [
        each for module in sources for each in room_violations(module, sources[module], sources)
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("other", ["_src.lookup.exchange", "nn", "distribute.collective"])
def test_an_import_from_a_room_above_is_found(other):
    modules = {f"tf_multitier.{other}": ""}
    text = f"from tf_multitier.{other} import name"
    assert len(room_violations("tf_multitier._src.variable.queries", text, modules)) == 1
    assert not room_violations("tf_multitier.deeprec.columns", text, modules)


@pytest.mark.parametrize(
    "text",
    [
        "from package import b",
        "from package.b import name",
        "import package.b",
        "def f():\n    from package import b",
    ],
)
def test_a_cycle_of_modules_is_found(text):
    sources = {"package": "", "package.a": text, "package.b": "from package import c"}
    assert import_cycle({**sources, "package.c": ""}) is None
    cycle = import_cycle({**sources, "package.c": "from package import a"})
    assert set(cycle) == {"package.a", "package.b", "package.c"}


def test_an_import_for_type_checkers_is_in_no_cycle():
    guarded = (
        "if typing.TYPE_CHECKING:\n    from package import {}\nelse:\n    from package import {}"
    )
    sources = {"package.a": guarded.format("b", "c"), "package.b": "from package import a"}
    assert import_cycle({**sources, "package.c": ""}) is None
    assert import_cycle({**sources, "package.c": "from package import a"}) is not None


def test_build_files_ask_for_system_libraries_that_are_there():
    """Benchmarks, which no test builds, too."""
    there = set(re.findall(r'name = "(\w+)"', read("third_party/system_libs/BUILD")))
    files = [path for path in repository_files() if path.endswith(("/BUILD", ".bzl"))]
    asked = set(re.findall(r'"@system_libs//:(\w+)"', "".join(map(read, files))))
    assert asked and asked <= there


def test_no_file_names_a_path_of_one_machine():
    found = []
    for path in repository_files():
        for number, line in enumerate(read(path).splitlines(), 1):
            if _MACHINE_PATH.search(line):
                found.append(f"{path}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "path, include, complaint",
    [
        ("cc/base/a.h", '"cc/env/env.h"', "lies below"),
        ("cc/tier/tier.h", '"cc/table/api/embedding_table.h"', "lies below"),
        ("cc/tier/pmem/a.cc", '"cc/tier/ssdhash/b.h"', "no tier includes another"),
        ("cc/table/a.cc", '"tensorflow/core/framework/op.h"', "may include TensorFlow"),
        ("cc/python/a.cc", '"absl/strings/cord.h"', "may include TensorFlow"),
        ("cc/python/a.cc", '"cc/tensorflow/common/a.h"', "needs TensorFlow"),
        ("cc/base/a.cc", '"status.h"', "named from the root"),
        ("cc/base/a.cc", '"base/status.h"', "named from the root"),
        ("cc/util/a.h", "<vector>", "not in the layout"),
    ],
)
def test_a_wrong_include_is_found(path, include, complaint):
    violations = include_violations(path, f"#pragma once\n  #  include {include}\n")
    assert len(violations) == 1 and complaint in violations[0]


@pytest.mark.parametrize(
    "path, include",
    [
        ("cc/env/a.h", '"cc/base/status.h"'),
        ("cc/env/a.cc", '"cc/env/env.h"'),
        ("cc/tier/pmem/a.cc", '"cc/tier/tier.h"'),
        ("cc/tier/pmem/a.cc", '"cc/tier/pmem/a.h"'),
        ("cc/table/a.cc", '"cc/tier/pmem/a.h"'),
        ("cc/tensorflow/common/a.cc", '"tensorflow/core/framework/op_kernel.h"'),
        ("cc/python/a.cc", "<pybind11/numpy.h>"),
        ("cc/base/a_test.cc", '"gtest/gtest.h"'),
    ],
)
def test_a_right_include_passes(path, include):
    assert include_violations(path, f"#include {include}\n") == []


@pytest.mark.parametrize("text", ["x = '/%s/a'", "see /%s/main", "-I/%s/include"])
@pytest.mark.parametrize("place", ["root", "work", "home/ann"])
def test_a_machine_path_is_found(text, place):
    assert _MACHINE_PATH.search(text % place)


@pytest.mark.parametrize(
    "text", ["network/work/a", "$HOME/work/a", "a relative ./work/a", "//cc/root:x"]
)
def test_another_path_passes(text):
    assert not _MACHINE_PATH.search(text)
