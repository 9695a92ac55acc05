"""A restore of several tables and dense variables happens wholly or not at all: Savers, tf.train.Checkpoint."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from worlds import needs_eager
from worlds import same_bits

v1 = tf.compat.v1


def flip(path, at=0.5):
    """Changes one bit of a file."""
    with open(path, "r+b") as file:
        data = file.read()
        place = int(len(data) * at)
        file.seek(place)
        file.write(bytes([data[place] ^ 4]))


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


FILES = {"flip": flip, "cut": cut, "remove": os.remove}


def part_file(prefix, name):
    """The file with the rows of a variable in a checkpoint."""
    return checkpoint.load(prefix).tables[name].parts[0].path


# ---- v1 Savers


def of_v1(session, build):
    """{name: value} of what `build` made."""
    values = [v.export() if isinstance(v, TABLES) else v.read_value() for v in build]
    return session.run(values)


TABLES = (tf_multitier.EmbeddingVariable, tf_multitier.PartitionedEmbeddingVariable)


def build_v1():
    tables = [
        tf_multitier.get_embedding_variable(
            name, 4, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None
        )
        for name, parts in (("a", 1), ("b", 2), ("c", 1))
    ]
    dense = v1.get_variable("dense", [3], use_resource=True)
    loss = sum(tf.reduce_sum(tf.nn.embedding_lookup(t, [1, 2, 3]) ** 2) for t in tables)
    step = v1.train.AdagradOptimizer(0.5).minimize(loss + tf.reduce_sum(dense**2))
    return [*tables, dense], step


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("damage", FILES)
@pytest.mark.parametrize("sequentially", [False, True])
def test_a_saver_that_fails_changes_no_variable(tmp_path, damage, is_fresh, sequentially):
    with tf.Graph().as_default(), v1.Session() as session:
        variables, step = build_v1()
        saver = v1.train.Saver(restore_sequentially=sequentially)
        session.run(v1.global_variables_initializer())
        session.run(step)
        prefix = saver.save(session, str(tmp_path / "ck"))
        if is_fresh:
            session.run(v1.global_variables_initializer())
        else:
            session.run(step)
        before = of_v1(session, variables)
        damaged = part_file(prefix, "c")
        shutil.copy(damaged, tmp_path / "whole")
        FILES[damage](damaged)
        for _ in range(2):
            with pytest.raises(tf.errors.OpError, match=os.path.basename(damaged)):
                saver.restore(session, prefix)
            same_bits(of_v1(session, variables), before)
        shutil.copy(tmp_path / "whole", damaged)
        flip(f"{prefix}.data-00000-of-00001", 0.02)  # the dense variable, which comes first
        with pytest.raises(tf.errors.DataLossError):
            saver.restore(session, prefix)
        same_bits(of_v1(session, variables), before)


# ---- tf.train.Checkpoint


def module(seed=0, width=3):
    made = tf.Module()
    made.dense = tf.Variable(np.full(width, seed, np.float32), name="dense")
    made.a, made.b, made.c = (
        tf_multitier.get_embedding_variable(
            name, 4, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None
        )
        for name, parts in (("a", 1), ("b", 2), ("c", 1))
    )
    made.later = tf.Variable([float(seed)], name="later")
    return made


def fill(made, seed):
    for table in (made.a, made.b, made.c):
        table.upsert([1, 2, 3], np.full([3, 4], seed, np.float32))
    return made


def content(made):
    dense = [made.dense.numpy(), made.later.numpy()]
    return [*dense, *(table.export() for table in (made.a, made.b, made.c))]


def written(path):
    """A checkpoint without objects."""
    with checkpoint.Writer(path) as writer:
        for name, parts in (("a", 1), ("b", 3), ("c", 1)):
            rows = tf_multitier.engine.Rows(
                [("value", 4, 0.0)], *(np.arange(3),) * 3, np.ones([3, 4], np.float32)
            )
            writer.add_table(name, rows, parts)
        writer.add_tensor("dense", np.ones(3, np.float32))
        writer.add_tensor("later", np.ones(1, np.float32))
    return path


CHECKPOINTS = {
    "objects": lambda folder: tf.train.Checkpoint(fill(module(1), 1.0)).write(folder / "ck"),
    "names": lambda folder: written(str(folder / "ck")),
}


@needs_eager
@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("damage", FILES)
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_that_fails_changes_no_variable(tmp_path, kind, damage, is_fresh):
    prefix = CHECKPOINTS[kind](tmp_path)
    made = module(7) if is_fresh else fill(module(7), 7.0)
    before = content(made)
    damaged = part_file(prefix, "c")
    FILES[damage](damaged)
    with pytest.raises(tf.errors.OpError, match=os.path.basename(damaged)):
        tf.train.Checkpoint(made).restore(prefix)
    same_bits(content(made), before)


@needs_eager
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_dense_variable_that_does_not_fit_leaves_the_others(tmp_path, kind):
    prefix = CHECKPOINTS[kind](tmp_path)
    made = fill(module(7, width=5), 7.0)
    before = content(made)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.train.Checkpoint(made).restore(prefix)
    same_bits(content(made), before)
