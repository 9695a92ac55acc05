"""External storages in programs: what is written at their end, what a SavedModel needs, and storages of shared libraries."""

import os
import subprocess

import numpy as np
import pytest
from paths import ROOT

import external_util
import forks
from tf_multitier import engine
from tf_multitier import external_storage

_PROGRAM = """
import json, os, sys, threading, time
import numpy as np
import tensorflow as tf
import tf_multitier as mt
from tf_multitier import engine, external_storage

class Store(external_storage.Storage):
    made = []
    def __init__(self):
        self.rows = {}
        self.made.append(self)
    def find(self, keys):
        return np.ones(len(keys), bool), np.stack([self.rows[k] for k in keys.tolist()])
    def insert(self, keys, rows):
        self.rows.update(zip(keys.tolist(), rows))
        threading.Event().wait(SLOW)
    def erase(self, keys):
        for k in keys.tolist(): self.rows.pop(k, None)
    def flush(self):
        with open(os.path.join(sys.argv[1], self.table.replace("/", "_")), "w") as f:
            json.dump(sorted(self.rows), f)

SLOW = 0

def variable(name, rows, **more):
    storage = mt.StorageOption("DRAM_EXTERNAL", storage_rows=[rows], external_storage=Store)
    return mt.get_embedding_variable(name, 4, ev_option=mt.EmbeddingVariableOption(storage_option=storage))
"""


def run_program(path, text, code=0):
    text = _PROGRAM + text
    done = forks.run(["-c", text, str(path)])
    assert done.returncode == code, done.stderr
    return done


def test_a_program_that_ends_has_written_all_rows(tmp_path):
    done = run_program(
        tmp_path,
        """
ev = variable("ev", 1 << 16)
table = engine.Table(4, storage_type="DRAM_EXTERNAL", storage_rows=[1 << 16], external_storage=Store, name="table")
opt = mt.optimizers.SGD(0.1)
keys = np.arange(80_000)
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, keys))
opt.apply_gradients(zip(tape.gradient(loss, [ev]), [ev]))
table.apply("sgd", keys, np.ones((len(keys), 4)), hyper={"learning_rate": 0.1})
SLOW = 0.05  # the pool is at work when the program ends
""",
    )
    assert "Error" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    for name in ("ev", "table"):
        assert (tmp_path / name).read_text().count(",") == 80_000 - 1


def test_a_variable_is_deleted_while_the_pool_is_in_its_store(tmp_path):
    run_program(
        tmp_path,
        """
import gc
opt = mt.optimizers.SGD(0.1)
for i in range(3):
    ev = variable(f"ev{i}", 1 << 16)
    keys = np.arange(80_000)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, keys))
    mt.optimizers.SGD(0.1).apply_gradients(zip(tape.gradient(loss, [ev]), [ev]))
    SLOW = 0.02
    del ev, tape, loss
    gc.collect()
    SLOW = 0
""",
    )
    for i in range(3):
        assert (tmp_path / f"ev{i}").read_text().count(",") == 80_000 - 1


_COLLECTING = """
import gc
gc.disable()
garbage, collected = threading.Event(), threading.Event()

class Collecting(Store):
    def insert(self, keys, rows):
        super().insert(keys, rows)
        if threading.current_thread() is not threading.main_thread():
            garbage.wait(60)
            gc.collect()  # the variable or table, on the thread that it waits for
            collected.set()

Store = Collecting
keys = np.arange(65_000)  # above 97 % of 65,536, so that the pool demotes, and no more: an update never waits for the pool
"""


def test_a_variable_is_collected_in_a_call_of_its_own_storage(tmp_path):
    run_program(
        tmp_path,
        _COLLECTING
        + """
ev = variable("ev", 1 << 16)
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, keys))
mt.optimizers.SGD(0.1).apply_gradients(zip(tape.gradient(loss, [ev]), [ev]))
del tape, loss
ev.circle = ev
del ev
garbage.set()
while not os.path.exists(sys.argv[1] + "/ev"):
    threading.Event().wait(0.1)
    gc.collect()
""",
    )
    assert (tmp_path / "ev").read_text().count(",") == 65_000 - 1


