"""Wheels that package indexes take: one for each Python, with the ops of all TensorFlows. And a source distribution.

A wheel has _engine.so, which depends on the minor version of Python, and an op library for each minor version of TensorFlow, of
which `import tf_multitier` loads one. They need the C and C++ libraries of the system and TensorFlow's, and no others.

  1. each TensorFlow is installed from PyPI in an environment of its own, and the ops are built against it;
  2. for each Python the engine is built and the wheel is packed; auditwheel names the oldest system that it runs on;
  3. twine checks what an index would refuse;
  4. with each TensorFlow the wheel is installed with its extras in environments that cannot see the sources, and programs run
     there: those of the README, an example, and a program that was written for DeepRec.
"""

import glob
import os
import re
import shutil
import tempfile

from build_tools import bazel, environment, machine
from build_tools.steps import ROOT, Failure, logged, output_of, say, step, temporary_folder

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

# Whose licences a wheel has, too: packages whose archives are linked into the libraries.
_LINKED = ["libleveldb-dev", "libsnappy-dev", "liburing-dev"]

# Prints the path of that of the headers that the engine's module is compiled with.
_LICENCE_OF_PYBIND11 = """
import importlib.metadata
print(*[file.locate() for file in importlib.metadata.files("pybind11") if file.name == "LICENSE"])
"""

_TWINE = "twine==6.2.0"

# What a program of the README prints.
_README_PRINTS = "[2 1 0]"


def make_wheels(named_pythons, named_tensorflows):
    """Makes the wheels of all Pythons with the ops of all TensorFlows, or of those named, and the source distribution.

    Returns their paths in dist/, that of the source distribution last.
    """
    pythons = find_pythons(named_pythons)
    tensorflows = _chosen(named_tensorflows)
    made = []
    work = tempfile.mkdtemp(prefix="tf_multitier_wheel_")
    try:
        ops = _build_all_ops(pythons, tensorflows, work)
        for version in _in_order(set(pythons)):
            its = [entry for entry in tensorflows if version in entry[2]]
            if not its:
                say("Python %d.%d: none of these TensorFlows is for it" % version)
                continue
            say("Python %d.%d" % version)
            engine = _build_engine(pythons[version], "%d.%d" % version, work)
            wheel = _pack(
                engine, {entry[1]: ops[entry[1]] for entry in its}, "cp%d%d" % version, work
            )
            for minor, release, _ in its:
                pair = os.path.join(work, "pair")
                os.makedirs(pair)
                python = _make_environment(pythons[version], release, pair)
                _try(wheel, python, minor, pair)
                _try_deeprec(wheel, pythons[version], minor, pair)
                shutil.rmtree(pair)
            os.makedirs(os.path.join(ROOT, "dist"), exist_ok=True)
            made.append(shutil.copy(wheel, os.path.join(ROOT, "dist")))
        made.append(pack_sources(os.path.join(ROOT, "dist")))
        _check_with_twine(made, work)
    finally:
        shutil.rmtree(work)
    return made


def pack_sources(folder):
    """Makes the source distribution, which MANIFEST.in describes, in a folder. Returns its path."""
    with step("source distribution"), temporary_folder() as work:
        command = [environment.VENV_PYTHON, "setup.py", "-q", "egg_info", "--egg-base", work]
        command += ["sdist", "--dist-dir", folder]
        logged(command, "the source distribution could not be packed", cwd=ROOT)
    [version] = re.findall(
        r"VERSION = \"(.+)\"", _read(os.path.join("tf_multitier", "_version.py"))
    )
    return os.path.join(folder, "tf_multitier-%s.tar.gz" % version)


def try_sources(path):
    """Builds the source distribution with pip, in an environment that has nothing else, and runs the README's programs."""
    with temporary_folder() as work:
        with step("source distribution, built by pip"):
            facts = machine.python_facts(environment.VENV_PYTHON)
            python = _new_environment(facts, os.path.join(work, "environment"))
            _install(python, path, "tensorflow-cpu", work)
        for program in readme_programs():
            _expect([python, "-c", program], re.escape(_README_PRINTS), work)


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


