"""TensorFlow's own Saver: nothing trained is lost, whatever the number of partitions."""

import glob
import json
import os

import numpy as np
import pytest
from pairs import pairwise
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
DIM = 5


def build(parts, optimizer=None, name="scope/ev", option=None, initializer=None):
    """Variable, ids placeholder, train op and Saver in the default graph."""
    step = v1.train.get_or_create_global_step()
    head, _, tail = name.rpartition("/")
    with v1.variable_scope(head):
        ev = tf_multitier.get_embedding_variable(
            tail,
            DIM,
            initializer=initializer or v1.random_normal_initializer(seed=4),
            ev_option=option,
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
        )
    ids = v1.placeholder(tf.int64, [None])
    optimizer = optimizer or v1.train.AdamOptimizer(0.01)
    factors = tf.cast(tf.math.floormod(ids, 5) + 1, tf.float32)[:, None]
    train = optimizer.minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(ev, ids) * factors), global_step=step
    )
    return ev, ids, train, v1.train.Saver(max_to_keep=2)


def batches(seed, n):
    rng = np.random.default_rng(seed)
    return [rng.integers(-40, 40, 30) for _ in range(n)]


def content(session, ev):
    """{key: (row with slots, frequency, version)} and the counted keys, over all parts."""
    rows, counted = {}, set()
    for part in ev.parts:
        saved = session.run(part.export_rows())
        columns = [c["name"] for c in json.loads(saved.manifest)["columns"]]
        for i, key in enumerate(saved.keys.tolist()):
            rows[key] = (columns, saved.rows[i].tobytes(), saved.frequencies[i], saved.versions[i])
        counted |= {tuple(entry) for entry in saved.counted.tolist()}
    return rows, counted


@pytest.mark.parametrize("before, after", [(1, 1), (1, 3), (3, 1), (4, 2), (2, 5)])
def test_restoring_into_other_partitions_keeps_everything_and_training_goes_on_alike(
    tmp_path, before, after
):
    prefix = str(tmp_path / "model")
    with tf.Graph().as_default():
        ev, ids, train, saver = build(before)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for batch in batches(1, 6):
                session.run(train, {ids: batch})
            path = saver.save(session, prefix, global_step=6)
            saved = content(session, ev)
            for batch in batches(2, 4):
                session.run(train, {ids: batch})
            trained = content(session, ev)
    assert len(saved[0]) > 40
    with tf.Graph().as_default():
        ev, ids, train, saver = build(after)
        with v1.Session() as session:
            saver.restore(session, path)
            assert content(session, ev) == saved
            for batch in batches(2, 4):
                session.run(train, {ids: batch})
            assert content(session, ev) == trained


def test_counted_keys_and_the_initializer_of_the_checkpoint_come_back(tmp_path):
    option = tf_multitier.EmbeddingVariableOption(filter_option=tf_multitier.CounterFilter(4))
    matrix = tf_multitier.EmbeddingVariableOption(
        filter_option=tf_multitier.CounterFilter(4),
        init_option=tf_multitier.InitializerOption(default_value_dim=7),
    )
    with tf.Graph().as_default():
        ev, ids, train, saver = build(
            2, option=matrix, initializer=v1.variance_scaling_initializer()
        )
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 1, 1, 2, 2, 2, 2]})
            path = saver.save(session, str(tmp_path / "model"))
            saved = content(session, ev)
            session.run(train, {ids: [1, 3, 3, 3, 3]})
            grown = session.run(tf.nn.embedding_lookup(ev, [1, 3]))
    assert [k for k, *_ in saved[1]] == [1] and list(saved[0]) == [2]
    with tf.Graph().as_default():
        ev, ids, train, saver = build(1, option=option)
        with v1.Session() as session:
            saver.restore(session, path)
            assert content(session, ev) == saved
            session.run(train, {ids: [1, 3, 3, 3, 3]})
            np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, [1, 3])), grown)


