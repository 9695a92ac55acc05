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

The seconds from the start of a process to its first step are printed, too, from processes that run alone.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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


def command(flags, system, data, output):
    run = (
        ["-m", "tf_multitier.deeprec"]
        if system != "static"
        else [os.path.join(_ROOT, "benchmarks", "stock_tensorflow.py")]
    )
    return [
        sys.executable,
        *run,
        os.path.join(_PROGRAMS, flags.program + ".py"),
        "--data_location",
        data,
        "--output_dir",
        output,
        "--steps",
        "1000000",
        "--no_eval",
        "--batch_size",
        str(flags.batch),
        "--embedding_dim",
        str(flags.dim),
        "--buckets",
        str(flags.buckets),
        "--width",
        str(flags.width),
        "--optimizer",
        flags.optimizer,
        "--input_layer_partitioner",
        "0",
        *SYSTEMS[system],
    ]


class Program:
    """One running program, which prints a line a step."""

    def __init__(self, flags, system, data, output):
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
                command(flags, system, data, output),
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


def starts(flags, data, output):
    """{system: seconds from start to first step, of each round}, one process at a time."""
    found = {system: [] for system in flags.systems}
    for number in range(flags.starts):
        for system in flags.systems if number % 2 else flags.systems[::-1]:
            program = Program(flags, system, data, tempfile.mkdtemp(dir=output))
            found[system].append(program.seconds_to_first_step)
            program.end()
    return found


def steps(flags, data, output):
    """{system: [(seconds, CPU seconds) a step, of each round]}"""
    programs = {
        system: Program(flags, system, data, tempfile.mkdtemp(dir=output))
        for system in flags.systems
    }
    found = {system: [] for system in flags.systems}
    for number in range(-2, flags.rounds):  # the first two are for warming up
        for system in flags.systems if number % 2 else flags.systems[::-1]:
            took = programs[system].seconds_of(flags.steps)
            if number >= 0:
                found[system].append(took)
    for program in programs.values():
        program.end()
    return found


def report(title, found, unit):
    against = "static" if "static" in found else next(iter(found))
    for system, seconds in found.items():
        ratios = [base / own for base, own in zip(found[against], seconds)]
        spread = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(
            f"{title:<12} {system:<9} {statistics.median(seconds) * unit:9.2f}   {statistics.median(ratios):.2f} times {against}"
            f"  (middle half {spread[0]:.2f} to {spread[2]:.2f})"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", choices=sorted(_KINDS), default="dlrm")
    parser.add_argument(
        "--systems",
        type=lambda names: names.split(","),
        default=["static", "ev", "grouped", "defaults"],
    )
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=16, help="of an embedding")
    parser.add_argument("--buckets", type=int, default=10000, help="rows of each static variable")
    parser.add_argument("--ids", type=int, default=10000, help="largest id of a column")
    parser.add_argument("--width", type=int, default=8, help="times the units of the towers")
    parser.add_argument(
        "--optimizer", default="adagrad", help="adagrad; adam is Adam for static variables too"
    )
    parser.add_argument("--rows", type=int, default=50000, help="of the data")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30, help="of a turn")
    parser.add_argument(
        "--starts", type=int, default=0, help="processes of each system to measure the start of"
    )
    parser.add_argument("--json", help="file to write the raw seconds to")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as output:
        data = os.path.join(output, "data")
        subprocess.run(
            [
                sys.executable,
                os.path.join(_PROGRAMS, "data.py"),
                _KINDS[flags.program],
                data,
                "--count",
                str(flags.rows),
                "--ids",
                str(flags.ids),
            ],
            check=True,
        )
        print(vars(flags), f"load average before: {load:.2f}")
        both = steps(flags, data, output) if flags.rounds else {}
        found = {
            "step, ms": {system: [wall for wall, _ in its] for system, its in both.items()},
            "CPU, ms": {system: [cpu for _, cpu in its] for system, its in both.items()},
            "start, s": starts(flags, data, output),
        }
    for title, unit in (("step, ms", 1e3), ("CPU, ms", 1e3), ("start, s", 1)):
        if any(found[title].values()):
            report(title, found[title], unit)
    if flags.json:
        with open(flags.json, "w", encoding="utf-8") as file:
            json.dump(
                {"flags": vars(flags), "load_average_before": load, "seconds": found},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
