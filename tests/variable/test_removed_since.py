"""`removed_since`: which keys left a table since a version, in every storage type, partitioned, spilled, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from variable_util import make

from tf_multitier import EmbeddingVariableOption
from tf_multitier import engine
from tf_multitier import GlobalStepEvict
from tf_multitier import StorageOption

v1 = tf.compat.v1
errors = tf.errors

TYPES = ["DRAM", "PMEM", "SSDHASH", "LEVELDB", "DRAM_SSDHASH", "DRAM_LEVELDB", "DRAM_PMEM_SSDHASH"]
CASES = [(kind, drop) for kind in TYPES for drop in (False, True)]
CASES += [("HBM_DRAM", False), ("HBM_DRAM_SSDHASH", False)]


def table(kind, path, rows=8, **options):
    tiers = len(kind.split("_"))
    return engine.Table(
        4,
        storage_type=kind,
        storage_path=str(path),
        storage_rows=[rows] * (tiers if options.get("drop_coldest") else tiers - 1),
        device="emulated" if kind.startswith("HBM") else None,
        **options,
    )


def train(made, keys, step):
    made.apply(
        "sgd",
        keys,
        np.ones([len(keys), 4], np.float32),
        hyper={"learning_rate": 0.1},
        global_step=step,
    )


@pytest.mark.parametrize("kind, drop_coldest", CASES)
def test_a_copy_that_upserts_and_deletes_stays_equal(kind, drop_coldest, tmp_path):
    """A copy takes the rows of a version and deletes the keys that left since; after each round it is the table."""
    made = table(kind, tmp_path, drop_coldest=drop_coldest, steps_to_live=12)
    copy = {}
    at = 0
    rng = np.random.default_rng(3)
    left = 0
    for step in range(1, 61):
        train(made, rng.integers(0, 60, 6), step)
        if step % 3 == 0:
            made.remove(rng.integers(0, 60, 3))
        if step % 10 == 0:
            made.expire(step)
        if step % 7:
            continue
        made.drain()
        removed = made.removed_since(at)
        assert np.all(np.diff(removed) > 0)
        left += len(removed)
        rows = made.export()
        present = dict(zip(rows.keys.tolist(), rows.versions.tolist()))
        assert not set(removed.tolist()) & set(present)
        for key in removed.tolist():
            copy.pop(key, None)
        copy.update({key: version for key, version in present.items() if version >= at})
        assert copy == present
        at = step
    assert left > 20
    made.close()


def test_a_row_that_was_in_hbm_alone_is_given(tmp_path):
    made = table("HBM_DRAM", tmp_path)
    train(made, [1, 2, 3], 4)
    assert made.remove([2]) == 1
    assert made.removed_since(4).tolist() == [2]


def test_only_keys_of_the_version_and_later_are_given(tmp_path):
    made = table("DRAM", tmp_path)
    for step in (1, 2, 3):
        train(made, [step * 10, step * 10 + 1], step)
        made.remove([step * 10])
    assert made.removed_since(0).tolist() == [10, 20, 30]
    # With those of the version before: a part of a variable may be behind the others.
    assert made.removed_since(2).tolist() == [10, 20, 30]
    assert made.removed_since(3).tolist() == [20, 30]
    assert made.removed_since(4).tolist() == [30]
    train(made, [20], 4)  # it has a row again
    assert made.removed_since(0).tolist() == [10, 30]
    made.remove([999])  # it had none
    assert made.removed_since(0).tolist() == [10, 30]


def test_what_memory_cannot_hold_goes_to_a_file_without_a_name(tmp_path):
    made = table("DRAM_SSDHASH", tmp_path, rows=1000, removed_bytes=1600)
    keys = np.arange(5000)
    for step in range(10):
        train(made, keys[step * 500 : step * 500 + 500], step)
        for first in range(0, 400, 40):
            made.remove(keys[step * 500 + first : step * 500 + first + 40])
    expected = keys[keys % 500 < 400]
    assert np.array_equal(made.removed_since(0), expected)
    assert np.array_equal(made.removed_since(8), expected[expected >= 3500])
    assert not list(tmp_path.rglob("removed_keys*"))
    made.close()


@pytest.mark.parametrize("drops", [False, True])
def test_one_operation_may_remove_more_than_memory_is_for(drops, tmp_path):
    made = table("DRAM_SSDHASH", tmp_path, rows=1000, removed_bytes=1600, drop_coldest=drops)
    train(made, np.arange(20000), 1)
    if not drops:
        made.remove(np.arange(20000))
    removed = made.removed_since(1)
    assert len(removed) == 20000 - len(made)
    assert len(removed) >= 17900
    made.close()


def test_a_part_that_is_behind_the_others_gives_its_keys():
    import tf_multitier

    ev = tf_multitier.get_embedding_variable("parts", 4, partitioner=v1.fixed_size_partitioner(2))
    optimizer = tf_multitier.optimizers.SGD(0.1)

    def step(key):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant([key], tf.int64)))
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])

    step(0)
    for _ in range(5):
        step(1)  # the other part
    newest = max(ev.get_version([0, 1]).numpy())
    ev.remove([0])
    assert ev.removed_since(newest).numpy().tolist() == [0]


def test_without_a_file_the_oldest_are_forgotten(tmp_path):
    made = table("DRAM", tmp_path, removed_bytes=160)
    for step in range(1, 31):
        train(made, [step], step)
        made.remove([step])
    assert made.removed_since(22).tolist() == list(range(21, 31))
    with pytest.raises(
        engine.FailedPreconditionError,
        match="table 'table': keys removed since version 20: expected a version above 20: older removals",
    ):
        made.removed_since(20)


def test_what_a_table_cannot_know_is_refused(tmp_path):
    made = table("DRAM", tmp_path)
    train(made, [1, 2], 5)
    made.clear()
    with pytest.raises(
        engine.FailedPreconditionError, match="version 5: expected a version above 5"
    ):
        made.removed_since(5)
    assert made.removed_since(6).tolist() == []
    train(made, [3], 8)
    other = table("DRAM", tmp_path)
    other.import_rows(made.export())
    with pytest.raises(engine.FailedPreconditionError, match="expected a version above 8"):
        other.removed_since(8)
    off = table("DRAM", tmp_path, removed_bytes=0)
    with pytest.raises(
        engine.FailedPreconditionError, match="expected removed_bytes of at least 16, found less"
    ):
        off.removed_since(0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: engine.Table(4, removed_bytes=-1), "removed_bytes: expected 0 to .*, found -1"),
        (lambda: engine.Table(4).removed_since("now"), "version: expected an integer, found 'now'"),
        (lambda: StorageOption(removed_bytes=-1), "removed_bytes: expected 0 to .*, found -1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_reopened_table_does_not_know_older_removals(tmp_path):
    made = engine.Table(4, storage_type="SSDHASH", storage_path=str(tmp_path), keep=True, name="t")
    train(made, [1, 2, 3], 4)
    made.remove([1])
    assert made.removed_since(4).tolist() == [1]
    path = made.path
    made.close()
    made = engine.Table.open(path)
    with pytest.raises(engine.FailedPreconditionError, match="expected a version above 4"):
        made.removed_since(4)
    train(made, [5], 6)
    made.remove([2])
    assert made.removed_since(5).tolist() == [2]
    made.close()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_variable_tells_which_keys_left_it(world, parts, tmp_path):
    option = EmbeddingVariableOption(
        evict_option=GlobalStepEvict(steps_to_live=2),
        storage_option=StorageOption("DRAM_SSDHASH", str(tmp_path), storage_rows=[4]),
    )
    ev = make("ev", parts=parts, ev_option=option)
    train = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev])
    removed = lambda version=0: sorted(world.run(ev.removed_since, np.int64(version)))
    train(np.arange(10))
    world.run(lambda: ev.remove([2, 100]))
    assert removed() == [2]
    for _ in range(4):
        train(np.arange(10, 20))
    assert removed(100) == [2]
    world.run(lambda: ev.expire(5))
    assert removed() == list(range(10))
    train([4])
    assert removed() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    if world.is_graph:
        world.session.run(v1.global_variables_initializer())
        assert removed() == []


@pytest.mark.parametrize("found", [0, 15])
def test_a_variable_that_notes_no_keys_says_so(world, found):
    storage = StorageOption(removed_bytes=found)
    ev = make("none", ev_option=EmbeddingVariableOption(storage_option=storage))
    message = "'none': removed keys: expected removed_bytes of at least 16, found less"
    with pytest.raises(errors.FailedPreconditionError, match=message):
        world.run(lambda: ev.removed_since(0))
