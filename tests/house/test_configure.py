"""configure.py: its error messages. That it works is shown by the fact that these tests run."""

import ast
import glob
import os
import re
import subprocess
import sys
import tarfile
import threading

import pytest
from paths import ROOT

import configure
from build_tools import bazel, environment, machine, steps, wheels

PYTHON = {"version": [3, 11], "executable": sys.executable, "venv": True, "headers": True}


def test_an_unknown_command_is_refused_and_the_known_ones_are_listed():
    process = subprocess.run(
        [sys.executable, os.path.join(ROOT, "configure.py"), "tset"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert "'tset'" in process.stderr
    for name in configure.COMMANDS_BY_NAME:
        assert name in process.stderr
    assert "Traceback" not in process.stderr


def test_other_sources_have_another_digest(tmp_path):
    found = []
    for folder, text in (("cc", "1"), ("cc", "2"), ("tf_multitier", "1")):
        for name in ("a.h", "_build_info.py"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_text(text)
        found.append(bazel.digest_of_sources(str(tmp_path)))
        (tmp_path / folder / "_build_info.py").write_text("of another build")
        assert bazel.digest_of_sources(str(tmp_path)) == found[-1]
    assert len(set(found)) == 3


def test_without_root_missing_packages_give_one_line_to_run(monkeypatch):
    monkeypatch.setattr(
        machine, "missing_packages", lambda python: ["libleveldb-dev", "liburing-dev"]
    )
    monkeypatch.setattr(machine.shutil, "which", lambda command: "/usr/bin/" + command)
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        machine, "logged", lambda *args, **kwargs: pytest.fail("ran something without root")
    )
    with pytest.raises(steps.Failure) as failure:
        machine.install_packages(PYTHON)
    lines = [line.strip() for line in str(failure.value).splitlines()]
    assert "sudo apt-get install -y --no-install-recommends libleveldb-dev liburing-dev" in lines


def test_without_apt_the_packages_are_named(monkeypatch):
    monkeypatch.setattr(machine, "missing_packages", lambda python: ["libleveldb-dev"])
    monkeypatch.setattr(machine.shutil, "which", lambda command: None)
    with pytest.raises(steps.Failure, match="libleveldb-dev"):
        machine.install_packages(PYTHON)


def test_with_root_missing_packages_are_installed_once(monkeypatch):
    ran = []
    missing = [["libleveldb-dev"], []]
    monkeypatch.setattr(machine, "missing_packages", lambda python: missing.pop(0))
    monkeypatch.setattr(machine.shutil, "which", lambda command: "/usr/bin/" + command)
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "logged", lambda command, *args, **kwargs: ran.append(command))
    machine.install_packages(PYTHON)
    assert [command[:2] for command in ran] == [["apt-get", "update"], ["apt-get", "install"]]
    assert "libleveldb-dev" in ran[1]


def test_a_header_that_the_compiler_lacks_names_its_package(monkeypatch):
    monkeypatch.setattr(
        machine, "HEADERS", [("vector", "in-the-compiler"), ("no/such/header.h", "libnone-dev")]
    )
    assert machine.missing_headers() == ["libnone-dev"]


def test_a_python_without_venv_or_headers_needs_its_packages(monkeypatch):
    monkeypatch.setattr(machine, "missing_headers", list)
    monkeypatch.setattr(machine.shutil, "which", lambda command: "/usr/bin/" + command)
    bare = dict(PYTHON, venv=False, headers=False)
    assert machine.missing_packages(bare) == ["python3.11-venv", "python3.11-dev"]


def test_a_named_python_of_an_unsupported_version_is_refused_with_its_version(monkeypatch):
    monkeypatch.setenv("TF_MULTITIER_PYTHON", "some-python")
    monkeypatch.setattr(
        machine, "python_facts", lambda python: dict(PYTHON, executable=python, version=[3, 8])
    )
    with pytest.raises(steps.Failure, match=r"3\.10 to 3\.13; found some-python \(3\.8\)"):
        machine.find_python()


def test_a_file_that_already_says_so_keeps_its_time(tmp_path):
    path = str(tmp_path / "file")
    steps.write_if_changed(path, "one\n")
    os.utime(path, (1, 1))
    steps.write_if_changed(path, "one\n")
    assert os.stat(path).st_mtime == 1
    steps.write_if_changed(path, "two\n")
    assert os.stat(path).st_mtime != 1


def test_an_environment_that_is_a_link_is_refused_and_what_it_leads_to_is_kept(
    tmp_path, monkeypatch
):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("kept")
    (tmp_path / ".venv").symlink_to(tmp_path / "other")
    monkeypatch.setattr(environment, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(environment, "VENV_PYTHON", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setattr(environment, "STAMP", str(tmp_path / ".venv" / "stamp.json"))
    with pytest.raises(steps.Failure, match="is a link to .*other.*remove the link"):
        environment.make_environment({"executable": sys.executable})
    assert (tmp_path / "other" / "file").read_text() == "kept"


@pytest.mark.parametrize("ready", [False, True])
def test_the_engine_is_built_next_to_pip_and_only_where_pip_runs(monkeypatch, ready, capfd):
    built, order = threading.Event(), []
    monkeypatch.setattr(environment, "environment_is_ready", lambda: ready)
    monkeypatch.setattr(machine, "find_python", lambda: PYTHON)
    monkeypatch.setattr(machine, "python_facts", lambda python: PYTHON)
    monkeypatch.setattr(machine, "install_packages", lambda python: order.append("packages"))
    monkeypatch.setattr(environment, "probe_environment", dict)
    monkeypatch.setattr(environment, "write_bazelrc", lambda facts: order.append("bazelrc"))

    def pip(python):
        assert ready or built.wait(60)  # pip is at work when the engine is built
        order.append("pip")

    def engine():
        assert order == ["packages"]  # the compiler and Bazel are there
        built.set()

    monkeypatch.setattr(environment, "make_environment", pip)
    environment.configure(meanwhile=engine)
    assert order == ["packages", "pip", "bazelrc"] and built.is_set() == (not ready)


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "configure.log"
    monkeypatch.setattr(steps, "LOG", str(path))
    steps.begin_log("test")
    return path


def test_a_step_prints_one_line_and_what_its_program_prints_goes_to_the_log(log, capfd):
    with steps.step("the step"):
        steps.logged(
            [sys.executable, "-c", "print('noise'); import sys; print('more', file=sys.stderr)"],
            "complaint",
        )
    out, err = capfd.readouterr()
    assert (
        out.count("\n") == 1
        and out.split()[:2] == ["the", "step"]
        and out.split()[-1] == "s"
        and err == ""
    )
    assert "noise\n" in log.read_text() and "more\n" in log.read_text()


def test_a_program_that_fails_names_the_log_and_shows_the_end_of_its_output(log, capfd):
    code = "for i in range(100): print('line', i)\nraise SystemExit(3)"
    with pytest.raises(steps.Failure) as failure, steps.step("the step"):
        steps.logged([sys.executable, "-c", code], "the program failed")
    message = str(failure.value)
    assert message.startswith("the program failed.") and message.endswith(str(log))
    assert "line 99" in message and "line 10\n" not in message
    assert "line 10\n" in log.read_text() and "failed after" in capfd.readouterr().out


def test_a_program_that_is_missing_is_named(log):
    with pytest.raises(steps.Failure, match="could not do it: .*no-such-program"):
        steps.logged(["no-such-program"], "could not do it")


def test_progress_of_bazel_stays_out_of_the_log_and_of_a_file(log, capfd):
    steps.logged(
        [
            sys.executable,
            "-c",
            "print('Loading: ')\nprint('[1,026 / 2,169] Compiling a.cc')\nprint('INFO: b')",
        ],
        "",
    )
    assert capfd.readouterr().out == ""
    assert log.read_text().endswith("INFO: b\n") and "2,169" not in log.read_text().splitlines()[-2]


def test_of_failed_tests_their_output_and_the_summary_is_shown():
    rule = "=" * 80
    lines = [
        "INFO: Found 2 targets",
        "==================== Test output for //cc:b_test:",
        "b.cc:3: Failure",
        rule,
        "//cc:a_test PASSED in 0.1s",
        "//cc:b_test FAILED in 0.1s",
        "Executed 2 out of 2 tests: 1 fails locally.",
    ]
    assert steps.failed_tests(lines) == [*lines[1:4], *lines[5:]]
    assert steps.failed_tests(["a.cc:1: error"]) == ["a.cc:1: error"]


def test_what_configure_runs_before_it_has_a_python_is_written_for_any_python_3():
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Match)
    for path in [
        os.path.join(ROOT, "configure.py"),
        *glob.glob(os.path.join(ROOT, "build_tools", "*.py")),
    ]:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read(), path, feature_version=(3, 4))
        found = [f"{path}:{node.lineno}" for node in ast.walk(tree) if isinstance(node, newer)]
        assert not found, found
        modules = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {module.split(".")[0] for module in modules} <= set(sys.stdlib_module_names) | {
            "build_tools"
        }


def test_cuda_without_its_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda command, path=None: None)
    with pytest.raises(steps.Failure, match="--cuda needs nvcc: none is on PATH"):
        environment.use_cuda()


