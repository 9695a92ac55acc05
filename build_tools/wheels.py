"""Wheels for the Pythons and TensorFlows that people have: one for each pair.

A wheel has two libraries: _engine.so, which depends on the minor version of Python, and _tf_multitier_ops.so, which depends on
that of TensorFlow. For each pair:

  1. an environment of its own gets TensorFlow from PyPI;
  2. the ops are built against it, once for each TensorFlow, and the engine once for each Python;
  3. the wheel is packed, and auditwheel adds the libraries that ours link, except TensorFlow's;
  4. the wheel is installed with its extras in environments that cannot see the sources, and programs run there: those of the
     README, an example, and a program that was written for DeepRec.
"""

import glob
import os
import re
import shutil
import tempfile

from build_tools import bazel, environment, machine
from build_tools.steps import ROOT, Failure, logged, output_of, say, step

# The TensorFlows that wheels are built for: minor version, the release to build against, the Pythons that it has wheels for.
# What differs between them: cc/tensorflow/common/tensorflow_versions.h in C++, tf_multitier/_src/tensorflow/sources.py in Python.
TENSORFLOWS = [
    ("2.19", "2.19.1", [(3, 10), (3, 11), (3, 12)]),
    ("2.20", "2.20.0", [(3, 10), (3, 11), (3, 12), (3, 13)]),
    ("2.21", "2.21.0", [(3, 10), (3, 11), (3, 12), (3, 13)]),
]

# Where Pythons are, other than on PATH: pyenv's and uv's.
_PYTHONS_INSTALLED = [
    "~/.pyenv/versions/%s.*/bin/python3",
    "~/.local/share/uv/python/cpython-%s.*/bin/python3",
]

# What a program of the README prints.
_README_PRINTS = "[2 1 0]"


def make_wheels(named_pythons, named_tensorflows):
    """Makes the wheels of all pairs, or of those named. Returns [(path in dist/, python "3.11", tensorflow "2.20")]."""
    pythons = find_pythons(named_pythons)
    made, engines = [], {}
    work = tempfile.mkdtemp(prefix="tf_multitier_wheel_")
    try:
        for minor, release, supported in _chosen(named_tensorflows):
            ops = None
            for version in _in_order(set(pythons) & set(supported)):
                name = "%d.%d" % version
                say("Python %s, TensorFlow %s" % (name, release))
                pair = os.path.join(work, "pair")
                os.makedirs(pair)
                python = _make_environment(pythons[version], release, pair)
                ops = ops or _build_ops(python, release, work)
                if version not in engines:
                    engines[version] = _build_engine(pythons[version], name, work)
                wheel = _pack(engines[version], ops, release, "cp%d%d" % version, pair)
                _try(wheel, python, minor, pair)
                _try_deeprec(wheel, pythons[version], pair)
                os.makedirs(os.path.join(ROOT, "dist"), exist_ok=True)
                made.append((shutil.copy(wheel, os.path.join(ROOT, "dist")), name, minor))
                shutil.rmtree(pair)
    finally:
        shutil.rmtree(work)
    return made


def find_pythons(named):
    """{(3, 11): the facts of a Python}: the Pythons named by version or path, or all that are found."""
    if named:
        candidates = [[name] if os.sep in name else _candidates(name) for name in named]
    else:
        candidates = [_candidates("%d.%d" % version) for version in machine.PYTHONS]
        candidates.append([environment.VENV_PYTHON])
    found = {}
    for index, names in enumerate(candidates):
        usable = [
            facts
            for facts in map(machine.python_facts, names)
            if facts and facts["venv"] and facts["headers"]
        ]
        usable = [facts for facts in usable if tuple(facts["version"]) in machine.PYTHONS]
        if usable:
            found.setdefault(tuple(usable[0]["version"]), usable[0])
        elif named:
            raise Failure(
                "Python %s: expected Python 3.10 to 3.13 with its headers and venv; tried %s"
                % (named[index], names)
            )
    return found


def _candidates(version):
    installed = [
        path
        for pattern in _PYTHONS_INSTALLED
        for path in glob.glob(os.path.expanduser(pattern % version))
    ]
    return ["python" + version] + sorted(installed, reverse=True)


def _chosen(named):
    unknown = set(named) - {minor for minor, _, _ in TENSORFLOWS}
    if unknown:
        known = ", ".join(minor for minor, _, _ in TENSORFLOWS)
        raise Failure(
            "wheels are built for TensorFlow %s; found %s" % (known, ", ".join(sorted(unknown)))
        )
    return [entry for entry in TENSORFLOWS if not named or entry[0] in named]


def _in_order(versions):
    """Sorted, .venv's first: the ops are built against TensorFlow in the first one's environment, and Bazel may have that build."""
    venv = machine.python_facts(environment.VENV_PYTHON)
    return sorted(
        versions, key=lambda version: (venv is None or version != tuple(venv["version"]), version)
    )


def _new_environment(facts, folder):
    """Makes an environment of a Python in `folder`. Returns the environment's Python."""
    logged([facts["executable"], "-m", "venv", folder], "could not create an environment")
    return os.path.join(folder, "bin", "python")


def _make_environment(facts, release, pair):
    """A new environment with TensorFlow. Returns its Python."""
    with step("environment with TensorFlow from PyPI"):
        python = _new_environment(facts, os.path.join(pair, "environment"))
        logged(
            environment.pip_install(python) + ["tensorflow-cpu==" + release],
            "pip could not install TensorFlow " + release,
        )
    return python


