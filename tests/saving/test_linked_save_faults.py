"""Linked saves that meet refused links, kills and leftovers; and what else reads their checkpoints."""

import errno
import glob
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from lives import KILLS
from lives import Lives
from paths import environment
from test_linked_saves import DIM
from test_linked_saves import KEYS
from test_linked_saves import Program
from test_linked_saves import linked_files
from test_linked_saves import saved_rows
from test_linked_saves import storage

import tf_multitier
from tf_multitier import checkpoint

v1 = tf.compat.v1

# Refuses each `every`th link, after the trial link of a save.
_REFUSES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
static int error, every, calls;
void refuse(int with, int each) { error = with, every = each, calls = 0; }
int link(const char* from, const char* to) {
  static int (*next)(const char*, const char*);
  if (next == 0) next = (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "link");
  if (error != 0 && calls++ > 0 && calls % every == 0) return errno = error, -1;
  return next(from, to);
}
"""

_SAVES_WITH_REFUSED_LINKS = """
import ctypes, sys
import test_linked_saves as test
path = sys.argv[1]
refuse = ctypes.CDLL(None).refuse
with test.Program(path + "/rows").fill() as program:
    content = program.content()
    for error, every in eval(sys.argv[2]):
        refuse(error, every)
        try:
            prefix = program.save(f"{path}/model-{error}-{every}")
        except test.tf.errors.OpError as failed:
            print(error, every, type(failed).__name__, len(test.glob.glob(f"{path}/model-{error}-{every}*")))
            continue
        refuse(0, 1)
        assert program.linked_bytes() == sum(map(test.os.path.getsize, test.linked_files(prefix)))
        right = test.saved_rows(prefix) == content
        print(error, every, right, len(test.linked_files(prefix)))
