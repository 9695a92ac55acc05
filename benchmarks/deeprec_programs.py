r"""Steps per second of DeepRec programs: embedding variables, and the same script with --tf on stock TensorFlow, in turns.

    python benchmarks/deeprec_programs.py --program=dlrm --batch=2048
    python benchmarks/deeprec_programs.py --program=din --batch=512 --systems=ev,static

The programs are those of tests/deeprec/zoo. Each system is a process. In each turn one runs some steps while the others are stopped
by a signal; a round gives a ratio to `static`. Systems:

    static    the script with --tf on stock TensorFlow (stock_tensorflow.py): hash buckets and static variables, lines of CSV
    ev        the script by the runner with --ev True and the input of `static`
    grouped   `ev` with --group_embedding localized
    defaults  `grouped` with the script's defaults for input: Parquet and tf.staged
    runner    static variables by the runner, with the input of `static`

CPU time is that of the whole process: on a busy machine its ratio says more than that of the times.

The part `start` is the time from the start of a process to its first step, of processes that run alone.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

import driver

_ROOT = driver.ROOT
_PROGRAMS = os.path.join(_ROOT, "tests", "deeprec", "zoo")
_KINDS = {"dlrm": "criteo", "wide_and_deep": "criteo", "din": "amazon"}

_TEXT = ["--parquet_dataset", "False", "--smartstaged", "False"]
SYSTEMS = {
    "static": ["--tf"],
    "ev": ["--ev", "True", *_TEXT],
    "grouped": ["--ev", "True", "--group_embedding", "localized", *_TEXT],
    "defaults": ["--ev", "True", "--group_embedding", "localized"],
    "runner": _TEXT,
}


FLAGS = flags.FLAGS
flags.DEFINE_enum("program", "dlrm", sorted(_KINDS), "The program.")
flags.DEFINE_list("systems", ["static", "ev", "grouped", "defaults"], "What runs.")
flags.DEFINE_integer("batch", 2048, "Examples of a step.", lower_bound=1)
flags.DEFINE_integer("dim", 16, "Of an embedding.", lower_bound=1)
flags.DEFINE_integer("buckets", 10000, "Rows of each static variable.", lower_bound=1)
flags.DEFINE_integer("ids", 10000, "The largest id of a column.", lower_bound=1)
flags.DEFINE_integer("width", 8, "Times the units of the towers.", lower_bound=1)
flags.DEFINE_string("optimizer", "adagrad", "adagrad; adam is Adam for static variables too.")
flags.DEFINE_integer("rows", 50000, "Of the data.", lower_bound=1)
flags.DEFINE_integer("starts", 3, "Processes of each system of the part `start`.", lower_bound=1)
FLAGS.set_default("rounds", 9)
FLAGS.set_default("steps_per_round", 30)


def command(system, data, output):
    run = (
        ["-m", "tf_multitier.deeprec"]
        if system != "static"
        else [os.path.join(_ROOT, "benchmarks", "stock_tensorflow.py")]
    )
    return [
        sys.executable,
        *run,
        os.path.join(_PROGRAMS, FLAGS.program + ".py"),
        "--data_location",
        data,
        "--output_dir",
        output,
        "--steps",
        "1000000",
        "--no_eval",
        "--batch_size",
        str(FLAGS.batch),
        "--embedding_dim",
        str(FLAGS.dim),
        "--buckets",
        str(FLAGS.buckets),
        "--width",
        str(FLAGS.width),
        "--optimizer",
        FLAGS.optimizer,
        "--input_layer_partitioner",
        "0",
        *SYSTEMS[system],
    ]


class Program:
    """One running program, which prints a line a step."""

    def __init__(self, system, data, output):
        environ = dict(
            os.environ,
            PYTHONPATH=_ROOT,
            PYTHONUNBUFFERED="1",
            TF_CPP_MIN_LOG_LEVEL="3",
        )
        self._system, self._log = system, os.path.join(output, system + ".log")
        start = time.monotonic()
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command(system, data, output),
                env=environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._wait(1)
        self.seconds_to_first_step = time.monotonic() - start
        self.stop()

    def _wait(self, steps):
        while steps:
            line = self._process.stdout.readline()
            if not line:
                with open(self._log, encoding="utf-8") as log:
                    raise SystemExit(f"{self._system} ended:\n{log.read()[-3000:]}")
            steps -= line.startswith("step ")

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)

    def seconds_of(self, steps):
        """(seconds, CPU seconds) a step. The first steps of a turn, some of which were printed before it, are not counted."""
        self._process.send_signal(signal.SIGCONT)
        self._wait(5)
        start, cpu = time.monotonic(), self._cpu_seconds()
        self._wait(steps)
        took, cpu = time.monotonic() - start, self._cpu_seconds() - cpu
        self.stop()
        return took / steps, cpu / steps

    def _cpu_seconds(self):
        with open(f"/proc/{self._process.pid}/stat", encoding="utf-8") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def report(part, found):
    base = "static" if "static" in found else FLAGS.systems[0]
    for system in found:
        if system != base:
            driver.ratio(part, found, base, system)


def write_data(path):
    data = os.path.join(path, "data")
    command_line = [sys.executable, os.path.join(_PROGRAMS, "data.py"), _KINDS[FLAGS.program], data]
    command_line += ["--count", str(FLAGS.rows), "--ids", str(FLAGS.ids)]
    subprocess.run(command_line, check=True)
    return data


def measure_step(path):
    data = write_data(path)
    programs = {s: Program(s, data, tempfile.mkdtemp(dir=path)) for s in FLAGS.systems}
    systems = {s: lambda _, steps, its=its: its.seconds_of(steps) for s, its in programs.items()}
    found = driver.turns(systems)
    for program in programs.values():
        program.end()
    for which, part in enumerate(("step", "processor")):
        report(part, {system: [pair[which] for pair in its] for system, its in found.items()})


def measure_start(path):
    data = write_data(path)

    def start(system):
        program = Program(system, data, tempfile.mkdtemp(dir=path))
        program.end()
        return program.seconds_to_first_step

    systems = {system: lambda *_, its=system: start(its) for system in FLAGS.systems}
    report("start", driver.turns(systems, 1, FLAGS.starts))


def main(argv):
    driver.run(argv, {"step": measure_step, "start": measure_start})


if __name__ == "__main__":
    app.run(main)
