""".venv, the Python environment of the checkout, and .tf_configure.bazelrc, which describes it for Bazel."""

import glob
import hashlib
import json
import os

from build_tools import machine
from build_tools.steps import ROOT, Failure, Meanwhile, logged, output_of, step, write_if_changed

VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "tf_multitier.json")
BAZELRC = os.path.join(ROOT, ".tf_configure.bazelrc")
REQUIREMENTS = os.path.join(ROOT, "requirements.txt")
REQUIREMENTS_CUDA = os.path.join(ROOT, "requirements_cuda.txt")
REQUIREMENTS_NO_DEPS = os.path.join(ROOT, "requirements_no_deps.txt")

# Runs in a Python with TensorFlow. Prints the facts that Bazel needs about it, as JSON.
_PROBE_TENSORFLOW = """
import json
import tensorflow as tf
library = [flag[3:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-l:")]
print(json.dumps({
    "TF_MULTITIER_TF_VERSION": tf.__version__,
    "TF_MULTITIER_TF_INCLUDE": tf.sysconfig.get_include(),
    "TF_MULTITIER_TF_LIBRARY_DIR": tf.sysconfig.get_lib(),
    "TF_MULTITIER_TF_LIBRARY": library[0],
    "TF_MULTITIER_TF_CXXFLAGS": " ".join(tf.sysconfig.get_compile_flags()),
}))
"""

# Run by .venv's Python: the headers for the engine's module.
_PROBE_HEADERS = """
import json, sysconfig
import pybind11
print(json.dumps({
    "TF_MULTITIER_PYTHON_INCLUDE": sysconfig.get_path("include"),
    "TF_MULTITIER_PYBIND11_INCLUDE": pybind11.get_include(),
}))
"""


_cuda = {}  # facts about CUDA, in a build with it


def use_cuda():
    """Makes this run of configure.py build with CUDA."""
    facts = machine.find_nvcc()
    if facts is None:
        raise Failure("--cuda needs nvcc: none is on PATH or in /usr/local/cuda/bin.")
    _cuda.update(facts)


def cuda_version():
    """The version of CUDA that the libraries are built with, such as "13.0"; None without CUDA."""
    return _cuda.get("TF_MULTITIER_CUDA_VERSION")


def cuda_options(facts):
    """Bazel's options for a build with CUDA."""
    return ["--define=multitier_cuda=1"] + [
        "--repo_env=%s=%s" % item for item in sorted(facts.items())
    ]