def test_a_cuda_that_is_too_old_is_refused_with_its_version(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda command, path=None: "/bin/nvcc")
    monkeypatch.setattr(
        machine, "output_of", lambda command: (0, "Cuda compilation tools, release 11.8, V1", "")
    )
    with pytest.raises(steps.Failure, match="expected CUDA 12.5 or newer; /bin/nvcc is of 11.8"):
        machine.find_nvcc()


def test_bazel_hears_of_cuda_only_where_it_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "BAZELRC", str(tmp_path / "bazelrc"))
    environment.write_bazelrc({"A": "1"})
    assert "cuda" not in (tmp_path / "bazelrc").read_text().lower()
    monkeypatch.setattr(environment, "_cuda", {"TF_MULTITIER_NVCC": "/bin/nvcc"})
    environment.write_bazelrc({"A": "1"})
    written = (tmp_path / "bazelrc").read_text().splitlines()
    assert written[-2:] == [
        "build --define=multitier_cuda=1",
        "build --repo_env=TF_MULTITIER_NVCC=/bin/nvcc",
    ]


def test_a_source_distribution_has_the_files_of_git_and_nothing_built(tmp_path):
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("the sources are not those of a clone")
    with tarfile.open(wheels.pack_sources(str(tmp_path))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        [top] = {name.partition("/")[0] for name in packed.getnames()}
        page = packed.extractfile(top + "/PKG-INFO").read().decode()
    of_ci = {name for name in tracked if name.startswith((".ci/", ".git"))}
    assert set(tracked) - names == of_ci
    assert not [name for name in names if name.endswith((".so", ".pyc", "_build_info.py"))]
    # An index shows README.md without the files that it links to.
    assert "# tf_multitier" in page
    assert re.findall(r"\]\((?!https?:)[^)]*\)", page) == []
