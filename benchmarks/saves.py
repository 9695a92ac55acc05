r"""Saves, restores and kept rows: files of a variable, and what they cost the program.

    .venv/bin/python benchmarks/saves.py --rows=4000000 --path=/ssd --parts=save,delta
    .venv/bin/python benchmarks/saves.py --rows=1000000 --parts=training --storage_type=DRAM_SSDHASH --alpha=1.05

Each row has 128 bytes: dim 16 and an Adagrad slot. A tiered table has memory for a tenth of its rows. All files are on the disk of
--path, and each save ends with their sync. Parts:

  save      save and restore of a variable, of TensorFlow's Saver on a dense variable of as many bytes, and `cp` with fsync; files are
            read past the page cache
  delta     a delta of 1 % of the rows, trained at random, and a save of all: seconds and bytes
  linked    saves of DRAM_SSDHASH with nine tenths of the rows below, with links and without, and of the rows above alone, in DRAM.
            Before each, a tenth of the rows above and as many below are trained
  training  steps during a save by another thread, and without one: each round trains alone for --seconds, and then while all rows are
            saved. Processor time of a step is that of the process, the save included; --trace prints the long steps of each save
  reopen    opens a kept table of the engine, which another process has made, with a cold page cache
  readers   read-only lookups of two processes at once, from one directory of kept rows and from one each
"""

from concurrent import futures
import functools
import glob
import itertools
import os
import shutil
import statistics
import time

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf

import driver
import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine

v1 = tf.compat.v1
v1.logging.set_verbosity(v1.logging.ERROR)
FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 2_000_000, "Rows of the variable.", lower_bound=1000)
flags.DEFINE_string("storage_type", "DRAM", "Of the variable.")
flags.DEFINE_integer("batch", 8192, "Ids of a step, and of a lookup of `readers`.", lower_bound=1)
flags.DEFINE_float("alpha", 0.0, "Of Zipf ids of `training`, above 1; 0: uniform.")
flags.DEFINE_float("seconds", 2.0, "Of a measurement of `training` and `readers`.")
flags.DEFINE_bool("trace", False, "Print when each long step during a save began.")
FLAGS.set_default("rounds", 5)

DIM = 16
BYTES = 2 * 4 * DIM  # of a row
BLOCK = 1 << 20


class Rows(checkpoint.RowSource):
    """`count` rows with the keys 0, 1, 2, ..."""

    def __init__(self, count):
        self.columns = [("value", DIM, 0.0), ("ev/Adagrad", DIM, 0.1)]
        self.num_rows = count

    def blocks(self):
        for begin in range(0, self.num_rows, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, self.num_rows), dtype=np.int64)
            data = np.repeat(keys.astype(np.float32)[:, None], 2 * DIM, axis=1)
            ones = np.ones(len(keys), np.int64)
            yield engine.Rows(self.columns, keys, ones, ones, data)