def test_a_table_is_collected_in_a_call_of_its_own_storage(tmp_path):
    run_program(
        tmp_path,
        _COLLECTING
        + """
table = engine.Table(4, storage_type="DRAM_EXTERNAL", storage_rows=[1 << 16], external_storage=Store, name="table")
table.apply("sgd", keys, np.ones((len(keys), 4)), hyper={"learning_rate": 0.1})
table.circle = table
del table
SLOW = 0.05  # what closes the table is at work when the program ends
garbage.set()
assert collected.wait(60)
""",
    )
    assert (tmp_path / "table").read_text().count(",") == 65_000 - 1


def test_a_saved_model_names_its_storage_and_needs_it_registered(tmp_path):
    run_program(
        tmp_path,
        """
class M(tf.Module):
    def __init__(self):
        self.ev = variable("ev", 2)
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def call(self, ids):
        return tf.nn.embedding_lookup(self.ev, ids)
m = M()
opt = mt.optimizers.SGD(0.1)
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.nn.embedding_lookup(m.ev, np.arange(10)))
opt.apply_gradients(zip(tape.gradient(loss, [m.ev]), [m.ev]))
np.save(sys.argv[1] + "/rows.npy", m.call(tf.range(10, dtype=tf.int64)))
tf.saved_model.save(m, sys.argv[1] + "/model")
""",
    )
    load = """
m = tf.saved_model.load(sys.argv[1] + "/model")
np.testing.assert_array_equal(m.call(tf.range(10, dtype=tf.int64)), np.load(sys.argv[1] + "/rows.npy"))
"""
    run_program(tmp_path, "external_storage.register(Store)" + load)
    done = run_program(tmp_path, load, code=1)
    assert (
        "external_storage: expected a storage that this process has registered, found '__main__.Store'"
        in done.stderr
    )


_LIBRARY = """
#include <stdlib.h>
#include <string.h>
#include "external_storage.h"
/* Rows of keys 0 to 99. */
typedef struct { unsigned char has[100]; unsigned char rows[100][64]; } Store;
static void* open_(void* c, const char* t, char* e) { return calloc(1, sizeof(Store)); }
static int find(void* s, const int64_t* k, uint64_t n, const multitier_row_layout* l, uint8_t* f, uint8_t* r, char* e) {
  for (uint64_t i = 0; i < n; ++i) {
    f[i] = ((Store*)s)->has[k[i]];
    memcpy(r + i * l->row_bytes, ((Store*)s)->rows[k[i]], l->row_bytes);
  }
  return 0;
}
static int insert(void* s, const int64_t* k, uint64_t n, const multitier_row_layout* l, const uint8_t* r, char* e) {
  for (uint64_t i = 0; i < n; ++i) {
    if (k[i] < 0 || k[i] > 99) { strcpy(e, "keys are 0 to 99"); return 1; }
    ((Store*)s)->has[k[i]] = 1;
    memcpy(((Store*)s)->rows[k[i]], r + i * l->row_bytes, l->row_bytes);
  }
  return 0;
}
static int erase(void* s, const int64_t* k, uint64_t n, char* e) {
  for (uint64_t i = 0; i < n; ++i) ((Store*)s)->has[k[i]] = 0;
  return 0;
}
static void close_(void* s) { free(s); }
static multitier_storage storage = {MULTITIER_STORAGE_VERSION, 0, open_, find, insert, erase, 0, 0, close_, 0};
const multitier_storage* multitier_storage_get(void) { return &storage; }
"""


def test_a_shared_library_is_a_storage(tmp_path):
    source, library = tmp_path / "store.c", str(tmp_path / "store.so")
    source.write_text(_LIBRARY)
    include = os.path.join(ROOT, "cc/tier/external")
    subprocess.run(["cc", "-shared", "-fPIC", "-I", include, "-o", library, source], check=True)
    name = external_storage.load(library, "array")
    tables = [external_util.make_table(name), engine.Table(4, "uniform", -1, 1, seed=3)]
    for table in tables:
        for keys in (range(20), range(10, 30), [1, 2]):
            external_util.train(table, list(keys), "adagrad")
    np.testing.assert_array_equal(*(table.lookup(range(40)) for table in tables))
    with pytest.raises(engine.EngineError, match="array.insert: keys are 0 to 99"):
        external_util.train(tables[0], range(100, 110))
        tables[0].drain()
    tables[0].remove(range(100, 110))
    tables[0].close()
