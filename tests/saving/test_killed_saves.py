"""Files of saves that were killed: the next save in the folder deletes them, whatever its prefix, and nothing else. And what is on
the disk when a save returns.
"""

import glob
import os
import shutil
import subprocess
import sys

import forks
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT
from paths import environment

import tf_multitier
from tf_multitier import checkpoint

v1 = tf.compat.v1
MARK = "user.tf_multitier.save"
KEYS = np.arange(50)

_CHILD = """
import sys, numpy as np, tensorflow as tf, tf_multitier
v1 = tf.compat.v1
with tf.Graph().as_default() as graph, v1.Session() as session:
    ev = tf_multitier.get_embedding_variable("ev", 4)
    upsert = ev.upsert(np.arange(50), np.ones((50, 4)))
    saver = v1.train.Saver()
    session.run(v1.global_variables_initializer())
    session.run(upsert)
    write = next(op for op in graph.get_operations() if op.type == "MultitierWriteSaveGroup")
    session.run(write, {saver.saver_def.filename_tensor_name: sys.argv[1]})
    print("written", flush=True)
    sys.stdin.read()
"""


def rows_of(prefix):
    return sorted(glob.glob(glob.escape(str(prefix)) + ".data-[a-z]*"))


def saved_by_a_saver(folder, number):
    with tf.Graph().as_default(), v1.Session() as session:
        tf_multitier.get_embedding_variable("ev", 4)
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        return saver.save(session, str(folder / "model"), number, write_meta_graph=False)


def saved_by_a_manager(folder, number):
    ev = tf_multitier.get_embedding_variable("ev", 4)
    made = tf.train.Checkpoint(ev=ev)
    return tf.train.CheckpointManager(made, str(folder), 5).save(number)


def saved_by_a_writer(folder, number):
    prefix = str(folder / f"written-{number}")
    with checkpoint.Writer(prefix) as writer:
        writer.add_tensor("x", np.zeros(3))
    return prefix


SAVES = [saved_by_a_saver, saved_by_a_manager, saved_by_a_writer]


def leave(path, mark=None):
    """A part file, marked as one of a save. mark: in place of its own inode."""
    path.write_bytes(b"MTPART1\n")
    try:
        os.setxattr(path, MARK, str(mark or os.stat(path).st_ino).encode())
    except OSError:
        pytest.skip(f"{path} cannot have extended attributes")


@pytest.mark.parametrize("save", SAVES)
def test_the_next_save_in_the_folder_deletes_what_a_killed_one_left(save, tmp_path):
    whole = save(tmp_path, 1)
    before = set(os.listdir(tmp_path))
    leave(tmp_path / "other-7.data-abcde-of-fghij")
    (tmp_path / "other-7.data-abcde-of-fghik").write_bytes(b"a linked file of it")
    for kept in ("other-7.data-qqqqq-of-fghik", "other-7.data-00000-of-00001", "note.txt"):
        (tmp_path / kept).write_bytes(b"without a mark")
    leave(tmp_path / "copied-3.data-abcde-of-fghij", mark=1)
    save(tmp_path, 2)
    now = set(os.listdir(tmp_path))
    assert not {"other-7.data-abcde-of-fghij", "other-7.data-abcde-of-fghik"} & now
    others = {"other-7.data-qqqqq-of-fghik", "other-7.data-00000-of-00001", "note.txt"}
    assert before | others | {"copied-3.data-abcde-of-fghij"} <= now
    assert os.path.exists(whole + ".index") and checkpoint.load(whole)


def test_a_save_that_runs_keeps_its_files_until_its_process_is_killed(tmp_path):
    leave(tmp_path / "trial.data-abcde-of-fghij")
    prefix = str(tmp_path / "killed-1")
    with forks.start(["-c", _CHILD, prefix], env=dict(os.environ, PYTHONPATH=ROOT)) as child:
        assert child.stdout.readline() == "written\n"
        files = rows_of(prefix)
        assert files
        first = saved_by_a_manager(tmp_path, 1)
        assert rows_of(prefix) == files and not rows_of(tmp_path / "trial")
    assert rows_of(prefix) == files
    second = saved_by_a_manager(tmp_path, 2)
    assert not rows_of(prefix) and rows_of(first) and rows_of(second)


def test_saves_of_several_prefixes_at_once_keep_their_files(tmp_path):
    """Each has its own lock, and gives it up once its index is there."""
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", 4)
        upsert = ev.upsert(KEYS, np.ones((50, 4)))
        saver = v1.train.Saver()
        write = next(
            op
            for op in v1.get_default_graph().get_operations()
            if op.type == "MultitierWriteSaveGroup"
        )
        session.run(v1.global_variables_initializer())
        session.run(upsert)
        unfinished = str(tmp_path / "a")
        session.run(write, {saver.saver_def.filename_tensor_name: unfinished})
        for number in range(3):
            saver.save(session, str(tmp_path / "b"), number, write_meta_graph=False)
    assert rows_of(unfinished)
    for number in range(3):
        assert len(checkpoint.load(str(tmp_path / f"b-{number}")).tables["ev"].read()) == 50


# Prints the files that are synced.
_PRINTS_SYNCED = """
#include <stdio.h>
#include <unistd.h>
int fdatasync(int fd) {
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(name, path, sizeof path);
  if (n > 0) printf("synced %.*s\\n", (int)n, path), fflush(stdout);
  return 0;
}
int fsync(int fd) { return fdatasync(fd); }
"""

_SAVES_BOTH_WAYS = """
import sys, numpy as np, tensorflow as tf, tf_multitier
v1 = tf.compat.v1
made = tf.train.Checkpoint(ev=tf_multitier.get_embedding_variable("ev", 4))
made.ev.upsert(np.arange(50), np.ones((50, 4)))
made.write(sys.argv[1] + "/objects")
with tf.Graph().as_default(), v1.Session() as session:
    upsert = tf_multitier.get_embedding_variable("ev", 4).upsert(np.arange(50), np.ones((50, 4)))
    saver = v1.train.Saver()
    session.run(v1.global_variables_initializer())
    session.run(upsert)
    saver.save(session, sys.argv[1] + "/names", write_meta_graph=False)
"""


def test_rows_are_on_the_disk_when_a_save_returns(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for a library that sees calls")
    source, library = tmp_path / "synced.c", tmp_path / "synced.so"
    source.write_text(_PRINTS_SYNCED)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _SAVES_BOTH_WAYS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(LD_PRELOAD=str(library)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = rows_of(tmp_path / "objects") + rows_of(tmp_path / "names")
    assert len(files) == 2
    assert {f"synced {file}" for file in files} <= set(done.stdout.splitlines())
