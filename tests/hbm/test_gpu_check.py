"""cc/hbm/check/gpu_check.sh: what it compiles, and what it says where there is a GPU, none, or a tool that finds errors."""

import json
import os
import re
import shutil
import subprocess

import pytest
from paths import ROOT

SCRIPT = os.path.join(ROOT, "cc/hbm/check/gpu_check.sh")
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def run(*arguments, path=None):
    environment = dict(os.environ, PATH=path or os.environ["PATH"])
    return subprocess.run(
        ["bash", SCRIPT, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def exists(path):
    return os.path.exists(os.path.join(ROOT, path))


def needed():
    """The sources whose headers gpu_check.cc includes, or a source among these, and the sources of the kernels."""
    names = re.search(r"_KERNELS = .*? in \[(.*?)\]", read("cc/device/BUILD"), re.DOTALL)[1]
    kernels = [f"kernels/{name}.cu.cc" for name in re.findall(r'"(\w+)"', names)]
    found, todo = (
        set(),
        ["cc/hbm/check/gpu_check.cc", *[f"cc/device/{kernel}" for kernel in kernels]],
    )
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found.add(file)
        for header in re.findall(r'#include "(cc/[^"]+)\.h"', read(file)):
            todo += [
                path for path in (f"{header}{e}" for e in (".h", ".cc", ".cu.cc")) if exists(path)
            ]
    return {file for file in found if file.endswith(".cc")}


def test_the_script_compiles_every_source_that_the_check_needs_and_no_other():
    done = run("--sources")
    assert done.returncode == 0, done.stderr
    compiled = {"nvcc": set(), "g++": set()}
    for line in done.stdout.splitlines():
        compiler, source = line.split()
        compiled[compiler].add(source)
    sources = needed()
    assert len(sources) > 20
    cuda = {source for source in sources if source.endswith(".cu.cc")}
    assert compiled["nvcc"] == cuda
    assert compiled["g++"] == sources - {"cc/device/cuda_device.cu.cc"}
    # What the targets of Bazel have that test the same files.
    for target in ("pair_check", "kernel_times"):
        block = re.search(
            rf'name = "{target}",.*?srcs = \[(.*?)\]', read("cc/hbm/check/BUILD"), re.DOTALL
        )
        assert {f"cc/hbm/check/{name}" for name in re.findall(r'"(.*?)"', block[1])} <= compiled[
            "g++"
        ]


# Compilers that make nothing, and a check that prints what a test asks for.
NVCC_STUB = """#!/bin/bash
out=${*: -1}
case "$*" in
  *" -c "*) touch "$out" ;;
  *) printf '#!/bin/bash\\ncat <<E\\n%s\\nE\\nexit %s\\n' "$SAID" "$CODE" > "$out" && chmod +x "$out" ;;
esac
"""
GCC_STUB = """#!/bin/bash
touch "${*: -1}"
"""
SANITIZER_STUB = """#!/bin/bash
[ "$2" != "$FINDS" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 1; }
"""
FINE = '{"gpu": "NVIDIA X", "checks": 36, "differ": 0, "times": {}}'
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]


def stubbed(tmp_path, monkeypatch, said, code=0, finds="", sanitizer=True):
    """(exit status, JSON, stderr) of the script with these in place of the compilers and of compute-sanitizer."""
    stubs = {"nvcc": NVCC_STUB, "stub_gcc": GCC_STUB}
    stubs.update({"compute-sanitizer": SANITIZER_STUB} if sanitizer else {})
    (tmp_path / "bin").mkdir()
    for name, text in stubs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for tool in (
        "bash",
        "basename",
        "cat",
        "chmod",
        "dirname",
        "mkdir",
        "nproc",
        "tee",
        "touch",
        "xargs",
    ):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    for name, value in {"SAID": said, "CODE": str(code), "FINDS": finds, "CXX": "stub_gcc"}.items():
        monkeypatch.setenv(name, value)
    done = run(tmp_path / "out", path=str(tmp_path / "bin"))
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
    said = FINE.replace("{}", '{"error": "Internal: x"}')
    code, found, _ = stubbed(tmp_path, monkeypatch, said, code=1)
    assert (code, found["times"]) == (1, {"error": "Internal: x"})
    assert found["sanitizers"]["memcheck"] == "clean"


@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.skipif(
    not os.environ.get("TF_MULTITIER_STRESS"),
    reason="compiles for minutes: set TF_MULTITIER_STRESS",
)
def test_the_real_check_passes_here(tmp_path):
    done = run(tmp_path, path=os.pathsep.join([os.path.dirname(NVCC), os.environ["PATH"]]))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    if found["gpu"] is None:
        assert "no GPU: " in found["reason"]
        assert "nothing was checked: " in done.stderr and found["reason"] in done.stderr
    else:
        assert found["differ"] == 0 < found["checks"]
        assert found["times"]["find_all"]["seconds"] > 0
    assert set(found["sanitizers"]) == set(TOOLS)