def test_max_to_keep_deletes_every_file_of_an_old_checkpoint(tmp_path):
    with tf.Graph().as_default():
        _, ids, train, saver = build(2)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step, batch in enumerate(batches(3, 4)):
                session.run(train, {ids: batch})
                saver.save(session, str(tmp_path / "model"), global_step=step)
    names = {os.path.basename(p) for p in glob.glob(str(tmp_path / "model*"))}
    assert all(n.startswith(("model-2.", "model-3.")) for n in names) and names


def test_the_checkpoint_lists_the_variable_and_sharded_savers_work(tmp_path):
    with tf.Graph().as_default():
        ev, ids, train, _ = build(2)
        saver = v1.train.Saver(sharded=True)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 2, 3]})
            path = saver.save(session, str(tmp_path / "model"))
            before = content(session, ev)
            session.run(train, {ids: [1, 9]})
            saver.restore(session, path)
            assert content(session, ev) == before
    assert dict(tf.train.list_variables(path))["scope/ev"] == [0, DIM]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("form", ["list", "dict"])
def test_a_saver_of_chosen_variables_saves_and_restores_only_these(tmp_path, parts, form):
    with tf.Graph().as_default():
        chosen, ids, train, _ = build(parts, v1.train.GradientDescentOptimizer(0.1))
        other, other_ids, train_other, _ = build(
            parts, v1.train.GradientDescentOptimizer(0.1), name="scope/other"
        )
        in_dict = {"any name": list(chosen.parts) if parts > 1 else chosen}
        saver = v1.train.Saver([chosen] if form == "list" else in_dict)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            feed = {ids: [1, 2, 3], other_ids: [1, 2, 3]}
            session.run([train, train_other], feed)
            saved, before = content(session, chosen), content(session, other)
            path = saver.save(session, str(tmp_path / "model"))
            session.run([train, train_other], {ids: [1, 9], other_ids: [1, 9]})
            trained = content(session, other)
            assert content(session, chosen) != saved and trained != before
            step = session.run(v1.train.get_global_step())
            saver.restore(session, path)
            assert content(session, chosen) == saved
            assert content(session, other) == trained
            assert session.run(v1.train.get_global_step()) == step
            session.run(train, {ids: [4]})
            session.run(chosen.restore_from(path))
            assert content(session, chosen) == saved
    names = [name for name, _ in tf.train.list_variables(path)]
    assert "scope/ev" in names and all((name + "/").startswith("scope/ev/") for name in names)


def test_slots_that_the_checkpoint_lacks_are_kept_and_those_of_other_optimizers_come_along(
    tmp_path,
):
    with tf.Graph().as_default():
        ev, ids, train, saver = build(1, v1.train.AdagradOptimizer(0.1))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 2, 3]})
            path = saver.save(session, str(tmp_path / "model"))
            values = session.run(ev.export())[1]
    with tf.Graph().as_default():
        ev, ids, train, saver = build(1, v1.train.MomentumOptimizer(0.1, 0.9))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            saver.restore(session, path)
            np.testing.assert_array_equal(session.run(ev.export())[1], values)
            session.run(train, {ids: [1]})
            manifest = json.loads(session.run(ev.export_rows()).manifest)
            assert {c["name"] for c in manifest["columns"][1:]} == {
                "scope/ev/Adagrad",
                "scope/ev/Momentum",
            }


def test_a_failed_restore_changes_nothing(tmp_path):
    with tf.Graph().as_default():
        _, ids, train, saver = build(1)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 2, 3]})
            path = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default():
        with v1.variable_scope("scope"):
            ev = tf_multitier.get_embedding_variable("ev", DIM + 1)
        other = tf_multitier.get_embedding_variable("other", DIM)
        train = v1.train.AdamOptimizer().minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, [7])))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            before = content(session, ev)
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=f"{DIM + 1}.*{DIM}|{DIM}.*{DIM + 1}"
            ):
                session.run(ev.restore_from(path))
            with pytest.raises(tf.errors.NotFoundError, match="other"):
                session.run(other.restore_from(path))
            with pytest.raises(tf.errors.OpError):
                session.run(ev.restore_from(str(tmp_path / "none")))
            assert content(session, ev) == before


