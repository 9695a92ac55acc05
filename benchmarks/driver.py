r"""The driver of the programs in this folder: what their parts have in common. NumPy and absl only.

A part makes systems, times them in turns, so that whatever else the machine does meets all of them, and reports: `ratio` of two
systems, of which each round gives one, and `note` for other numbers. `run` runs the parts of --parts, and writes what they report to
--json, with the flags and the load of the machine.
"""

import importlib.metadata
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", None, "What to measure; if not set, all parts.")
flags.DEFINE_integer("rounds", 15, "Rounds; each gives one ratio. Medians count.", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_round", 8, "Steps of a system before the next one's turn.", lower_bound=1
)
flags.DEFINE_bool(
    "processor_time", False, "Times of the process' processors, which other programs change less."
)
flags.DEFINE_string("path", None, "Directory on the disk to measure; if not set, a temporary one.")
flags.DEFINE_string("json", None, "File to write flags, reports and raw seconds to.")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_reports: list = []


# ---- programs


def run(argv, measures):
    """What the main function of a program does.

    Args:
      argv: what absl left of the arguments.
      measures: {part: function of a folder on the disk of --path}.
    """
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    parts = list(measures) if FLAGS.parts is None else FLAGS.parts
    unknown = sorted(set(parts) - set(measures))
    if unknown:
        raise app.UsageError(
            f"--parts: expected some of {', '.join(measures)}, found {', '.join(unknown)}"
        )
    load = load_before()
    for part in parts:
        with tempfile.TemporaryDirectory(dir=FLAGS.path) as path:
            measures[part](path)
    if FLAGS.json:
        about = {"flags": parameters(), "versions": versions(), "load_average_before": load}
        with open(FLAGS.json, "w", encoding="utf-8") as out:
            json.dump({**about, "cores": os.cpu_count(), "reports": _reports}, out, indent=1)


def load_before():
    """Load averages. Warns on stderr if the machine is busy. Call it before the work begins."""
    load = os.getloadavg()
    if load[0] > 0.3:
        print(
            f"the machine is busy (load average {load[0]:.2f}): a system that uses more cores than the other loses more by it",
            file=sys.stderr,
        )
    return load


def parameters():
    """The flags of the program and of the modules of this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    found = {}
    for module, its in FLAGS.flags_by_module_dict().items():
        file = getattr(sys.modules.get(module), "__file__", None) or module
        if os.path.dirname(os.path.abspath(file)) == folder:
            found.update((flag.name, flag.value) for flag in its)
    return found


def versions():
    """Of Python and of what is installed of the systems."""
    found = {"python": sys.version.split()[0]}
    for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


# ---- time


def clock():
    """Seconds, of the clock or of the process' processors."""
    return time.process_time() if FLAGS.processor_time else time.perf_counter()


def timed(call):
    """Seconds of call(), by the clock: it waits for a disk."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def time_steps(step, first, n):
    """Median seconds of step(first) ... step(first + n - 1)."""
    seconds = []
    for i in range(first, first + n):
        begin = clock()
        step(i)
        seconds.append(clock() - begin)
    return statistics.median(seconds)


def each(step):
    """A system of a function of the step's number: the median of its steps."""
    return lambda first, steps: time_steps(step, first, steps)


def whole(call):
    """A system of a function of the number of steps, which runs them all."""

    def seconds_a_step(_, steps):
        begin = clock()
        call(steps)
        return (clock() - begin) / steps

    return seconds_a_step


def turns(systems, steps=None, rounds=None):
    """{system: [seconds a step of each round]} of {system: function of (number of the first step, steps) -> seconds a step}."""
    steps, seconds = steps or FLAGS.steps_per_round, {name: [] for name in systems}
    for number in range(-1, rounds or FLAGS.rounds):  # the first is for warming up
        for name in list(systems) if number % 2 else list(systems)[::-1]:
            took = systems[name]((number + 1) * steps, steps)
            if number >= 0:
                seconds[name].append(took)
    return seconds


def short_turns(systems):
    """Like turns, for systems whose steps differ by little: many short turns, so that a pair of times is from one state of the
    machine.
    """
    return turns(systems, min(3, FLAGS.steps_per_round), 16 * FLAGS.rounds)


# ---- reports


def ratio(part, seconds, over, under, wanted=None):
    """Reports how many times as long `over` takes as `under`: the median of the rounds, with the middle half of them.

    Args:
      part: the name of the report.
      seconds: {system: seconds of each round}.
      over, under: names of two systems.
      wanted: the bound of the ratio, as text.
    """
    low, middle, high = np.percentile(
        np.array(seconds[over]) / np.array(seconds[under]), [25, 50, 75]
    )
    ms = [1e3 * float(np.median(seconds[name])) for name in (over, under)]
    _reports.append(
        dict(part=part, over=over, under=under, ms=ms, ratio=middle, quartiles=[low, high])
        | {"seconds": [list(seconds[name]) for name in (over, under)]}
    )
    print(
        f"{part:<9} {over:<20} {ms[0]:>9.4g} ms   {under:<20} {ms[1]:>9.4g} ms   {middle:6.3g} x  "
        f"({low:.3g} to {high:.3g}{f'; wanted {wanted}' if wanted else ''})",
        flush=True,
    )


def note(part, **numbers):
    """Reports other numbers of a part by name."""
    _reports.append({"part": part, **numbers})
    text = (f"{name} {f'{v:,.4g}' if isinstance(v, float) else v}" for name, v in numbers.items())
    print(f"{part:<9}", ", ".join(text), flush=True)


# ---- files


def cold(directory):
    """Writes all files of a directory to the disk, and drops them from the page cache."""
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def copy(source, target):
    """What `cp` does, and an fsync. Both are files, or folders: then the target has all files of the source and its folders."""
    if os.path.isdir(source):
        os.makedirs(target)
        names = [os.path.join(f, name) for f, _, its in os.walk(source) for name in its]
        for i, name in enumerate(names):
            copy(name, os.path.join(target, str(i)))
        return
    shutil.copyfile(source, target)
    file = os.open(target, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def bytes_of_files(path):
    """Of all files of a folder and its folders."""
    return sum(
        os.path.getsize(os.path.join(f, name)) for f, _, its in os.walk(path) for name in its
    )


# ---- processes


def _work(function, arguments, connection):
    FLAGS(sys.argv)
    function(connection, *arguments)


class Process:
    """A new process, with the same flags, that runs function(connection, *arguments). The connection has send and recv."""

    def __init__(self, function, *arguments):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(function, arguments, theirs))
        self._process.start()
        theirs.close()

    def end(self):
        """Waits until its function has returned: it finds the connection closed."""
        self.connection.close()
        self._process.join()


def _answer(connection, function, *arguments):
    connection.send(function(*arguments))


def in_process(function, *arguments):
    """What the function gives in a new process."""
    process = Process(_answer, function, *arguments)
    try:
        return process.connection.recv()
    finally:
        process.end()


def program(path):
    """A C++ program of this repository, which `configure.py bench` has built: its path from bazel-bin."""
    found = os.path.join(ROOT, "bazel-bin", path)
    if not os.path.exists(found):
        raise app.UsageError(f"{found} does not exist: run `python3 configure.py bench` first")
    return found


def output_of_program(path, *arguments):
    """The JSON that such a program prints."""
    command = [program(path), *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