"""


def test_rows_are_written_where_links_are_refused_after_the_trial(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for a library of failing calls")
    source, library = tmp_path / "refuses.c", tmp_path / "refuses.so"
    source.write_text(_REFUSES)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    refused = [errno.EMLINK, errno.EPERM, errno.EXDEV]
    cases = [(0, 1)] + [(error, every) for error in refused for every in (1, 2)] + [(errno.EIO, 3)]
    done = subprocess.run(
        [sys.executable, "-c", _SAVES_WITH_REFUSED_LINKS, str(tmp_path), repr(cases)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(LD_PRELOAD=str(library)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {
        tuple(map(int, line.split()[:2])): line.split()[2:] for line in done.stdout.splitlines()
    }
    assert list(found) == cases
    most = int(found[0, 1][1])
    assert most > 2
    for error, every in cases[:-1]:
        right, links = found[error, every]
        assert right == "True", (error, every)
        if error:
            assert int(links) == 0 if every == 1 else 0 < int(links) < most, (error, every)
    failed, left = found[errno.EIO, 3]
    assert failed.endswith("Error") and left == "0", "another error fails the save"


def renewed(path):
    """Gives the inode of a file a new time of change, as a link or unlink of another of its names does."""
    os.link(path, path + ".name")
    os.remove(path + ".name")


def test_linked_files_of_a_killed_save_are_deleted(tmp_path):
    prefix = str(tmp_path / "model")
    with Program(tmp_path / "rows").fill() as program:
        program.save(prefix)
        part, links = checkpoint.load(prefix).tables["ev"].parts[0].files[0], linked_files(prefix)
        # A save that was killed: a part file that no index names, and files that it has linked.
        killed = [prefix + ".data-abcde-of-fghij", prefix + ".data-abcde-of-klmno"]
        shutil.copy(part, killed[0])
        os.link(links[0], killed[1])
        program.run(program.train, KEYS[:100])
        program.save(prefix)
        assert all(map(os.path.exists, killed)), (
            "they are newer than the index was: a save may still run"
        )
        renewed(killed[1])
        program.save(prefix)
        assert not any(map(os.path.exists, killed))
        content = program.content()
    assert saved_rows(prefix) == content


def test_linked_files_of_earlier_saves_of_a_prefix_are_deleted(tmp_path):
    prefix = str(tmp_path / "model")
    with Program(tmp_path / "rows", parts=2).fill() as program:
        saves, linked = [], []
        for _ in range(4):
            for path in linked:
                renewed(path)  # by a save under another prefix, or by compaction
            program.save(prefix)
            parts = checkpoint.load(prefix).tables["ev"].parts
            saves.append([path for part in parts for path in part.files])
            assert linked_files(prefix)
            linked += linked_files(prefix)
            # Those of the index and of the save before.
            left = set(glob.glob(prefix + ".data-?????-of-[a-z]????"))
            assert left == set().union(*saves[-2:])
            linked = [path for path in linked if os.path.exists(path)]
            program.run(program.train, KEYS[:2000])


def test_a_linked_checkpoint_is_frozen_and_served_in_place(tmp_path):
    with Program(tmp_path / "rows", keep=True).fill() as program:
        prefix = program.save(tmp_path / "model")
        rows = program.run(program.rows, KEYS)
        with program.graph.as_default():
            program.session.run(program.ev.freeze(str(tmp_path / "frozen"), "float32"))
    assert linked_files(prefix)
    with tf.Graph().as_default(), tf_multitier.serving.read_only(in_place=True):
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=storage(tmp_path / "rows", keep=True)
        )
        ev = tf_multitier.get_embedding_variable(
            "ev",
            DIM,
            initializer=v1.random_uniform_initializer(-1, 1, seed=3),
            ev_option=option,
        )
        keys = v1.placeholder(tf.int64, [None])
        lookup = tf.nn.embedding_lookup(ev, keys)
        saver = v1.train.Saver()
        with v1.Session() as session:
            saver.restore(session, prefix)
            np.testing.assert_array_equal(session.run(lookup, {keys: KEYS}), rows)
    # After the kept rows are gone.
    shutil.rmtree(tmp_path / "rows")
    with tf.Graph().as_default(), tf_multitier.serving.read_only():
        ev = tf_multitier.get_embedding_variable("ev", DIM)
        keys = v1.placeholder(tf.int64, [None])
        lookup = tf.nn.embedding_lookup(ev, keys)
        saver = v1.train.Saver()
        with v1.Session() as session:
            saver.restore(session, prefix)
            np.testing.assert_array_equal(session.run(lookup, {keys: KEYS}), rows)
            session.run(ev.freeze(str(tmp_path / "frozen-later"), "float32"))
    for name in ("frozen", "frozen-later"):
        found = checkpoint.load(tmp_path / name).tables["ev"].read()
        assert [found.columns[0][0]] == [column[0] for column in found.columns]
        order = np.argsort(found.keys)
        np.testing.assert_array_equal(found.keys[order], KEYS)
        np.testing.assert_array_equal(found.data[order], rows)


_RESTORES = """
with test.Program({folder!r} + "/other") as program:
    say("ready")
    while True:
        program.restore({folder!r} + "/model")
        say("restored")
"""


def test_a_kill_during_a_restore_leaves_the_checkpoint_and_its_table(tmp_path):
    imports = "import test_linked_saves as test"
    with (
        Program(tmp_path / "rows").fill() as program,
        Lives(imports, _RESTORES, folder=str(tmp_path)) as lives,
    ):
        prefix = program.save(tmp_path / "model")
        content = program.content()
        before = {path: os.stat(path).st_mtime_ns for path in glob.glob(prefix + ".*")}
        for seed in range(KILLS):
            random = np.random.default_rng(seed)
            with lives.begin() as life:
                for _ in range(1 + random.integers(2)):
                    life.line()
                life.wait(random.random() * 0.1)  # somewhere in the next restore
            assert {path: os.stat(path).st_mtime_ns for path in glob.glob(prefix + ".*")} == before
        assert saved_rows(prefix) == content
        assert program.content() == content
    with Program(tmp_path / "other") as program:
        program.restore(prefix)
        assert program.content() == content
