"""cc/hbm/check/gpu_check.sh and its program: what they say where there is a GPU, none, or a tool that finds errors."""

import json
import os
import shutil
import subprocess

import pytest
from paths import ROOT

SCRIPT = os.path.join(ROOT, "cc/hbm/check/gpu_check.sh")
LIBRARIES = os.environ.get("TF_MULTITIER_CUDA_LIBRARIES")  # set by configure.py test
PARTS = ["pairs", "engine", "kernel_times", "row_times", "step_times"]
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]


def run(*arguments, path=None):
    environment = dict(os.environ, PATH=path or os.environ["PATH"])
    return subprocess.run(
        ["bash", SCRIPT, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


# A program that prints what a test asks for, with its own arguments.
PROGRAM_STUB = """#!/bin/bash
echo "ran with: $*" >&2
echo "$SAID"
exit "$CODE"
"""
SANITIZER_STUB = """#!/bin/bash
[ "$2" != "$FINDS" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 1; }
"""
FINE = '{"gpu": "NVIDIA X", "pairs": {"checks": 7, "differ": 0}, "seconds_of_pairs": 2.5}'


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


def stubbed(tmp_path, monkeypatch, said, *arguments, code=0, finds="", sanitizer=True):
    """(exit status, JSON, stderr) of the script with these in place of the program and of compute-sanitizer."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "out").mkdir()
    executable(tmp_path / "out" / "gpu_check", PROGRAM_STUB)
    if sanitizer:
        executable(tmp_path / "bin" / "compute-sanitizer", SANITIZER_STUB)
    for tool in ("bash", "mkdir", "tee"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    for name, value in {"SAID": said, "CODE": str(code), "FINDS": finds}.items():
        monkeypatch.setenv(name, value)
    done = run(tmp_path / "out", *arguments, path=str(tmp_path / "bin"))
    with open(tmp_path / "out" / "gpu_check.json", encoding="utf-8") as file:
        written = file.read()
    assert done.stdout == written
    return done.returncode, json.loads(written), done.stderr


def test_every_tool_has_a_result(tmp_path, monkeypatch):
    code, found, _ = stubbed(tmp_path, monkeypatch, FINE)
    assert code == 0
    assert found == json.loads(FINE) | {"sanitizers": dict.fromkeys(TOOLS, "clean")}


def test_errors_of_one_tool_fail_and_the_others_still_run(tmp_path, monkeypatch):
    code, found, said = stubbed(tmp_path, monkeypatch, FINE, finds="racecheck")
    assert code == 1
    results = dict.fromkeys(TOOLS, "clean") | {"racecheck": "errors: see racecheck.log"}
    assert found["sanitizers"] == results
    assert "compute-sanitizer --tool racecheck: errors: see racecheck.log" in said
    assert "1 error" in (tmp_path / "out" / "racecheck.log").read_text()


def test_without_compute_sanitizer_the_result_says_so(tmp_path, monkeypatch):
    code, found, said = stubbed(tmp_path, monkeypatch, FINE, sanitizer=False)
    reason = "not run: compute-sanitizer is not installed"
    assert (code, found["sanitizers"]) == (0, dict.fromkeys(TOOLS, reason))
    assert reason in said


def test_without_a_gpu_no_tool_runs(tmp_path, monkeypatch):
    code, found, _ = stubbed(tmp_path, monkeypatch, '{"gpu": null, "reason": "no GPU: x"}')
    assert code == 0
    assert found["gpu"] is None
    assert found["sanitizers"] == dict.fromkeys(TOOLS, "not run: no GPU")


def test_a_check_that_fails_is_in_the_result_and_fails(tmp_path, monkeypatch):
    said = FINE.replace('{"checks": 7, "differ": 0}', '{"error": "DataLoss: x"}')
    code, found, _ = stubbed(tmp_path, monkeypatch, said, code=1)
    assert (code, found["pairs"]) == (1, {"error": "DataLoss: x"})
    assert found["sanitizers"]["memcheck"] == "clean"


def test_a_check_that_crashes_is_in_the_result_and_fails(tmp_path, monkeypatch):
    code, found, _ = stubbed(tmp_path, monkeypatch, "", code=139)
    assert (code, found["error"]) == (1, "gpu_check ended without a result")
    assert found["sanitizers"] == dict.fromkeys(TOOLS, "clean")


def test_a_part_runs_alone(tmp_path, monkeypatch):
    code, found, said = stubbed(tmp_path, monkeypatch, FINE, "--part=pairs", finds="memcheck")
    assert (code, found) == (0, json.loads(FINE) | {"sanitizers": {}})
    assert "ran with: --part=pairs" in said


def test_a_tool_is_a_part(tmp_path, monkeypatch):
    code, found, said = stubbed(tmp_path, monkeypatch, FINE, "--part=synccheck", finds="synccheck")
    assert code == 1
    assert found == {"sanitizers": {"synccheck": "errors: see synccheck.log"}}
    assert "ran with" not in said


def test_without_the_program_the_cure_is_named(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert "gpu_check, found none: make it with --build" in done.stderr


@pytest.fixture
def program(tmp_path):
    """A folder with the program of a build with CUDA."""
    if LIBRARIES is None:
        pytest.skip("nvcc is not installed: no CUDA build")
    shutil.copy(os.path.join(LIBRARIES, "gpu_check"), tmp_path)
    return tmp_path


def test_the_program_can_be_carried(program):
    with open(program / "gpu_check", "rb") as file:
        content = file.read()
    assert b"cudaGetDeviceCount" in content  # the runtime is inside
    for folder in (ROOT, os.path.realpath(LIBRARIES), os.path.expanduser("~/.cache")):
        assert os.fsencode(folder) not in content
    listed = subprocess.run(
        ["readelf", "-d", program / "gpu_check"], capture_output=True, text=True, check=True
    ).stdout
    needed = [
        line.split("[")[1].partition(".so")[0] for line in listed.splitlines() if "NEEDED" in line
    ]
    assert set(needed) <= {"libc", "libdl", "libm", "libpthread", "librt", "ld-linux-x86-64"}
    assert "RUNPATH" not in listed and "RPATH" not in listed


def test_the_program_finds_nothing_on_the_emulated_device(program):
    done = run(program, "--emulated")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["gpu"] == "emulated"
    for part in PARTS:
        assert found["seconds_of_" + part] > 0
    for part in ("pairs", "engine"):
        assert found[part]["differ"] == 0 < found[part]["checks"]
    assert found["sanitizers"] == dict.fromkeys(TOOLS, "not run: no GPU")


def test_the_program_checks_the_gpu_or_says_that_there_is_none(program):
    done = run(program, "--part=pairs")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    if found["gpu"] is None:
        assert "no GPU: " in found["reason"]
        assert "nothing was checked: " in done.stderr and found["reason"] in done.stderr
    else:
        assert found["pairs"]["differ"] == 0 < found["pairs"]["checks"]


def test_the_program_refuses_parts_that_it_does_not_have(program):
    done = subprocess.run(
        [program / "gpu_check", "--part=all"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "expected --small, --emulated and --part= with one of %s\n" % ", ".join(
        PARTS
    )
