"""python3 -m tf_multitier.launch: the tasks of a cluster, their output, their ends and restarts. Programs here use no TensorFlow."""

import contextlib
import fcntl
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import termios

import pytest
from paths import ROOT

# The module alone, with a bound that a test can wait for.
ALONE = (
    "import sys; sys.path.insert(0, {folder!r}); import launch; launch.GRACE = 0.5; import signal; "
    "[signal.signal(each, signal.SIG_DFL) for each in launch._STOP_SIGNALS]; status = launch.main(sys.argv[1:]); "
    "assert 'tensorflow' not in sys.modules; sys.exit(status)"
).format(folder=os.path.join(ROOT, "tf_multitier"))
BEGIN = """
import json, os, signal, sys, threading
TF_CONFIG = json.loads(os.environ["TF_CONFIG"])
job, index = TF_CONFIG["task"]["type"], TF_CONFIG["task"]["index"]

def starts(task):  # how often it has begun
    path = f"{sys.argv[1]}/{task}"
    return os.path.getsize(path) if os.path.exists(path) else 0

def until(condition):
    while not condition():
        threading.Event().wait(0.01)

with open(f"{sys.argv[1]}/{job}{index}", "a") as file:
    file.write(".")
again = starts(f"{job}{index}") > 1

def write(left):  # a process that is stopped for a moment writes a part
    while left:
        left = left[os.write(1, left) :]

def wait():
    os.write(1, f"pid {os.getpid()}\\n".encode())
    while True:
        signal.pause()
"""