def test_init_from_checkpoint_restores_under_another_name(tmp_path):
    with tf.Graph().as_default():
        ev, ids, train, saver = build(1)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 2, 3]})
            path = saver.save(session, str(tmp_path / "model"))
            saved = session.run(ev.export())
    with tf.Graph().as_default():
        ev = tf_multitier.get_embedding_variable("new", DIM)
        v1.train.init_from_checkpoint(path, {"scope/ev": "new"})
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for x, y in zip(saved, session.run(ev.export())):
                np.testing.assert_array_equal(x, y)


@pairwise(
    assignment=[{"scope/": "new/"}, {"scope/ev": "new/ev"}, "variable"], after=[1, 2], before=[1, 3]
)
def test_init_from_checkpoint_takes_partitioned_variables_by_scope_name_and_object(
    tmp_path, before, after, assignment
):
    with tf.Graph().as_default():
        ev, ids, train, _ = build(before)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: np.arange(20)})
            path = v1.train.Saver().save(session, str(tmp_path / "model"))
            saved = session.run(ev.export())
    with tf.Graph().as_default():
        with v1.variable_scope("new", partitioner=v1.fixed_size_partitioner(after)):
            ev = tf_multitier.get_embedding_variable("ev", DIM)
        assert ev.num_partitions == after and tf_multitier.embedding_variables() == [ev]
        with v1.variable_scope("new", reuse=True):
            assert tf_multitier.get_embedding_variable("ev", DIM) is ev
        if assignment == "variable":
            assignment = {"scope/ev": list(ev.parts) if after > 1 else ev}
        v1.train.init_from_checkpoint(path, assignment)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for x, y in zip(saved, session.run(ev.export())):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("value", [0.1, 7.0])
def test_a_new_optimizer_of_an_imported_graph_has_columns_of_its_own(tmp_path, parts, value):
    with tf.Graph().as_default():
        ev, ids, train, saver = build(parts, v1.train.AdagradOptimizer(0.1))
        v1.add_to_collection("loss", tf.reduce_sum(tf.nn.embedding_lookup(ev, [1])))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 1]})
            path = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default():
        saver = v1.train.import_meta_graph(path + ".meta")
        [ev] = tf_multitier.embedding_variables()
        optimizer = v1.train.AdagradOptimizer(0.1, initial_accumulator_value=value)
        train = optimizer.minimize(v1.get_collection("loss")[0], var_list=list(ev.parts))
        assert {optimizer.get_slot(part, "accumulator").column for part in ev.parts} == {
            "scope/ev/Adagrad_1"
        }
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            saver.restore(session, path)
            session.run(train)
            saved = [
                r for r in session.run([part.export_rows() for part in ev.parts]) if len(r.keys)
            ]
            assert [c["name"] for c in json.loads(saved[0].manifest)["columns"]][1:] == [
                "scope/ev/Adagrad",
                "scope/ev/Adagrad_1",
            ]
            [row] = saved[0].rows
            np.testing.assert_allclose(row[DIM : 2 * DIM], 0.1 + 16)
            np.testing.assert_allclose(row[2 * DIM :], value + 1)


def test_reinitializing_empties_the_table(tmp_path):
    with tf.Graph().as_default():
        ev, ids, train, _ = build(2)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {ids: [1, 2, 3]})
            session.run(v1.global_variables_initializer())
            assert session.run(ev.total_count()) == 0


def test_memory_for_saving_does_not_grow_with_the_table(tmp_path):
    rows, dim = 500_000, 64

    def memory(which):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(which))

    with tf.Graph().as_default():
        ev = tf_multitier.get_embedding_variable("ev", dim)
        first = v1.placeholder(tf.int64, [])
        ids = first + tf.range(50_000, dtype=tf.int64)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(
            tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
        )
        saver = v1.train.Saver()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for begin in range(0, rows, 50_000):
                session.run(train, {first: begin})
            with open("/proc/self/clear_refs", "w") as clear:
                clear.write("5")  # resets the peak to the current value
            before = memory("VmRSS")
            path = saver.save(session, str(tmp_path / "model"))
            assert memory("VmHWM") - before < 64 << 20
            assert (
                sum(os.path.getsize(p) for p in glob.glob(path + ".data-[a-z]*")) > rows * dim * 4
            )