def sizes(storage_type):
    """For a tenth of the rows in the first tier, if there are others."""
    return [FLAGS.rows * BYTES // 10] if "_" in storage_type else None


def variable(storage_type, path, **storage):
    option = tf_multitier.StorageOption(storage_type, path, **storage)
    ev_option = tf_multitier.EmbeddingVariableOption(storage_option=option)
    return tf_multitier.get_embedding_variable("ev", DIM, ev_option=ev_option)


class Program:
    """A session with a variable that has its rows, a train op and a Saver."""

    def __init__(self, path, rows, storage_type, saver=v1.train.Saver):
        self.rows, self.source = rows, os.path.join(path, "source", "rows")
        os.makedirs(os.path.dirname(self.source))
        with checkpoint.Writer(self.source) as writer:
            writer.add_table("ev", Rows(rows))
        with tf.Graph().as_default() as self.graph:
            tiers = os.path.join(path, "tiers")
            ev = variable(storage_type, tiers, storage_size=sizes(storage_type))
            self.ids = v1.placeholder(tf.int64, [None])
            loss = tf.nn.l2_loss(tf.nn.embedding_lookup(ev, self.ids) - 1.0)
            self.train = v1.train.AdagradOptimizer(0.1).minimize(loss)
            self.drain, self.stats = ev.drain(), ev.stats()
            self.saver = saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())
            self.session.run(ev.restore_from(self.source))

    def step(self, ids):
        self.session.run(self.train, {self.ids: ids})

    def train_some(self, rng, count):
        """Trains this number of rows, at random."""
        chosen = rng.choice(self.rows, count, replace=False)
        for ids in np.array_split(chosen, -(-count // FLAGS.batch)):
            self.step(ids)
        self.session.run(self.drain)

    def save(self, prefix, save=None):
        """Saves all rows, or what `save` saves, to new files. Their prefix."""
        with self.graph.as_default():  # a thread has a default graph of its own
            return (save or self.saver.save)(self.session, prefix)


def bytes_of(prefix):
    """Of the files of one checkpoint."""
    return sum(map(os.path.getsize, glob.glob(glob.escape(prefix) + ".*")))


# ---- save


def saved_and_restored(session, saver, directory):
    """Seconds of saves and of restores."""
    seconds, prefix = {"save": [], "restore": []}, os.path.join(directory, "model")

    def save():
        saver.save(session, prefix, write_meta_graph=False)
        driver.cold(directory)

    for _ in range(FLAGS.rounds):
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        seconds["save"].append(driver.timed(save))
        seconds["restore"].append(driver.timed(lambda: saver.restore(session, prefix)))
    return seconds


def measure_save(path):
    program = Program(path, FLAGS.rows, FLAGS.storage_type)
    folder = os.path.dirname(program.source)
    largest = max(glob.glob(program.source + ".*"), key=os.path.getsize)
    size, copied, copies = os.path.getsize(largest), os.path.join(path, "copy"), []
    for _ in range(FLAGS.rounds):
        driver.cold(folder)
        copies.append(driver.timed(lambda: driver.copy(largest, copied)))
        os.remove(copied)
    with program.graph.as_default():
        ours = saved_and_restored(program.session, program.saver, os.path.join(path, "ev"))
    program.session.close()
    with tf.Graph().as_default(), v1.Session() as session:
        zeros = v1.zeros_initializer()
        dense = v1.get_variable("dense", [FLAGS.rows, 2 * DIM], initializer=zeros)
        session.run(dense.initializer)
        stock = saved_and_restored(session, v1.train.Saver(), os.path.join(path, "dense"))
    rates = {"cp": copies, **ours, **{f"dense_{name}": its for name, its in stock.items()}}
    rate = lambda seconds: size / 1e6 / statistics.median(seconds)
    driver.note("MB/s", MB=size / 1e6, **{name: rate(its) for name, its in rates.items()})


# ---- delta


def measure_delta(path):
    make = functools.partial(tf_multitier.train.IncrementalSaver, max_to_keep=2)
    program = Program(path, FLAGS.rows, FLAGS.storage_type, make)
    seconds, sizes_of = {"delta": [], "all": []}, {"delta": [], "all": []}
    rng, numbers = np.random.default_rng(0), itertools.count()

    def timed(name, save):
        prefix = os.path.join(path, f"model-{next(numbers)}")
        begin = time.perf_counter()
        prefix = program.save(prefix, save)
        seconds[name].append(time.perf_counter() - begin)
        sizes_of[name].append(bytes_of(prefix))

    program.save(os.path.join(path, "first"))
    for _ in range(FLAGS.rounds):
        program.train_some(rng, FLAGS.rows // 100)
        timed("delta", program.saver.save_incremental)
        timed("all", program.saver.save)
    driver.ratio("delta", seconds, "delta", "all", "at most 0.03")
    of_all = statistics.median(a / b for a, b in zip(sizes_of["delta"], sizes_of["all"]))
    driver.note("delta", bytes_of_all=of_all)


# ---- linked


def measure_linked(path):
    folders = [os.path.join(path, name) for name in ("above", "all")]
    keeps = functools.partial(v1.train.Saver, max_to_keep=None)  # deleting is not timed
    above = Program(folders[0], FLAGS.rows // 10, "DRAM", keeps)
    both = Program(folders[1], FLAGS.rows, "DRAM_SSDHASH", keeps)
    rng, linked_bytes = np.random.default_rng(1), []

    def save(name):
        program = above if name == "above" else both
        program.train_some(rng, FLAGS.rows // 100)
        os.environ["TF_MULTITIER_LINKED_SAVES"] = "0" if name == "written" else "1"
        prefix = os.path.join(path, name)
        os.sync()
        seconds = driver.timed(lambda: program.save(prefix))
        if name == "linked":
            linked_bytes.append(program.session.run(program.stats)["linked_bytes"])
        for file in glob.glob(prefix + ".*"):
            os.remove(file)
        return seconds

    names = ("above", "linked", "written")
    systems = {name: functools.partial(lambda name, *_: save(name), name) for name in names}
    seconds = driver.turns(systems, 1)
    for name in names[1:]:
        driver.ratio("linked", seconds, name, "above", "at most 1.3" if name == "linked" else None)
    driver.note("linked", linked_MB=statistics.median(linked_bytes) / 1e6)


# ---- training


def ids_of(rng):
    """A batch of ids. Of Zipf ids, the most frequent ones are spread over the table."""
    if FLAGS.alpha == 0:
        return rng.integers(0, FLAGS.rows, FLAGS.batch)
    ranks = np.empty(0, np.int64)
    while len(ranks) < FLAGS.batch:
        drawn = rng.zipf(FLAGS.alpha, FLAGS.batch)
        ranks = np.concatenate([ranks, drawn[drawn <= FLAGS.rows]])
    return ranks[: FLAGS.batch] * 2654435761 % FLAGS.rows


def print_long_steps(alone, during):
    """The steps during a save that took more than three medians: when they began, and their length in medians."""
    median = statistics.median(alone)
    begins = itertools.accumulate(during, initial=0.0)
    its = [f"{1e3 * b:.0f} ms: {s / median:.1f}" for b, s in zip(begins, during) if s > 3 * median]
    print(f"long steps: {', '.join(its) or 'none'}")


def measure_training(path):
    program, rng = Program(path, FLAGS.rows, FLAGS.storage_type), np.random.default_rng(1)
    batches, target = [ids_of(rng) for _ in range(64)], os.path.join(path, "saved")

    def steps(goes_on):
        """Seconds of each step, and processor seconds of one."""
        seconds, used = [], time.process_time()
        while not seconds or goes_on():
            seconds.append(driver.timed(lambda: program.step(batches[len(seconds) % 64])))
        return seconds, (time.process_time() - used) / len(seconds)

    def alone():
        end = time.perf_counter() + FLAGS.seconds
        return steps(lambda: time.perf_counter() < end)

    def save():
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        return driver.timed(lambda: program.save(os.path.join(target, "model")))

    save(), alone()
    found, saves = {"alone": [], "during": []}, []
    for _ in range(FLAGS.rounds):
        found["alone"].append(alone())
        with futures.ThreadPoolExecutor(1) as pool:
            saving = pool.submit(save)
            found["during"].append(steps(lambda saving=saving: not saving.done()))
            saves.append(saving.result())  # raises what the save raised
        if FLAGS.trace:
            print_long_steps(*(its[-1][0] for its in found.values()))
    mean = {name: [float(np.mean(s)) for s, _ in its] for name, its in found.items()}
    driver.ratio("step", mean, "alone", "during", "at least 0.8")
    processor = {name: [used for _, used in its] for name, its in found.items()}
    driver.ratio("processor", processor, "during", "alone")
    every = {name: np.concatenate([s for s, _ in its]) for name, its in found.items()}
    longest = {name: float(s.max() / np.median(every["alone"])) for name, s in every.items()}
    driver.note("longest", **longest, steps_during=every["during"].size)
    driver.note("saves", seconds=statistics.median(saves))


# ---- reopen


def make_kept(path, storage_type):
    """Makes a table that keeps its rows. The directory."""
    with engine.Table(
        dim=DIM,
        slots=[("slot", DIM, 0.1)],
        storage_type=storage_type,
        storage_path=path,
        storage_size=sizes(storage_type) or (),
        keep=True,
    ) as table:
        for begin in range(0, FLAGS.rows, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, FLAGS.rows), dtype=np.int64)
            values = np.repeat(keys.astype(np.float32)[:, None], DIM, axis=1)
            table.upsert(keys, {"value": values, "slot": values})
        table.flush()
        return table.path


def measure_reopen(path):
    storage_type = "SSDHASH" if FLAGS.storage_type == "DRAM" else FLAGS.storage_type
    kept, seconds = driver.in_process(make_kept, path, storage_type), []
    for _ in range(FLAGS.rounds):
        driver.cold(kept)
        begin = time.perf_counter()
        table = engine.Table.open(kept)
        seconds.append(time.perf_counter() - begin)
        rows = len(table)
        table.close()
        if rows != FLAGS.rows:
            raise RuntimeError(f"expected {FLAGS.rows} rows, found {rows}")
    driver.note("reopen", rows_per_s=FLAGS.rows / statistics.median(seconds))


# ---- readers


def make_rows(path):
    """Writes kept rows with the keys 0 to --rows - 1."""
    with tf.Graph().as_default(), v1.Session() as session:
        ev, keys = variable("SSDHASH", path, keep=True), v1.placeholder(tf.int64, [None])
        write = ev.upsert(keys, tf.repeat(tf.cast(keys, tf.float32)[:, None], DIM, axis=1))
        session.run(v1.global_variables_initializer())
        for begin in range(0, FLAGS.rows, BLOCK):
            session.run(write, {keys: np.arange(begin, min(begin + BLOCK, FLAGS.rows))})


def lookups(path):
    """A function that looks up a batch of keys of a directory, which it opens in place."""
    with tf.Graph().as_default() as graph, tf_multitier.serving.read_only(in_place=True):
        ev, keys = variable("SSDHASH", path, keep=True), v1.placeholder(tf.int64, [None])
        rows, init = tf.nn.embedding_lookup(ev, keys), v1.global_variables_initializer()
    session = v1.Session(graph=graph)
    session.run(init)
    return session.make_callable(rows, feed_list=[keys])


def read(connection, shared, own):
    """A process: opens both directories, then measures the one that each message names."""
    tables = {"one directory": lookups(shared), "one each": lookups(own)}
    random = np.random.default_rng(os.getpid())
    connection.send("ready")
    while True:
        try:
            table = tables[connection.recv()]
        except EOFError:
            return
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < FLAGS.seconds:
            keys = random.integers(0, FLAGS.rows, FLAGS.batch)
            found = table(keys)
            done += FLAGS.batch
        assert (found[:, 0] == keys.astype(np.float32)).all()
        connection.send((time.perf_counter() - begin) / done)


def measure_readers(path):
    one, two = os.path.join(path, "one"), os.path.join(path, "two")
    driver.in_process(make_rows, one)
    shutil.copytree(one, two)
    processes = [driver.Process(read, one, own) for own in (one, two)]
    for process in processes:
        assert process.connection.recv() == "ready"

    def seconds_a_row(which, *_):
        for process in processes:
            process.connection.send(which)
        return 1 / sum(1 / process.connection.recv() for process in processes)

    systems = {n: functools.partial(seconds_a_row, n) for n in ("one directory", "one each")}
    seconds = driver.turns(systems, 1)
    for process in processes:
        process.end()
    driver.ratio("readers", seconds, "one each", "one directory")


def main(argv):
    parts = ("save", "delta", "linked", "training", "reopen", "readers")
    driver.run(argv, {part: globals()[f"measure_{part}"] for part in parts})


if __name__ == "__main__":
    app.run(main)
