"""The command python3 -m tf_multitier.serving: its ends."""

import os
import re
import shutil
import signal

import forks
import pytest
import requests
from paths import ROOT
from test_serving_http import export
from test_serving_http import WAIT

from tf_multitier.serving.__main__ import main


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "click"
    export(folder / "7", folder)
    return folder


def test_a_process_ends_at_a_signal(base):
    arguments = ["-m", "tf_multitier.serving", base, "--port=0", "--name=click"]
    with forks.start(arguments, cwd=ROOT) as process:
        address = re.fullmatch(r"serving at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
        found = requests.get(f"{address[1]}/v1/models/click", timeout=WAIT)
        assert found.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0


def test_a_signal_right_after_the_address_ends_a_process(base):
    code = (
        "import os, signal, sys\n"
        "from tf_multitier.serving import __main__ as command\n"
        "command.print = lambda *unused, **also_unused: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.exit(command.main([{str(base)!r}, '--port=0']))"
    )
    assert forks.run(["-c", code], cwd=ROOT, timeout=WAIT).returncode == 0


def test_a_signal_ends_a_process_whose_disk_hangs(base, tmp_path):
    """A FIFO is in place of a file on such a disk: who opens it to write waits for its reader, which waits for data."""
    name = "variables/variables.index"
    shutil.copytree(base / "7", tmp_path / "click" / "1")
    shutil.copytree(base / "7", tmp_path / "new")
    os.remove(tmp_path / "new" / name)
    os.mkfifo(tmp_path / "new" / name)
    click, new = str(tmp_path / "click"), str(tmp_path / "new")
    code = (
        "import os, signal, sys, threading\n"
        "from tf_multitier.serving import __main__ as command, base_path, server\n"
        "def terminate():\n"
        f"    os.rename({new!r}, {click!r} + '/2')\n"
        f"    held = os.open({click!r} + '/2/{name}', os.O_WRONLY)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "base_path.stat.S_ISREG = lambda mode: True\n"
        "announce = lambda *unused, **also_unused: threading.Thread(target=terminate).start()\n"
        "command.print, server._LAST_SECONDS = announce, 0.1\n"
        f"sys.exit(command.main([{click!r}, '--port=0', '--poll_seconds=0.01']))"
    )
    done = forks.run(["-c", code], cwd=ROOT, timeout=WAIT)
    assert done.returncode == 0
    assert "click': expected what reads its files to end within 0.1 s" in done.stderr


def test_a_server_that_fails_is_no_success(base, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda *unused: None)
    assert main([str(base), "--port=0"]) == 1
