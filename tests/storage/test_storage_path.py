"""The storage path of embedding variables: bad paths, sizes and environments, several variables, full disks."""

import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from storage_util import Model
from storage_util import batches
from storage_util import option
from storage_util import started
from storage_util import WorldModel

import tf_multitier

v1 = tf.compat.v1


@pytest.mark.parametrize("kind", ["PMEM", "LEVELDB", "SSDHASH", "DRAM_SSDHASH"])
@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda base: base / "missing" / "below", tf.errors.NotFoundError, "missing"),
        (
            lambda base: (base / "file").write_text("x") and base / "file",
            tf.errors.InvalidArgumentError,
            "directory",
        ),
        (
            lambda base: (base / "file").write_text("x") and base / "file" / "below",
            tf.errors.OpError,
            "file",
        ),
    ],
)
def test_an_impossible_storage_path_is_one_error_naming_variable_and_path(
    world, kind, make, error, message, tmp_path
):
    path = make(tmp_path)
    raised = refused(world, option(kind, path), error, message)
    assert "users" in raised.value.message and str(path) in raised.value.message


def refused(world, storage, error, message=""):
    """The error of a table that cannot be made: of the initializer in a Session, else of the constructor."""
    with pytest.raises(error, match=message) as raised:
        ev = tf_multitier.get_embedding_variable(
            "users",
            4,
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
        )
        assert world.is_graph, "made eagerly"
        with v1.Session() as session:
            try:
                session.run(ev.initializer)
            finally:
                assert not session.run(ev.is_initialized())
    return raised


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_read_only_storage_path_is_one_error_naming_variable_and_path(world):
    # Root may write everywhere except where the kernel forbids it.
    raised = refused(world, option("DRAM_SSDHASH", "/proc/self"), tf.errors.OpError)
    assert "users" in raised.value.message and "/proc/self" in raised.value.message


def test_a_size_below_one_row_names_variable_tier_and_both_sizes(world, tmp_path):
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", str(tmp_path), [8])
    message = "'users'.*dram.*one row.*16 bytes.*found 8"
    refused(world, storage, tf.errors.InvalidArgumentError, message)


def test_a_path_that_does_not_exist_is_made_below_its_parent_and_cleared_afterwards(
    graph, tmp_path
):
    path = tmp_path / "made"
    model = Model(option("DRAM_PMEM_SSDHASH", path), name="scope/a.b")
    with started() as session:
        model.run(session, np.arange(20))
        [name] = os.listdir(path)
        assert name == "scope%2Fa%2Eb"
        first = os.listdir(path / name)
        assert len(first) == 1
        session.run(model.ev.initializer)  # another, empty table
        assert session.run(model.ev.total_count()) == 0
        again = os.listdir(path / name)
        assert len(again) == 1 and again != first
    assert os.listdir(path) == []


def test_variables_and_partitions_share_one_storage_path(world, tmp_path):
    models = [
        WorldModel(world, option(kind, tmp_path), f"ev{i}", parts=parts)
        for i, (kind, parts) in enumerate(
            [("DRAM_SSDHASH", 1), ("DRAM_SSDHASH", 3), ("LEVELDB", 2), ("PMEM", 1)]
        )
    ]
    for ids, grads in batches(4, 4):
        for model in models:
            model.run(ids, grads, counts=False)
    for model in models[1:]:
        assert model.content() == models[0].content()
    assert len(os.listdir(tmp_path)) == 1 + 3 + 2 + 1


@pytest.mark.parametrize(
    "variable, value",
    [
        ("TF_SSDHASH_ASYNC_COMPACTION", "yes"),
        ("TF_MULTI_TIER_EV_EVICTION_THREADS", "0"),
        ("TF_MULTI_TIER_EV_EVICTION_THREADS", "65"),
        ("TF_MULTI_TIER_EV_EVICTION_THREADS", "many"),
    ],
)
def test_a_bad_environment_variable_of_the_engine_is_refused_by_name(
    world, monkeypatch, variable, value, tmp_path
):
    monkeypatch.setenv(variable, value)
    message = f"'users': .*{variable}: expected .*found '{value}'"
    refused(world, option("DRAM_SSDHASH", tmp_path), tf.errors.InvalidArgumentError, message)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB; skips where this process may not mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_PMEM"])
def test_a_full_disk_refuses_updates_whole_and_training_goes_on_once_there_is_room(
    graph, kind, small_disk
):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (10 << 20))
    tiers, dram = (
        Model(option(kind, small_disk / "ev", 64, 64), "tiers", dim=16),
        Model(None, "dram", dim=16),
    )
    grown = 0
    with started() as session:
        with pytest.raises(tf.errors.ResourceExhaustedError, match="'tiers'|tiers"):
            for grown in range(0, 1 << 20, 4096):
                tiers.run(session, np.arange(grown, grown + 4096))
                dram.run(session, np.arange(grown, grown + 4096), step=False)
        assert grown > 0
        probe = np.arange(0, grown + 4096, 37)
        np.testing.assert_array_equal(
            tiers.look_up(session, probe), dram.look_up(session, probe)
        )  # of that step: nothing
        resident = np.flatnonzero(session.run(tiers.tier, {tiers.ids: probe}) == 0)
        for model in (tiers, dram):
            model.run(session, probe[resident[-32:]])
        ballast.unlink()
        for begin in (grown, 0):
            for model in (tiers, dram):
                model.run(session, np.arange(begin, begin + 4096))
        session.run(tiers.drain)
        np.testing.assert_array_equal(tiers.look_up(session, probe), dram.look_up(session, probe))
        assert tiers.stats(session)["sticky_error"] == ""
