"""Embedding variables in tf.train.Checkpoint and CheckpointManager, and checkpoints that v1 and TensorFlow 2 exchange."""

import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from lives import KILLS
from lives import Lives

import tf_multitier
from tf_multitier import checkpoint
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
v1 = tf.compat.v1


def make(name, parts=1, **kwargs):
    return tf_multitier.get_embedding_variable(
        name,
        4,
        initializer=tf.random_uniform_initializer(-1, 1, seed=2),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
        **kwargs,
    )


def model(name="user", parts=3):
    module = tf.Module()
    module.user, module.parts = make(name), make(f"{name}_parts", parts)
    module.optimizer = tf_multitier.optimizers.Adam(0.1)
    return module


def train(module, ids=range(50)):
    variables = [module.user, *module.parts.parts]
    with tf.GradientTape() as tape:
        values = [tf.nn.embedding_lookup(ev, list(ids)) for ev in (module.user, module.parts)]
        loss = tf.reduce_sum(values[0] ** 2) + tf.reduce_sum(values[1] ** 3)
    module.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


def content(module):
    return [module.user.export(), module.parts.export()]


def trained(**kwargs):
    module = model(**kwargs)
    train(module)
    train(module)
    return module


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_a_model_of_other_names_and_partitions_goes_on_with_the_same_bits(tmp_path, parts):
    saved = trained()
    path = tf.train.Checkpoint(model=saved).save(tmp_path / "ck")
    other = model("client", parts)
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    same_bits(content(other), content(saved))
    train(saved)
    train(other)  # with the slots and the optimizer's state
    same_bits(content(other), content(saved))
    assert other.optimizer.iterations == 3


def test_a_variable_that_is_made_after_the_restore_gets_its_rows(tmp_path):
    saved = trained()
    path = tf.train.Checkpoint(model=saved).save(tmp_path / "ck")
    late = tf.Module()
    status = tf.train.Checkpoint(model=late).restore(path)
    late.user = make("late")
    same_bits(late.user.export(), saved.user.export())
    status.expect_partial()


def test_a_manager_removes_every_file_of_old_checkpoints(tmp_path):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=trained()), tmp_path, 1)
    for _ in range(3):
        manager.save()
    names = [name for name in os.listdir(tmp_path) if name != "checkpoint"]
    assert len(names) > 4 and all(name.startswith("ckpt-3.") for name in names)


def test_v1_and_tensorflow_2_read_each_others_checkpoints(tmp_path):
    saved = trained()
    path = tf.train.Checkpoint(model=saved).save(tmp_path / "ck")
    expected = content(saved)
    with tf.Graph().as_default():
        user, parts = make("user"), make("user_parts", 2)
        saver = v1.train.Saver([user, *parts.parts])
        with v1.Session() as session:
            saver.restore(session, path)
            same_bits(session.run([user.export(), parts.export()]), expected)
            again = saver.save(session, str(tmp_path / "v1"))
    other = model()
    other.user.restore_from(again)
    other.parts.restore_from(again)
    same_bits(content(other), expected)


@pytest.mark.parametrize("way", ["read", "restore"])
def test_a_checkpoint_of_a_writer_is_read_by_names(tmp_path, way):
    saved, prefix = trained(), str(tmp_path / "written")
    of = checkpoint.load(tf.train.Checkpoint(model=saved).save(tmp_path / "ck")).tables
    with checkpoint.Writer(prefix) as writer:
        for name in ("user", "user_parts"):
            writer.add_table(name, of[name], 2)
        writer.add_tensor("kernel", np.ones(3, np.float32))
    other = model(parts=1)
    other.kernel, other.absent = tf.Variable(np.zeros(3, np.float32), name="kernel"), make("absent")
    status = getattr(tf.train.Checkpoint(model=other), way)(prefix)
    same_bits(content(other), content(saved))
    assert other.kernel.numpy().tolist() == [1, 1, 1] and other.absent.total_count() == 0
    with pytest.raises(AssertionError, match="not restored"):
        status.assert_existing_objects_matched()
    other.optimizer.iterations.assign(saved.optimizer.iterations)
    for name in ("beta_1_power", "beta_2_power"):
        getattr(other.optimizer, name).assign(getattr(saved.optimizer, name))
    for one in (saved, other):  # with the slots
        train(one)
    same_bits(content(other), content(saved))

    alone = tf.Module()
    alone.user, alone.parts = make("user"), make("user_parts", 3)
    tf.train.Checkpoint(model=alone).read(prefix).assert_consumed()
    late = tf.Module()
    tf.train.Checkpoint(model=late).read(prefix)
    late.user = make("user")
    expected = alone.user.export()
    same_bits(late.user.export(), expected)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = make("user")
        v1.train.Saver([variable]).restore(session, prefix)
        same_bits(session.run(variable.export()), expected)


def test_slots_have_the_name_of_the_variable_that_has_them(tmp_path):
    """Whatever the variable was called that they were saved with: the next optimizer, restore and save know them."""
    path = tf.train.Checkpoint(model=trained()).save(tmp_path / "ck")
    other = model("client")
    other.optimizer.build([other.user, other.parts])  # before the first update
    tf.train.Checkpoint(model=other).restore(path)
    again = tf.train.Checkpoint(model=other).save(tmp_path / "again")
    tables = checkpoint.load(again).tables
    columns = [name for name, _, _ in tables["client"].columns[1:]]
    assert columns == ["client/Adam", "client/Adam_1"]
    assert [name for name, _, _ in tables["client_parts"].columns[1:]] == [
        "client_parts/Adam",
        "client_parts/Adam_1",
    ]


