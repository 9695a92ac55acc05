"""Helpers for the attacks: programs whose system calls fail, and a model with which every row is compared.

    said = run(code, arguments..., calls=library)     # `engine`, `np`, `say` and what MODEL defines are there

run_tensorflow runs a program with TensorFlow in the same way: `tf` and `tf_multitier` are there too.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from engine_process import run as run_engine

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
STRESS = os.environ.get("TF_MULTITIER_STRESS") == "1"
SECONDS = float(os.environ.get("TF_MULTITIER_ATTACK_SECONDS", "3600" if STRESS else "5"))
# Seconds after which a program counts as hanging. A busy machine needs several times as long as a quiet one.
HANG = SECONDS + 90

# Every type that has files, alone and below others.
TYPES = (
    "SSDHASH",
    "LEVELDB",
    "PMEM",
    "DRAM_SSDHASH",
    "DRAM_LEVELDB",
    "DRAM_PMEM",
    "DRAM_PMEM_SSDHASH",
    "DRAM_PMEM_LEVELDB",
)

# In the program under attack. A value counts the updates of its key, so that a lost or doubled update shows.
MODEL = textwrap.dedent("""
    import ctypes, errno, faulthandler, time, numpy.random

    # If a program hangs, the failure shows where.
    faulthandler.dump_traceback_later(float(os.environ["ATTACK_TIMEOUT"]), exit=True)
    calls = ctypes.CDLL(None)
    ERRORS = (engine.EngineError, MemoryError)

    def attack(call, nth, count=1, error=errno.EIO, path="", least=0):
        calls.attack(call.encode(), ctypes.c_long(nth), ctypes.c_long(count), error, path.encode(), ctypes.c_size_t(least))

    def calm():
        return calls.calm()

    class Model:
        def __init__(self, table):
            self.table, self.counts, self.errors, self.unsettled = table, {}, [], []
            self.after = lambda: None  # called when the table has answered, before the model works with the answer

        def train(self, keys):
            "Whether the keys, none of them twice, were updated: all of them, or none."
            keys = np.asarray(keys, np.int64)
            try:
                self.table.apply("sgd", keys, np.full((len(keys), self.table.dim), -1.0), hyper={"learning_rate": 1.0})
            except ERRORS as error:
                self.after()
                self.errors.append(str(error))
                return False
            self.after()
            for key in keys.tolist():
                self.counts[key] = self.counts.get(key, 0) + 1
            return True

        def remove(self, keys):
            "A removal that fails may have removed some: settle, once nothing fails, asks the table which."
            try:
                self.table.remove(keys)
                for key in keys:
                    self.counts.pop(key, None)
            except ERRORS as error:
                self.errors.append(str(error))
                self.unsettled += keys

        def settle(self):
            if self.unsettled:
                keys, self.unsettled = np.array(self.unsettled), []
                for key in keys[self.until_it_reads(keys)[:, 0] == 0].tolist():
                    self.counts.pop(key, None)

        def until_it_reads(self, keys, seconds=30):
            begun = time.time()
            while True:
                try:
                    return self.table.lookup(keys)
                except ERRORS:
                    if time.time() > begun + seconds:
                        raise

        def lookup(self, keys):
            "Each value is right, or the lookup fails."
            keys = np.asarray(keys, np.int64)
            try:
                found = self.table.lookup(keys)
            except ERRORS as error:
                self.after()
                self.errors.append(str(error))
                return
            self.after()
            self.compare(keys, found)

        def compare(self, keys, found):
            expected = np.array([self.counts.get(key, 0) for key in keys.tolist()], np.float32)
            wrong = (found != expected[:, None]).any(1)
            assert not wrong.any(), (keys[wrong][:10].tolist(), expected[wrong][:10].tolist(), found[wrong][:10, 0].tolist())

        def check(self):
            "Every row, in every way that reads them."
            keys = np.array(sorted(self.counts) + [-1, 1 << 40], np.int64)
            self.compare(keys, self.table.lookup(keys))
            assert len(self.table) == len(self.counts), (len(self.table), len(self.counts))
            rows = self.table.export()
            assert sorted(rows.keys.tolist()) == sorted(self.counts), "export leaves rows out"
            self.compare(rows.keys, rows.data[:, :self.table.dim])

        def until_it_trains(self, keys, seconds=30):
            begun = time.time()
            while not self.train(keys):
                assert time.time() < begun + seconds, self.errors[-1]

        def until_it_drains(self, seconds=30):
            "What failed before is reported until a retry succeeds."
            begun = time.time()
            while True:
                try:
                    return self.table.drain()
                except ERRORS:
                    if time.time() > begun + seconds:
                        raise

    def make(kind, path, rows=20, dim=8, **options):
        return engine.Table(dim=dim, storage_type=kind, storage_path=path, name="ev",
                            storage_size=[rows * dim * 4] * kind.count("_"), **options)
""")


def run(code, *arguments, calls=None, environment=None):
    """The first message of a program that succeeds."""
    preload = {"LD_PRELOAD": calls} if calls else {}
    preload["ATTACK_TIMEOUT"] = str(HANG)
    said = run_engine(
        MODEL + textwrap.dedent(code), *arguments, environment={**preload, **(environment or {})}
    )
    return skipped(said)


def run_tensorflow(code, *arguments, calls=None, timeout=300):
    """The last message of a program with TensorFlow that succeeds."""
    prelude = TENSORFLOW.format(root=ROOT)
    preload = {"LD_PRELOAD": calls} if calls else {}
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code), json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **preload},
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return skipped(json.loads(done.stdout.splitlines()[-1]))


TENSORFLOW = textwrap.dedent("""
    import ctypes, errno, json, os, sys, time
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", CUDA_VISIBLE_DEVICES="")
    sys.path.insert(0, {root!r})
    import numpy as np
    import tensorflow as tf
    import tf_multitier
    arguments = json.loads(sys.argv[1])
    calls = ctypes.CDLL(None)

    def say(value):
        print(json.dumps(value), flush=True)

    def attack(call, nth, count=1, error=errno.EIO, path="", least=0):
        calls.attack(call.encode(), ctypes.c_long(nth), ctypes.c_long(count), error, path.encode(), ctypes.c_size_t(least))
""")


def skipped(said):
    if isinstance(said, dict) and "skip" in said:
        pytest.skip(said["skip"])
    return said
