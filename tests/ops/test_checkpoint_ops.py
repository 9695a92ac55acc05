"""The ops that save and restore parts of variables: any partitions, checkpoints that do not fit, damaged files."""

import glob
import json
import os
import re
import resource
import signal

import numpy as np
import pytest
import tensorflow as tf
from op_util import DIM
from op_util import UNIFORM
from op_util import adagrad
from op_util import attrs_of
from op_util import handle
from op_util import initialize
from op_util import initialized
from op_util import keys64
from op_util import ops
from op_util import sgd

errors = tf.errors


@pytest.fixture(name="ev")
def fixture_ev(session):
    return initialized(session)


def save(session, prefix, handles, name="ev"):
    names = [f"{name}/part_{i}-of-{len(handles)}/manifest" for i in range(len(handles))]
    tensors = [ops.multitier_save_part(h, prefix) for h in handles]
    session.run(
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
        )
    )


def restore(h, prefix, name="ev", dim=DIM, **options):
    return ops.multitier_restore(
        h, prefix, variable_name=name, **attrs_of(dim, **(UNIFORM | options))
    )


def everything(session, handles):
    slices = session.run([ops.multitier_export_rows(h) for h in handles])
    keys = np.concatenate([s.keys for s in slices])
    order = np.argsort(keys)
    counted = np.concatenate([s.counted for s in slices])
    return [
        np.concatenate([getattr(s, what) for s in slices])[order]
        for what in ("keys", "rows", "frequencies", "versions")
    ] + [counted[np.argsort(counted[:, 0])]]


@pytest.mark.parametrize("before, after", [(1, 1), (3, 3), (1, 4), (4, 1), (2, 3)])
def test_restore_gives_everything_back_whatever_the_partitions(session, tmp_path, before, after):
    prefix = os.path.join(tmp_path, "model")
    options = dict(filter=dict(kind="counter", filter_freq=2))
    old = [handle(f"old_{i}") for i in range(before)]
    new = [handle(f"new_{i}") for i in range(after)]
    session.run(
        [
            initialize(h, partition_index=i, num_partitions=before, **options)
            for i, h in enumerate(old)
        ]
    )
    random = np.random.default_rng(7)
    for _ in range(3):
        keys = random.integers(-100, 100, 150)
        grads = random.standard_normal((150, DIM)).astype(np.float32)
        positions, parts = session.run(
            ops.multitier_partition_keys(keys64(keys), num_partitions=before)
        )
        session.run([adagrad(h, part, grads[p]) for h, part, p in zip(old, parts, positions)])
    save(session, prefix, old)
    session.run(
        [
            restore(
                h,
                prefix,
                partition_index=i,
                num_partitions=after,
                initializer="constant",
                **options,
            )
            for i, h in enumerate(new)
        ]
    )
    for a, b in zip(everything(session, old), everything(session, new)):
        assert a.size > 0
        np.testing.assert_array_equal(a, b)
    # The initializer is the checkpoint's, and the count of applies goes on.
    np.testing.assert_array_equal(
        session.run(ops.multitier_lookup(new[0], keys64([12345]), [])),
        session.run(ops.multitier_lookup(old[0], keys64([12345]), [])),
    )
    manifest = json.loads(session.run(ops.multitier_export_rows(new[0])).manifest)
    assert manifest["applies"] == 3 and manifest["initializer"]["kind"] == "uniform"


def test_restore_keeps_matrix_bloom_counts_and_live_slots(session, tmp_path):
    prefix = os.path.join(tmp_path, "model")
    matrix = np.arange(2 * DIM, dtype=np.float32).reshape(2, DIM)
    options = dict(
        initializer=dict(kind="matrix", matrix_rows=2),
        filter=dict(kind="bloom", filter_freq=3, max_element_size=1000),
    )
    old, new = handle("old"), handle("new")
    session.run(
        [initialize(old, matrix=matrix, **options), initialize(new, matrix=-matrix, **options)]
    )
    session.run(
        ops.multitier_add_slots(new, slot_names=["m"], slot_dims=[1], slot_initial_values=[0.5])
    )
    session.run(sgd(old, [4, 4], np.ones((2, DIM))))
    assert session.run(ops.multitier_count(old)) == 0
    save(session, prefix, [old])
    session.run(restore(new, prefix, **options))
    session.run(sgd(new, [4], np.zeros((1, DIM))))  # the third occurrence
    saved = session.run(ops.multitier_export_rows(new))
    assert saved.keys.tolist() == [4]
    np.testing.assert_array_equal(saved.rows, [matrix[0].tolist() + [0.5]])
    np.testing.assert_array_equal(saved.initial_matrix, matrix)


def test_a_checkpoint_that_does_not_fit_leaves_the_variable_as_it_was(session, tmp_path, ev):
    prefix = os.path.join(tmp_path, "model")
    session.run(sgd(ev, [1], np.ones((1, DIM))))
    wide = handle("wide", dim=5)
    session.run(initialize(wide, dim=5))
    save(session, prefix, [wide], "wide")
    before = everything(session, [ev])
    with pytest.raises(
        errors.InvalidArgumentError, match="'wide': expected dim 4, found dim 5 in checkpoint "
    ):
        session.run(restore(ev, prefix, "wide"))
    with pytest.raises(errors.NotFoundError, match="does not hold the embedding variable 'other'"):
        session.run(restore(ev, prefix, "other"))
    with pytest.raises(errors.OpError):
        session.run(restore(ev, prefix + "_missing", "wide"))
    for a, b in zip(before, everything(session, [ev])):
        np.testing.assert_array_equal(a, b)


def test_a_damaged_checkpoint_leaves_the_variable_as_it_was(session, tmp_path, ev):
    prefix = os.path.join(tmp_path, "model")
    session.run(sgd(ev, np.arange(100), np.ones((100, DIM))))
    save(session, prefix, [ev])
    [data] = glob.glob(f"{prefix}.data-[a-z]*")
    assert re.fullmatch(r"data-[a-z]{5}-of-[a-z]{5}", data.rpartition(".")[2])
    with open(data, "r+b") as f:
        f.seek(os.path.getsize(data) // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    before = everything(session, [ev])
    with pytest.raises(errors.DataLossError, match=re.escape(data) + ".*offset"):
        session.run(restore(ev, prefix))
    os.truncate(data, os.path.getsize(data) - 10)
    with pytest.raises(errors.DataLossError, match=re.escape(data)):
        session.run(restore(ev, prefix))
    os.remove(data)
    with pytest.raises(errors.NotFoundError, match=re.escape(data)):
        session.run(restore(ev, prefix))
    for a, b in zip(before, everything(session, [ev])):
        np.testing.assert_array_equal(a, b)


def test_a_part_that_cannot_be_written_fails_the_save_and_leaves_no_file(session, tmp_path, ev):
    session.run(sgd(ev, np.arange(100), np.ones((100, DIM))))
    with pytest.raises(errors.NotFoundError):
        session.run(ops.multitier_save_part(ev, os.path.join(tmp_path, "missing", "model")))
    prefix = os.path.join(tmp_path, "model")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(errors.OpError):
            session.run(ops.multitier_save_part(ev, prefix))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path) == []
    assert session.run(ops.multitier_count(ev)) == 100