def install_more(requirements):
    """Installs a file of requirements in .venv, unless that was done: what only some commands need."""
    with open(requirements, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    name = os.path.basename(requirements)
    stamp = read_stamp()
    if stamp.get(name) == digest:
        return
    with step("Python packages of " + name):
        logged(
            pip_install(VENV_PYTHON) + ["--no-deps", "--requirement", requirements],
            "pip could not install %s in .venv" % name,
        )
    stamp[name] = digest
    write_if_changed(STAMP, json.dumps(stamp, indent=1) + "\n")


def configure(meanwhile=None):
    """Everything that must hold before Bazel runs. Returns probe_environment()'s facts.

    `meanwhile` runs while pip installs packages, where it does: it may use Bazel, but not TensorFlow or Python's headers.
    """
    if any(character.isspace() for character in ROOT):
        raise Failure(
            "Bazel does not work in a path with spaces: move the checkout out of %r." % ROOT
        )
    python = (
        machine.python_facts(VENV_PYTHON) if os.path.exists(VENV_PYTHON) and read_stamp() else None
    )
    python = python or machine.find_python()
    machine.install_packages(python)
    building = None
    if meanwhile is not None and not environment_is_ready():
        building = Meanwhile("C++ of the engine, meanwhile", meanwhile)
    make_environment(python)
    facts = probe_environment()
    if building is not None:
        building.wait()
    write_bazelrc(facts)
    return facts


def write_bazelrc(facts):
    lines = ["# Written by configure.py: what it found on this machine."]
    lines += ['build --repo_env="%s=%s"' % item for item in sorted(facts.items())]
    if _cuda:
        lines += ["build " + option for option in cuda_options(_cuda)]
    write_if_changed(BAZELRC, "\n".join(lines) + "\n")


def _works():
    return os.path.exists(VENV_PYTHON) and machine.python_facts(VENV_PYTHON) is not None


def environment_is_ready():
    """Whether .venv has what requirements.txt and requirements_no_deps.txt ask for."""
    stamp = read_stamp()
    return (
        _works()
        and stamp.get("requirements") == _requirements_digest()
        and stamp.get("root") == ROOT
    )


def make_environment(python):
    """Creates .venv and installs requirements.txt and requirements_no_deps.txt in it, unless that was done."""
    if environment_is_ready():
        return
    digest, stamp, works = _requirements_digest(), read_stamp(), _works()
    # Clearing a link would empty its target, which is another checkout's environment.
    if os.path.islink(VENV):
        raise Failure(
            ".venv is a link to %s, which is not for this checkout: remove the link."
            % os.path.realpath(VENV)
        )
    # A moved checkout's scripts name the old place.
    if not works or stamp.get("root", ROOT) != ROOT:
        with step(".venv, for Python %d.%d" % tuple(python["version"])):
            logged([python["executable"], "-m", "venv", "--clear", VENV], "could not create .venv")
    with step("Python packages of requirements.txt"):
        logged(
            pip_install(VENV_PYTHON) + ["--requirement", REQUIREMENTS],
            "pip could not install requirements.txt in .venv",
        )
        logged(
            pip_install(VENV_PYTHON) + ["--no-deps", "--requirement", REQUIREMENTS_NO_DEPS],
            "pip could not install requirements_no_deps.txt in .venv",
        )
    # Programs run with .venv's Python find this checkout from any directory.
    for packages in glob.glob(os.path.join(VENV, "lib", "python3*", "site-packages")):
        write_if_changed(os.path.join(packages, "tf_multitier_checkout.pth"), ROOT + "\n")
    write_if_changed(STAMP, json.dumps({"requirements": digest, "root": ROOT}, indent=1) + "\n")


def pip_install(python):
    """The pip command of a Python; append the packages to install. It compiles no module: most are never imported."""
    return [
        python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--no-input",
        "--no-compile",
    ]


def probe_environment():
    """The facts about .venv for Bazel, {name: value} for --repo_env. Kept until TensorFlow there changes."""
    stamp = read_stamp()
    tensorflow = _installed_tensorflow()
    facts = stamp.get("facts")
    if not facts or stamp.get("tensorflow") != tensorflow:
        with step("TensorFlow's headers and library"):
            facts = dict(probe_tensorflow(VENV_PYTHON), **_answer(VENV_PYTHON, _PROBE_HEADERS))
        stamp.update(facts=facts, tensorflow=tensorflow)
        write_if_changed(STAMP, json.dumps(stamp, indent=1) + "\n")
    return facts


def probe_tensorflow(python):
    """The facts about the TensorFlow of a Python for Bazel: {name: value} for --repo_env."""
    return _answer(python, _PROBE_TENSORFLOW)


def _answer(python, program):
    """The JSON value in the last line of a program's output."""
    # Its modules are compiled as they are imported, and kept so: see pip_install.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONDONTWRITEBYTECODE="")
    status, stdout, stderr = output_of([python, "-c", program], env=environment)
    if status != 0:
        raise Failure("%s cannot import what the build needs:\n%s" % (python, stderr.strip()))
    return json.loads(stdout.strip().splitlines()[-1])


def read_stamp():
    """The values of the last complete configuration, or {}."""
    try:
        with open(STAMP) as stamp:
            return json.load(stamp)
    except (OSError, ValueError):
        return {}


def _requirements_digest():
    digest = hashlib.sha256()
    for path in (REQUIREMENTS, REQUIREMENTS_NO_DEPS):
        with open(path, "rb") as requirements:
            digest.update(requirements.read())
    return digest.hexdigest()


def _installed_tensorflow():
    """The names of TensorFlow's metadata folders in .venv: they change with its version."""
    pattern = os.path.join(VENV, "lib", "python3*", "site-packages", "tensorflow*.dist-info")
    return sorted(os.path.basename(path) for path in glob.glob(pattern))