def test_a_restore_that_fails_changes_nothing(tmp_path):
    saved = trained()
    path = tf.train.Checkpoint(user=saved.user).save(tmp_path / "ck")
    for name in os.listdir(tmp_path):
        if "-of-0" not in name and ".data-" in name:
            os.truncate(tmp_path / name, 100)
    other = trained()
    before = content(other)
    with pytest.raises(tf.errors.OpError):
        tf.train.Checkpoint(user=other.user).restore(path)
    with pytest.raises(tf.errors.OpError):
        other.user.restore_from(str(tmp_path / "absent"))
    same_bits(content(other), before)


def test_a_save_is_one_moment_of_all_variables_while_threads_train(tmp_path):
    variables = [make("a"), make("b", 2), make("c")]
    rounds = 50 if os.environ.get("TF_MULTITIER_STRESS") else 5

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            ids = [tf.range(40, dtype=tf.int64)] * 3
            values = tf_multitier.nn.group_embedding_lookup(variables, ids, concat=True)
            loss = tf.reduce_sum(values)
        parts = [part for variable in variables for part in variable.parts]
        gradients = tape.gradient(loss, parts)
        optimizer.apply_gradients(zip(gradients, parts))

    optimizer = tf_multitier.optimizers.SGD(1.0)
    step()
    module = tf.Module()
    module.variables_of_it = variables
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=module), tmp_path, 1)
    done, failed = threading.Event(), []

    def train_on():
        try:
            while not done.is_set():
                step()
        except Exception as error:  # noqa: BLE001  the test fails below
            failed.append(error)

    threads = [threading.Thread(target=train_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(rounds):
            tables = checkpoint.load(manager.save()).tables
            found = {name: tables[name].read() for name in "abc"}
            counts = np.concatenate([rows.frequencies for rows in found.values()])
            assert counts.size == 120 and np.unique(counts).size == 1, np.unique(counts)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed


@pytest.mark.parametrize("parts", [1, 3])
def test_an_asynchronous_checkpoint_is_refused_and_writes_nothing(tmp_path, parts):
    module = tf.Module()
    module.ev, module.dense = make("ev", parts), tf.Variable([1.0])
    options = tf.train.CheckpointOptions(enable_async=True)
    with pytest.raises(ValueError, match="'ev': CheckpointOptions.enable_async: expected False"):
        tf.train.Checkpoint(module).save(tmp_path / "ck", options=options)
    assert os.listdir(tmp_path) == []
    tf.train.Checkpoint(module).save(tmp_path / "ck")


def test_a_checkpoint_in_many_shards_has_the_rows(tmp_path):
    saved, other = trained(), model()
    shards = tf.train.experimental.MaxShardSizePolicy(200)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=shards)
    path = tf.train.Checkpoint(saved).write(tmp_path / "ck", options=options)
    tf.train.Checkpoint(other).read(path).assert_consumed()
    same_bits(content(other), content(saved))


def test_a_part_alone_is_refused(tmp_path):
    with pytest.raises(
        NotImplementedError, match="partition 1 of 3.*give the checkpoint the whole"
    ):
        tf.train.Checkpoint(part=make("parts", 3).parts[1]).save(tmp_path / "ck")


KILLED_ROWS = 5_000
KILLED = """
number = int(given)
saves, dies = 1 + number // 2 % 3, number % 2 == 0
module = t.model()
checkpoint = tf.train.Checkpoint(model=module)
manager = tf.train.CheckpointManager(checkpoint, {folder!r} + "/" + given, 2)
write = object_checkpoint.write_bundle

def write_or_die(prefix, entries):  # the rows are written, the checkpoint is not complete
    if manager.checkpoint.save_counter.numpy() > saves and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    write(prefix, entries)

object_checkpoint.write_bundle = write_or_die
while True:
    t.train(module, range(t.KILLED_ROWS))
    say(manager.save())
"""


def test_a_process_that_is_killed_while_it_saves_leaves_a_checkpoint_that_restores(tmp_path):
    imports = (
        "import signal, tensorflow as tf, test_tf2_checkpoints as t; "
        "from tf_multitier._src.variable import object_checkpoint"
    )
    with Lives(imports, KILLED, folder=str(tmp_path)) as lives:
        for number in range(min(KILLS, 20)):
            folder, saves, dies = str(tmp_path / str(number)), 1 + number // 2 % 3, number % 2 == 0
            with lives.begin(number) as life:
                for _ in range(saves):
                    life.line()
                while dies and not life.is_dead():  # it kills itself, before the last file
                    pass
                begins, deadline = f"ckpt-{saves + 1}.data-", time.monotonic() + 60
                while not dies and not any(n.startswith(begins) for n in os.listdir(folder)):
                    assert time.monotonic() < deadline, "the program saves no more"
            latest = tf.train.latest_checkpoint(folder)
            # The save may have ended before the signal.
            assert latest.endswith(f"-{saves}") or not dies
            restored(latest)


def restored(latest):
    other = model()
    tf.train.Checkpoint(model=other).restore(latest).expect_partial()
    assert other.user.total_count() == other.parts.total_count() == KILLED_ROWS
    assert np.unique(other.user.export()[2]).size == 1  # one version: rows of one moment
