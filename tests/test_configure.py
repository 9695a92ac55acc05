"""configure.py: what it says when it cannot go on. What it does when it can is shown by these tests running at all."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import configure  # noqa: E402  (it lies beside the package, not in it)

PYTHON = {"version": [3, 11], "executable": sys.executable, "venv": True, "headers": True}


def test_an_unknown_command_is_refused_and_the_known_ones_are_listed():
    process = subprocess.run(
        [sys.executable, os.path.join(ROOT, "configure.py"), "tset"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert "'tset'" in process.stderr
    for name in configure.COMMANDS_BY_NAME:
        assert name in process.stderr
    assert "Traceback" not in process.stderr


def test_without_root_missing_packages_give_one_line_to_run(monkeypatch):
    monkeypatch.setattr(configure, "missing_packages", lambda python: ["libleveldb-dev", "liburing-dev"])
    monkeypatch.setattr(configure.shutil, "which", lambda command: "/usr/bin/" + command)
    monkeypatch.setattr(configure.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(configure, "run", lambda *args, **kwargs: pytest.fail("ran something without root"))
    with pytest.raises(configure.Failure) as failure:
        configure.install_packages(PYTHON)
    lines = [line.strip() for line in str(failure.value).splitlines()]
    assert "sudo apt-get install -y --no-install-recommends libleveldb-dev liburing-dev" in lines


def test_without_apt_the_packages_are_named(monkeypatch):
    monkeypatch.setattr(configure, "missing_packages", lambda python: ["libleveldb-dev"])
    monkeypatch.setattr(configure.shutil, "which", lambda command: None)
    with pytest.raises(configure.Failure, match="libleveldb-dev"):
        configure.install_packages(PYTHON)


def test_with_root_missing_packages_are_installed_once(monkeypatch):
    ran = []
    missing = [["libleveldb-dev"], []]
    monkeypatch.setattr(configure, "missing_packages", lambda python: missing.pop(0))
    monkeypatch.setattr(configure.shutil, "which", lambda command: "/usr/bin/" + command)
    monkeypatch.setattr(configure.os, "geteuid", lambda: 0)
    monkeypatch.setattr(configure, "run", lambda command, **kwargs: ran.append(command) or 0)
    configure.install_packages(PYTHON)
    assert [command[:2] for command in ran] == [["apt-get", "update"], ["apt-get", "install"]]
    assert "libleveldb-dev" in ran[1]


def test_a_header_that_the_compiler_lacks_names_its_package(monkeypatch):
    monkeypatch.setattr(configure, "HEADERS", [("vector", "in-the-compiler"), ("no/such/header.h", "libnone-dev")])
    assert configure.missing_headers() == ["libnone-dev"]


def test_a_python_without_venv_or_headers_needs_its_packages(monkeypatch):
    monkeypatch.setattr(configure, "missing_headers", lambda: [])
    monkeypatch.setattr(configure.shutil, "which", lambda command: "/usr/bin/" + command)
    bare = dict(PYTHON, venv=False, headers=False)
    assert configure.missing_packages(bare) == ["python3.11-venv", "python3.11-dev"]


def test_a_named_python_of_an_unsupported_version_is_refused_with_its_version(monkeypatch):
    monkeypatch.setenv("TF_MULTITIER_PYTHON", "some-python")
    monkeypatch.setattr(configure, "python_facts", lambda python: dict(PYTHON, executable=python, version=[3, 8]))
    with pytest.raises(configure.Failure, match=r"3\.10 to 3\.13; found some-python \(3\.8\)"):
        configure.find_python()


def test_a_file_that_already_says_so_keeps_its_time(tmp_path):
    path = str(tmp_path / "file")
    configure.write_if_changed(path, "one\n")
    os.utime(path, (1, 1))
    configure.write_if_changed(path, "one\n")
    assert os.stat(path).st_mtime == 1
    configure.write_if_changed(path, "two\n")
    assert os.stat(path).st_mtime != 1


def test_an_environment_that_is_a_link_is_refused_and_what_it_leads_to_is_kept(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("kept")
    (tmp_path / ".venv").symlink_to(tmp_path / "other")
    monkeypatch.setattr(configure, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(configure, "VENV_PYTHON", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setattr(configure, "STAMP", str(tmp_path / ".venv" / "stamp.json"))
    with pytest.raises(configure.Failure, match="is a link to .*other.*remove the link"):
        configure.make_environment({"executable": sys.executable})
    assert (tmp_path / "other" / "file").read_text() == "kept"