@pytest.fixture
def launcher(tmp_path):
    """launcher(code, arguments...): a started launcher of a program, in text mode."""
    with contextlib.ExitStack() as stack:

        def start(code, *arguments, command=("-c", ALONE)):
            program = tmp_path / "program.py"
            program.write_text(BEGIN + code)
            process = subprocess.Popen(
                [sys.executable, *command, *arguments, str(program), str(tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start


def done(process):
    output, errors = process.communicate(timeout=60)
    return process.returncode, output.splitlines(), errors.splitlines()


def processes(launched, count):
    """File descriptors of `count` processes that printed their numbers."""
    found = []
    while len(found) < count:
        line = launched.stdout.readline()
        assert line, launched.stderr.read()
        found += [os.pidfd_open(int(pid)) for pid in re.findall(r"pid (\d+)$", line)]
    return found


def all_end(pidfds):
    for pidfd in pidfds:
        ready, _, _ = select.select([pidfd], [], [], 30)
        os.close(pidfd)
        if not ready:
            return False
    return True


@pytest.mark.parametrize(
    "arguments, tasks",
    [
        (["--workers=2"], {"worker": 2}),
        (["--workers=1", "--ps=2"], {"chief": 1, "ps": 2}),
        (["--workers=3", "--ps=1"], {"chief": 1, "worker": 2, "ps": 1}),
    ],
)
def test_each_task_has_its_config_and_arguments_and_its_lines_have_its_name(
    launcher, arguments, tasks
):
    code = "print(json.dumps([TF_CONFIG, sys.argv[2:]]))\nprint('e', end='', file=sys.stderr)\n"
    code += "open(sys.argv[1] + '/printed', 'a').write('.')\nif job == 'ps': wait()\n"
    code += f"until(lambda: starts('printed') == {sum(tasks.values())})"
    status, output, errors = done(launcher(code, *arguments))
    assert status == 0
    names = [f"{job} {index}" for job, count in tasks.items() for index in range(count)]
    lines = {
        name: json.loads(text)
        for name, text in re.findall(r"^\[(.*?)\] (\[.*)$", "\n".join(output), re.M)
    }
    assert sorted(lines) == sorted(names)
    assert set(errors) == {f"[{name}] e" for name in names}
    clusters = [config["cluster"] for config, _ in lines.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    assert {job: len(addresses) for job, addresses in clusters[0].items()} == tasks
    assert len(set().union(*clusters[0].values())) == len(names)
    for name, (config, arguments) in lines.items():
        assert "{type} {index}".format(**config["task"]) == name and arguments == []


def test_the_launcher_loads_no_tensorflow(launcher, tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('loaded')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ROOT]))
    module = ("-m", "tf_multitier.launch")
    assert done(launcher("print(index)", "--workers=1", command=module)) == (
        0,
        ["[worker 0] 0"],
        [],
    )
    module = ("-um", "tf_multitier.launch")
    program = (*module, "--workers=1", "-m", "json.tool")
    assert done(launcher("", "--help", command=program))[1][0].startswith("[worker 0] usage: ")


def test_the_status_is_that_of_the_first_that_failed_and_the_others_are_ended(launcher, tmp_path):
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0 or index == 0:
    wait()
until(lambda: starts("go"))
sys.exit(3)
"""
    launched = launcher(code, "--workers=2")
    running = processes(launched, 3)
    (tmp_path / "go").write_text("!")
    assert all_end(running)
    status, _, errors = done(launched)
    assert (status, errors) == (3, ["[launch] worker 1 ended with status 3"])


def test_a_process_that_a_signal_ends_has_the_status_of_a_shell(launcher):
    assert done(launcher("os.kill(os.getpid(), signal.SIGKILL)", "--workers=1"))[0] == 137


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("arguments", [["--workers=2"], ["--workers=1", "--ps=1"]])
def test_a_signal_ends_all_processes_also_those_that_ignore_it(launcher, number, arguments):
    code = "if index == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwait()"
    launched = launcher(code, *arguments, "--max_restarts=5")
    running = processes(launched, 2)
    launched.send_signal(number)
    status, output, errors = done(launched)
    assert (status, output, errors) == (128 + number, [], []) and all_end(running)


def test_a_signal_that_is_ignored_ends_nothing(launcher, tmp_path):
    ignores = ALONE.replace("SIG_DFL", "SIG_IGN")
    code = "print('up')\nuntil(lambda: starts('go'))"
    launched = launcher(code, "--workers=1", command=("-c", ignores))
    assert launched.stdout.readline() == "[worker 0] up\n"
    launched.send_signal(signal.SIGHUP)
    (tmp_path / "go").write_text(".")
    assert done(launched) == (0, [], [])


def test_the_processes_of_a_launcher_that_is_killed_end(launcher):
    launched = launcher("wait()", "--workers=2", "--ps=1")
    running = processes(launched, 3)
    launched.kill()
    assert all_end(running)


def test_without_servers_a_failure_starts_all_again(launcher, tmp_path):
    code = """
if again: sys.exit()
if index != 1: wait()
until(lambda: starts("worker0") and starts("worker2"))
sys.exit(7)
"""
    status, _, errors = done(launcher(code, "--workers=3", "--max_restarts=2"))
    assert status == 0
    assert errors == ["[launch] worker 1 ended with status 7", "[launch] all start again, 1 of 2"]
    assert [(tmp_path / f"worker{i}").read_text() for i in range(3)] == [".."] * 3


@pytest.mark.parametrize("died", ["chief", "worker", "ps"])
def test_with_servers_only_the_process_that_failed_starts_again(launcher, tmp_path, died):
    code = f"""
until(lambda: all(map(starts, ("chief0", "worker0", "ps0"))))
if job == {died!r} and not again: sys.exit(0 if job == "ps" else 5)
if job == "ps": wait()
until(lambda: starts({died + "0"!r}) == 2)
"""
    status, _, errors = done(launcher(code, "--workers=2", "--ps=1", "--max_restarts=1"))
    how = "0 before the workers" if died == "ps" else "5"
    expected = [f"{died} 0 ended with status {how}", f"{died} 0 starts again, 1 of 1"]
    assert (status, errors) == (0, [f"[launch] {line}" for line in expected])
    times = {name: (tmp_path / name).read_text() for name in ("chief0", "worker0", "ps0")}
    assert times == {**dict.fromkeys(times, "."), died + "0": ".."}


def test_a_server_that_is_found_ended_with_the_chief_has_not_failed(launcher, tmp_path):
    code = "os.write(1, f'pid {os.getpid()}\\n'.encode())\nuntil(lambda: starts('go'))"
    launched = launcher(code, "--workers=1", "--ps=1")
    running = processes(launched, 2)
    launched.send_signal(signal.SIGSTOP)
    (tmp_path / "go").write_text(".")
    assert all_end(running)
    launched.send_signal(signal.SIGCONT)
    assert done(launched) == (0, [], [])


def test_a_second_signal_at_the_end_of_a_process_is_no_error(launcher):
    ends = "; signal.raise_signal(signal.SIGINT)" * 2
    waits = f"def wait(self, wait=launch.subprocess.Popen.wait):\n  wait(self){ends}"
    command = (
        "-c",
        ALONE.replace(
            "status =", f"exec({waits!r}); launch.subprocess.Popen.wait = wait; status ="
        ),
    )
    assert done(launcher("", "--workers=1", command=command)) == (0, [], [])


def test_a_failure_after_the_last_restart_ends_all(launcher, tmp_path):
    code = "if job == 'chief': sys.exit(4)\nwait()"
    status, _, errors = done(launcher(code, "--workers=1", "--ps=1", "--max_restarts=2"))
    assert status == 4 and (tmp_path / "chief0").read_text() == "..."
    assert errors[-1] == "[launch] chief 0 ended with status 4"


def test_a_worker_that_serves_is_ended_when_the_chief_is_done(launcher):
    serves = """
if job == "chief":
    until(lambda: starts("serve") == 2)
    sys.exit()
if job == "worker":
    os.write(int(os.environ["TF_MULTITIER_LAUNCH_SERVING"]), b".")
    open(sys.argv[1] + "/serve", "a").write(".")
wait()
"""
    status, _, errors = done(launcher(serves, "--workers=3", "--ps=1"))
    assert (status, errors) == (0, [])


def test_a_worker_that_does_not_say_that_it_serves_is_waited_for_with_a_word(launcher):
    launched = launcher("if job != 'chief': wait()", "--workers=2", "--ps=1")
    running = processes(launched, 2)
    line = launched.stderr.readline()
    assert "the chief is done, and worker 0 still run" in line and "serve()" in line
    launched.terminate()
    assert done(launched)[0] == 143 and all_end(running)


def test_ports_are_taken_for_all_others_and_free_for_a_server_that_may_reuse_addresses(launcher):
    code = "print('at', *(a for all in TF_CONFIG['cluster'].values() for a in all))\nwait()"
    launched = launcher(code, "--workers=1")
    host, port = re.search(r"at (\S+):(\d+)", launched.stdout.readline()).groups()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind((host, int(port)))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()
    launched.terminate()
    done(launched)


def test_output_that_nobody_reads_ends_all(launcher):
    launched = launcher("if index == 0: wait()\nwhile True: print('y' * 1000)", "--workers=2")
    running = processes(launched, 1)
    launched.stdout.close()
    assert launched.wait(60) == 128 + signal.SIGPIPE and all_end(running)


@pytest.mark.parametrize("out, status", [("<&- >&- 2>&-", 0), (">/dev/full", 1)])
def test_closed_output_is_none_and_a_full_disk_is_named(tmp_path, out, status):
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('x')\nassert sys.stdin.read() == ''")
    command = shlex.join([sys.executable, "-c", ALONE, "--workers=1", str(program)])
    found = subprocess.run(
        f"{command} {out}", shell=True, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == status
    assert "No space left on device" in found.stderr if status else not found.stderr
    assert "Traceback" not in found.stderr


def test_a_line_is_whole_however_it_is_written_and_a_long_one_comes_in_pieces(launcher):
    code = """
for part in ("a", "b\\n", "c"):
    os.write(1, part.encode())
write(b"z" * 200_000)
"""
    status, output, _ = done(launcher(code, "--workers=1"))
    assert status == 0 and output[0] == "[worker 0] ab"
    pieces = [line.removeprefix("[worker 0] ") for line in output[1:]]
    assert "".join(pieces) == "c" + "z" * 200_000 and 1 < len(pieces) < 6


@pytest.mark.parametrize("waits", [True, False])
def test_no_byte_is_lost_to_a_signal_while_the_reader_is_slow(launcher, waits):
    command = ("-c", f"import os; os.set_blocking(1, {waits}); {ALONE}")
    launched = launcher('write(b"z" * 200_000)', "--workers=1", command=command)
    full, there = fcntl.fcntl(launched.stdout, fcntl.F_GETPIPE_SZ), b"\0" * 4
    while int.from_bytes(there, sys.byteorder) < full:
        there = fcntl.ioctl(launched.stdout, termios.FIONREAD, there)
    for _ in range(20):  # it writes by now, and waits for us
        launched.send_signal(signal.SIGCHLD)
        select.select([], [], [], 0.01)
    status, output, _ = done(launched)
    assert status == 0 and "".join(output).replace("[worker 0] ", "") == "z" * 200_000


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: --workers"),
        (["--workers=0", "x.py"], "--workers: expected an integer of at least 1, found '0'"),
        (["--workers=two", "x.py"], "--workers: expected an integer of at least 1, found 'two'"),
        (["--workers=1", "--ps=-1", "x.py"], "--ps: expected an integer of at least 0, found '-1'"),
        (["--workers=1", "--max_restarts=x", "x.py"], "--max_restarts: expected an integer of"),
        (["--workers=1"], "SCRIPT: expected a file, found none"),
        (["--workers=1", "/no/such.py"], "SCRIPT: expected a file, found '/no/such.py'"),
        (["--workers=1", __file__], "TF_CONFIG: expected none, because the launcher sets it"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(arguments, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1], done.stderr
