"""build_tools/suites.py: the tiers have all tests, and what hangs in one is ended and named."""

import glob
import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

import configure
from build_tools import steps
from build_tools import suites


def test_each_file_that_a_tier_or_a_job_names_exists():
    named = [*suites.CHECK, *suites.SYSTEM, *suites._STRESS, *suites._V1, *suites._OVER_HBM]
    named += [*suites._OVER_HBM_WITH_OPTIONS, *suites._ON_A_GPU]
    places = glob.glob(os.path.join(ROOT, "tests", "*", "*.py"))
    names = list(map(os.path.basename, places))
    assert [name for name in named if names.count(name) != 1] == []


def test_each_file_is_in_one_tier():
    tiers = [*suites.CHECK, *suites.SYSTEM, *suites.unit_files()]
    files = glob.glob(os.path.join(ROOT, "tests", "**", "test_*.py"), recursive=True)
    names = map(os.path.basename, files)
    assert sorted(tiers) == sorted(name for name in names if not name.startswith("test_attack_"))


def test_each_cpp_source_is_built():
    """A test in no BUILD file would never run."""
    found = []
    for path in glob.glob(os.path.join(ROOT, "cc", "**", "*.cc"), recursive=True):
        folder = os.path.dirname(path)
        while not os.path.exists(os.path.join(folder, "BUILD")):
            folder = os.path.dirname(folder)
        with open(os.path.join(folder, "BUILD"), encoding="utf-8") as build:
            named = set(re.findall(r'"([^"]+)"', build.read()))
        if not named & {os.path.relpath(path, folder), os.path.basename(path)[: -len(".cu.cc")]}:
            found.append(os.path.relpath(path, ROOT))
    assert not found


def test_tier_0_imports_neither_tensorflow_nor_the_package():
    code = "import sys, pytest; code = pytest.main(sys.argv[1:]); print(sorted(sys.modules)); sys.exit(code)"
    command = [*suites.pytest(suites.CHECK, "-q", "--noconftest", "--collect-only")][3:]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1]
    assert "'pytest'" in modules and "tensorflow" not in modules and "tf_multitier" not in modules


def test_the_selections_of_several_files_are_one_expression():
    files, options = suites.selected({"test_b.py": "not x", "test_a.py": "", "test_c.py": "y"})
    assert files == ["test_a.py", "test_b.py", "test_c.py"]
    assert options == ["-k", "(not test_b.py or (not x)) and (not test_c.py or (y))"]


def test_an_unknown_job_or_tier_is_refused_with_those_that_exist():
    with pytest.raises(steps.Failure, match="expected asan, .*wheels, found asn"):
        suites.run_jobs(["tsan", "asn"])
    with pytest.raises(steps.Failure, match="expected one of 0, 1, 2, 3, found --tier=4"):
        configure.command_test(["--tier=4"])


def test_both_failures_of_cpp_and_python_tests_are_reported_and_pytest_has_the_last_line(
    monkeypatch, capfd
):
    def cpp_tests():
        raise steps.Failure("C++ tests FAILED")

    def run(command, env):
        assert command[-2:] == ["tests/test_x.py", "-x"]
        assert env["PYTHONDONTWRITEBYTECODE"] == ""
        return steps.subprocess.call(
            [sys.executable, "-c", "print('1 failed'); raise SystemExit(1)"]
        )

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(configure, "build", lambda: None)
    monkeypatch.setattr(configure.machine, "find_nvcc", lambda: None)
    monkeypatch.setattr(suites, "cpp_tests", cpp_tests)
    monkeypatch.setattr(steps, "run", run)
    with pytest.raises(steps.Failure, match=r"^C\+\+ tests FAILED\n\nPython tests FAILED"):
        configure.command_test(["--tier=1", "tests/test_x.py", "-x"])
    out, err = capfd.readouterr()
    assert out.splitlines()[-1] == "1 failed" and "C++ tests" in err


def test_a_job_that_fails_does_not_keep_the_others_from_running(monkeypatch):
    ran = []

    def fails():
        """Fails."""
        raise steps.Failure("the reason")

    def passes():
        """Passes."""
        ran.append("passes")

    monkeypatch.setattr(suites, "JOBS", {"a": fails, "b": passes})
    with pytest.raises(steps.Failure, match="^a: the reason$"):
        suites.run_jobs([])
    assert ran == ["passes"]


# A worker has 4 seconds to tell what it runs before it is ended.
@pytest.mark.parametrize(
    "options, named", [(("1",), "in test_waits"), (("4", "-n", "1"), "::test_waits")]
)
def test_a_test_that_hangs_is_ended_and_named(options, named, tmp_path):
    (tmp_path / "test_a.py").write_text(
        "import threading\ndef test_waits():\n    threading.Event().wait()\ndef test_passes():\n    pass\n"
    )
    config = os.path.join(ROOT, "pyproject.toml")
    command = [sys.executable, "-m", "pytest", "-q", "-c", config, f"--rootdir={tmp_path}"]
    seconds, *options = options
    done = subprocess.run(
        [*command, "-o", f"faulthandler_timeout={seconds}", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert named in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "configure.log"
    monkeypatch.setattr(steps, "LOG", str(path))
    steps.begin_log("test")
    return path


def test_programs_side_by_side_all_run_and_those_that_fail_are_shown(log, capfd):
    def program(code):
        return [sys.executable, "-c", code]

    runs = [
        ("one", program("import os; print('says', os.environ['WHO'])"), {"WHO": "one"}),
        ("two", program("raise SystemExit('two is broken')"), {}),
        ("three", program("print('says three')"), {}),
    ]
    with pytest.raises(steps.Failure, match="^two FAILED(.|\n)*two is broken") as failure:
        steps.side_by_side(runs)
    assert "three" not in str(failure.value)
    assert "says one\n" in log.read_text() and "says three\n" in log.read_text()
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["one", "two", "three"]