def _build_all_ops(pythons, tensorflows, work):
    """Builds the op libraries, each against its TensorFlow in an environment. Returns {release: path}."""
    ops = {}
    for minor, release, supported in tensorflows:
        usable = _in_order(set(pythons) & set(supported))
        if not usable:
            raise Failure(
                "TensorFlow %s: expected a Python of %s, found %s"
                % (release, _names(supported), _names(pythons))
            )
        pair = os.path.join(work, "pair")
        os.makedirs(pair)
        python = _make_environment(pythons[usable[0]], release, pair)
        facts = dict(environment.probe_tensorflow(python))
        ops[release] = os.path.join(work, "_tf_multitier_ops_%s.so" % minor.replace(".", "_"))
        with step("ops for TensorFlow " + release):
            bazel.build_one("cc/tensorflow/_tf_multitier_ops.so", ops[release], facts)
        shutil.rmtree(pair)
    return ops


def _names(versions):
    return ", ".join("%d.%d" % version for version in sorted(versions))


def _build_engine(facts, version, work):
    """Builds the engine's module for a Python. Returns its path."""
    path = os.path.join(work, "engine-%s.so" % version)
    with step("engine for Python " + version):
        bazel.build_one(
            "cc/python/_engine.so", path, {"TF_MULTITIER_PYTHON_INCLUDE": facts["include"]}
        )
    return path


def _pack(engine, ops, tag, work):
    """A portable wheel of the package with these libraries, from a copy, so that the checkout stays clean. ops: {release: path}."""
    place = os.path.join(work, tag)
    sources, raw, repaired = (os.path.join(place, name) for name in ("sources", "raw", "repaired"))
    package = os.path.join(sources, "tf_multitier")
    left_out = shutil.ignore_patterns("__pycache__", "*.tmp", "*.so", "_build_info.py")
    with step("wheel"):
        shutil.copytree(bazel.PACKAGE, package, ignore=left_out)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(os.path.join(ROOT, name), sources)
        shutil.copy(engine, os.path.join(package, "_engine.so"))
        for path in ops.values():
            shutil.copy(path, package)
        bazel.write_build_info(package, {r: os.path.basename(path) for r, path in ops.items()})
        licences = {name: os.path.join("/usr/share/doc", name, "copyright") for name in _LINKED}
        licences["pybind11"] = output_of([environment.VENV_PYTHON, "-c", _LICENCE_OF_PYBIND11])[
            1
        ].strip()
        for name, licence in licences.items():
            if not os.path.isfile(licence):
                raise Failure("the licence of %s is not at '%s'" % (name, licence))
            shutil.copy(licence, os.path.join(sources, "LICENSE." + name))
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


def _check_with_twine(paths, work):
    """Failure if an index would refuse a wheel."""
    with step("twine check"):
        python = _new_environment(
            machine.python_facts(environment.VENV_PYTHON), os.path.join(work, "twine")
        )
        logged(environment.pip_install(python) + [_TWINE], "pip could not install " + _TWINE)
        logged([python, "-m", "twine", "check", "--strict"] + paths, "twine refuses a wheel")


def _try_deeprec(wheel, facts, minor, pair):
    """Installs the wheel with the extra `deeprec` in another environment, and runs a model as DeepRec's zoo has it."""
    folder = _copy(os.path.join("tests", "deeprec", "zoo"), pair)
    with step("installed, a DeepRec program runs"):
        python = _new_environment(facts, os.path.join(pair, "deeprec_environment"))
        same = ["tensorflow==%s.*" % minor, "tf_keras==%s.*" % minor]
        _install(python, wheel, "tensorflow,deeprec", folder, same)
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


def _install(python, wheel, extras, folder, more=()):
    install = environment.pip_install(python) + ["%s[%s]" % (wheel, extras), *more]
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
    found = re.findall(r"```python\n(.*?)```", _read("README.md"), re.DOTALL)
    return [program for program in found if "print(" in program]


def _read(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        return file.read().decode("utf-8")