def _build_ops(python, release, work):
    """Builds the op library against the TensorFlow of an environment. Returns its path."""
    facts = dict(environment.probe_tensorflow(python))
    path = os.path.join(work, "ops-%s.so" % release)
    with step("ops for TensorFlow " + release):
        bazel.build_one("cc/tensorflow/_tf_multitier_ops.so", path, facts)
    return path


def _build_engine(facts, version, work):
    """Builds the engine's module for a Python. Returns its path."""
    path = os.path.join(work, "engine-%s.so" % version)
    with step("engine for Python " + version):
        bazel.build_one(
            "cc/python/_engine.so", path, {"TF_MULTITIER_PYTHON_INCLUDE": facts["include"]}
        )
    return path


def _pack(engine, ops, release, tag, pair):
    """A portable wheel of the package with these libraries, from a copy, so that the checkout stays clean."""
    sources, raw, repaired = (os.path.join(pair, name) for name in ("sources", "raw", "repaired"))
    package = os.path.join(sources, "tf_multitier")
    left_out = shutil.ignore_patterns("__pycache__", "*.tmp", "*.so", "_build_info.py")
    with step("wheel"):
        shutil.copytree(bazel.PACKAGE, package, ignore=left_out)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(os.path.join(ROOT, name), sources)
        shutil.copy(engine, os.path.join(package, "_engine.so"))
        shutil.copy(ops, os.path.join(package, "_tf_multitier_ops.so"))
        bazel.write_build_info(package, release)
        pip = [
            environment.VENV_PYTHON,
            "-m",
            "pip",
            "wheel",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-build-isolation",
        ]
        variables = dict(os.environ, TF_MULTITIER_WHEEL_PYTHON=tag)
        logged(pip + ["--wheel-dir", raw, sources], "the wheel could not be packed", env=variables)
        binaries = os.path.join(environment.VENV, "bin")
        variables = dict(os.environ, PATH=binaries + os.pathsep + os.environ.get("PATH", ""))
        repair = [environment.VENV_PYTHON, "-m", "auditwheel", "repair", "--plat", "auto"]
        repair += ["--exclude", "libtensorflow_framework.so.2", "--wheel-dir", repaired]
        logged(
            repair + glob.glob(os.path.join(raw, "*.whl")),
            "auditwheel cannot make the wheel portable",
            env=variables,
        )
        shutil.rmtree(sources)
    return glob.glob(os.path.join(repaired, "*.whl"))[0]


def _try(wheel, python, minor, pair):
    """Installs the wheel with the extra `examples`, and runs the README's programs and an example."""
    where = "import tensorflow, tf_multitier; print(tensorflow.__version__, tf_multitier.__file__)"
    programs = readme_programs()
    folder = _copy("examples", pair)
    with step("installed, README's programs run"):
        _install(python, wheel, "tensorflow-cpu,examples", folder)
        _expect([python, "-c", where], minor + r"\..* " + re.escape(pair), folder)
        for program in programs:
            _expect([python, "-c", program], re.escape(_README_PRINTS), folder)
        ssd = dict(
            TF_MULTITIER_STORAGE_TYPE="DRAM_SSDHASH",
            TF_MULTITIER_STORAGE_PATH=os.path.join(pair, "ssd"),
            TF_MULTITIER_STORAGE_SIZE="1024",
        )
        _expect([python, "-c", programs[0]], re.escape(_README_PRINTS), folder, ssd)
        example = [python, "train_dcnv2.py", "--steps=20", "--plot=picture.png"]
        _expect(example, r"(?s).*AUC", folder)


def _try_deeprec(wheel, facts, pair):
    """Installs the wheel with the extra `deeprec` in another environment, and runs a model as DeepRec's zoo has it."""
    folder = _copy(os.path.join("tests", "deeprec", "zoo"), pair)
    with step("installed, a DeepRec program runs"):
        python = _new_environment(facts, os.path.join(pair, "deeprec_environment"))
        _install(python, wheel, "tensorflow,deeprec", folder)
        _expect([python, "data.py", "criteo", "data", "--count", "1280"], "", folder)
        model = [python, "-m", "tf_multitier.deeprec", "wide_and_deep.py", "--ev", "True"]
        model += ["--data_location", "data", "--output_dir", "results", "--steps", "20"]
        _expect(model, r"(?s).*AUC = ", folder)


def _copy(folder, pair):
    """Copies a folder of programs to where the sources are not. Returns the copy."""
    return shutil.copytree(
        os.path.join(ROOT, folder),
        os.path.join(pair, os.path.basename(folder)),
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def _install(python, wheel, extras, folder):
    install = environment.pip_install(python) + ["%s[%s]" % (wheel, extras)]
    logged(install, "the wheel could not be installed in a new environment", cwd=folder)


def _expect(command, expected, folder, variables=()):
    """Runs a program in a folder; Failure where it fails, or prints what does not match the pattern `expected`."""
    environ = dict(
        os.environ, TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", **dict(variables)
    )
    environ.pop("PYTHONPATH", None)
    status, stdout, stderr = output_of(command, cwd=folder, env=environ)
    if status != 0 or not re.match(expected, stdout.strip()):
        raise Failure(
            "a program does not run with the wheel:\n%s\n%s"
            % (" ".join(command), (stdout + stderr).strip())
        )


def readme_programs():
    """The Python programs of the README that print, in order."""
    with open(os.path.join(ROOT, "README.md"), "rb") as readme:
        found = re.findall(r"```python\n(.*?)```", readme.read().decode("utf-8"), re.DOTALL)
    return [program for program in found if "print(" in program]
