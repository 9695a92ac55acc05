"""What the machine must have before Bazel runs: a Python that TensorFlow supports, a compiler, Bazel, libraries with headers."""

import json
import os
import re
import shutil
import subprocess
import sys

from build_tools.steps import Failure, logged, output_of, step

# Those for which the pinned TensorFlow has wheels.
PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13)]

# What the build needs: a command or a header, and the Debian package that has it.
COMMANDS = [("bazel", "bazel-bootstrap"), ("g++", "g++")]
HEADERS = [
    ("leveldb/db.h", "libleveldb-dev"),
    ("snappy.h", "libsnappy-dev"),
    ("liburing.h", "liburing-dev"),
    ("libpmem.h", "libpmem-dev"),
    ("gtest/gtest.h", "libgtest-dev"),
    ("gmock/gmock.h", "libgmock-dev"),
    ("benchmark/benchmark.h", "libbenchmark-dev"),
]

_FACTS = """
import importlib.util, json, os, sys, sysconfig
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
print(json.dumps({"version": sys.version_info[:2], "executable": sys.executable, "include": sysconfig.get_paths()["include"],
    "venv": importlib.util.find_spec("ensurepip") is not None, "headers": os.path.exists(header)}))
"""


CUDA_AT_LEAST = (12, 5)


def find_nvcc():
    """The facts about CUDA's compiler for Bazel, {name: value} for --repo_env; None if there is none.

    Raises:
      Failure: it is too old, or CUDA's static runtime is not installed with it.
    """
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        return None
    _, stdout, _ = output_of([nvcc, "--version"])
    release = re.search(r"release (\d+)\.(\d+)", stdout)
    found = tuple(int(number) for number in release.groups()) if release else (0, 0)
    if found < CUDA_AT_LEAST:
        raise Failure(
            "expected CUDA %d.%d or newer; %s is of %d.%d" % (CUDA_AT_LEAST + (nvcc,) + found)
        )
    # With --dryrun it says where its parts are: "#$ TOP=/usr/local/cuda-13.0/bin/.."
    _, stdout, stderr = output_of([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull])
    top = re.search(r"^#\$ TOP=(.*)$", stdout + stderr, re.MULTILINE)
    folder = os.path.realpath(top.group(1)) if top else ""
    for lib in ("lib64", "lib", "targets/x86_64-linux/lib"):
        runtime = os.path.join(folder, lib, "libcudart_static.a")
        if os.path.exists(runtime):
            return {
                "TF_MULTITIER_NVCC": nvcc,
                "TF_MULTITIER_CUDART": runtime,
                "TF_MULTITIER_CUDA_VERSION": "%d.%d" % found,
            }
    raise Failure(
        "%s is installed without libcudart_static.a, which is looked for in %s" % (nvcc, folder)
    )


def python_facts(python):
    """{version, executable, include, venv, headers} of a Python, or None if it does not run."""
    try:
        status, stdout, _ = output_of([python, "-c", _FACTS])
    except OSError:
        return None
    return json.loads(stdout) if status == 0 else None


def find_python():
    """The facts of the Python to make .venv with."""
    named = os.environ.get("TF_MULTITIER_PYTHON")
    candidates = [named] if named else [sys.executable]
    if not named:
        candidates += ["python%d.%d" % version for version in reversed(PYTHONS)] + ["python3"]
    seen = []
    for candidate in candidates:
        facts = python_facts(candidate) if candidate else None
        if facts and tuple(facts["version"]) in PYTHONS:
            return facts
        if facts:
            seen.append("%s (%d.%d)" % ((facts["executable"],) + tuple(facts["version"])))
    raise Failure(
        "TensorFlow needs Python %d.%d to %d.%d; found %s. Install one, or name it in TF_MULTITIER_PYTHON."
        % (
            PYTHONS[0]
            + PYTHONS[-1]
            + (", ".join(seen) or (named + ", which does not run" if named else "none"),)
        )
    )


def missing_headers():
    """The packages of HEADERS that the compiler does not find."""
    if not shutil.which("g++"):
        return [package for _, package in HEADERS]
    source = "".join(
        "#if !__has_include(<%s>)\n#warning missing:%s:\n#endif\n" % (header, package)
        for header, package in HEADERS
    )
    process = subprocess.Popen(
        ["g++", "-std=c++17", "-E", "-x", "c++", "-", "-o", os.devnull],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    _, stderr = process.communicate(source)
    return [package for _, package in HEADERS if "missing:%s:" % package in stderr]


def missing_packages(python):
    """The Debian packages that the build needs and this machine lacks."""
    missing = [package for command, package in COMMANDS if not shutil.which(command)]
    missing += missing_headers()
    version = "python%d.%d" % tuple(python["version"])
    if not python["venv"]:
        missing.append(version + "-venv")
    if not python["headers"]:
        missing.append(version + "-dev")
    return missing


def install_packages(python):
    """As root, installs missing packages with apt. Else the error states the command that does."""
    missing = missing_packages(python)
    if not missing:
        return
    line = "apt-get install -y --no-install-recommends " + " ".join(missing)
    if not shutil.which("apt-get"):
        raise Failure(
            "these Debian packages, or what your system calls them, are missing: %s. "
            "On Debian or Ubuntu: sudo %s" % (" ".join(missing), line)
        )
    if os.geteuid() != 0:
        raise Failure(
            "packages are missing. Run this once, then configure.py again:\n  sudo " + line
        )
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    with step("Debian packages (%d)" % len(missing)):
        try:
            logged(["apt-get", "update"], "apt-get update failed", env=environment)
        except Failure:
            pass  # The lists that the machine has may do; if not, the next line fails.
        logged(
            line.split(),
            "apt-get could not install the packages that are missing with: " + line,
            env=environment,
        )
    still = missing_packages(python_facts(python["executable"]))
    if still:
        raise Failure(
            "apt-get installed its packages, but %s is still not found." % " ".join(still)
        )
