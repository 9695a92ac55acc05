"""Embedding variables outside of v1 graphs: creation, life, tracking, queries, and refusals."""

import gc
import os
import re
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager

pytestmark = needs_eager
v1 = tf.compat.v1


def make(name="ev", dim=4, value=0.5, **kwargs):
    return tf_multitier.get_embedding_variable(
        name, dim, initializer=tf.constant_initializer(value), **kwargs
    )


def parted(name="parted", parts=3, **kwargs):
    return make(name, partitioner=v1.fixed_size_partitioner(parts), **kwargs)


def train(ev, ids, optimizer=None):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
    gradient = tape.gradient(loss, ev)
    (optimizer or tf_multitier.optimizers.SGD(0.5)).apply_gradients([(gradient, ev)])


def test_two_variables_of_one_name_are_two_tables():
    a, b = make(), make()
    train(a, [1, 2])
    assert a.name == b.name == "ev:0"
    assert (a.total_count(), b.total_count()) == (2, 0)


def test_a_name_scope_is_part_of_the_name():
    with tf.name_scope("tower"):
        assert make().variable_name == "tower/ev"
        assert parted().parts[1].name == "tower/parted/part_1:0"


def test_the_first_trace_of_a_function_creates_the_variable_once():
    made = []

    @tf.function(reduce_retracing=True)
    def look_up(ids):
        if not made:
            made.extend([make("lifted", 3), parted("lifted_parts")])
        return [tf.nn.embedding_lookup(ev, ids) for ev in made]

    for ids in ([1, 2], [[3]], 4):
        a, b = look_up(tf.constant(ids))
        assert a.shape == np.shape(ids) + (3,) and b.shape == np.shape(ids) + (4,)
    assert len(made) == 2
    train(made[0], [5])
    assert made[0].total_count() == 1


def test_a_function_knows_the_dim_of_a_captured_variable():
    ev, parts = make(), parted()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def look_up(ids):
        return tf.nn.embedding_lookup(ev, ids), tf.nn.embedding_lookup(parts, ids)

    shapes = look_up.get_concrete_function().output_shapes
    assert [s.as_list() for s in shapes] == [[None, 4], [None, 4]]


def test_modules_track_variables_and_parts():
    module = tf.Module()
    module.ev, module.parts, module.fixed = make(), [parted()], make("fixed", trainable=False)
    names = {v.name for v in module.variables}
    assert names == {"ev:0", "fixed:0", *(f"parted/part_{i}:0" for i in range(3))}
    assert {v.name for v in module.trainable_variables} == names - {"fixed:0"}


@pytest.mark.parametrize("create", [make, parted])
def test_every_query_answers_at_once(create):
    ev = create()
    train(ev, [3, 1, 3, -2])
    assert ev.total_count() == 3 and ev.get_dynamic_shape().numpy().tolist() == [3, 4]
    assert ev.get_frequency([[3], [9]]).numpy().tolist() == [[2], [0]]
    assert ev.get_version([3, 9]).numpy().tolist() == [0, -1]
    keys, values, versions, frequencies = ev.export()
    assert keys.numpy().tolist() == [-2, 1, 3] and values[:, 0].numpy().tolist() == [0, 0, -0.5]
    assert versions.numpy().tolist() == [0] * 3 and frequencies.numpy().tolist() == [1, 1, 2]
    assert ev.peek([3])[0, 0] == -0.5 and ev.prefetch([3]) == 0
    assert ev.release_prefetched() is None and ev.drain() is None and ev.compact() is None
    assert ev.pop_dropped().shape == [0] and "tiers" in ev.stats()
    assert ev.is_initialized()
    assert ev.remove([3, 9]) == 1 and ev.total_count() == 2


def folders(path):
    return sum(len(names) for _, names, _ in os.walk(path))


def on_disk(path, size=128):
    storage = tf_multitier.StorageOption(
        storage_type=tf_multitier.StorageType.DRAM_SSDHASH,
        storage_path=str(path),
        storage_size=[size],
    )
    return tf_multitier.EmbeddingVariableOption(storage_option=storage)


def test_files_go_with_the_object(tmp_path):
    ev = make(ev_option=on_disk(tmp_path))
    train(ev, np.arange(1000))
    ev.drain()
    assert folders(tmp_path) and ev.total_count() == 1000
    del ev
    gc.collect()
    assert not folders(tmp_path)


STRESS = bool(os.environ.get("TF_MULTITIER_STRESS"))


def resident_kib():
    with open("/proc/self/status", encoding="utf-8") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])


def test_created_and_dropped_variables_leave_nothing(tmp_path):
    def create():
        ev = make(ev_option=on_disk(tmp_path))
        train(ev, np.arange(20))

    for _ in range(100):
        create()
    gc.collect()
    before = resident_kib(), len(os.listdir("/proc/self/fd"))
    for _ in range(1000 if STRESS else 400):
        create()
    gc.collect()
    assert not folders(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert resident_kib() - before[0] < 8 * 1024


def test_eager_steps_leave_memory_files_and_folders_level(tmp_path):
    ev, optimizer = make(ev_option=on_disk(tmp_path)), tf_multitier.optimizers.Adagrad(0.1)
    for _ in range(300):
        train(ev, np.arange(50), optimizer)
    ev.drain()
    gc.collect()
    before = resident_kib(), len(os.listdir("/proc/self/fd")), folders(tmp_path)
    for _ in range(10_000 if STRESS else 700):
        train(ev, np.arange(50), optimizer)
    ev.drain()
    gc.collect()
    assert resident_kib() - before[0] < 8 * 1024
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert folders(tmp_path) <= before[2] + 2  # files of the log that is being written


def test_fifty_batch_sizes_trace_a_function_once():
    ev, optimizer, traces = make(), tf_multitier.optimizers.Adagrad(0.1), []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids):
        traces.append(ids)
        with tf.GradientTape() as tape:
            [pooled] = tf_multitier.nn.group_embedding_lookup_sparse(
                [ev], [tf.RaggedTensor.from_tensor(ids[:, None])], "sum"
            )
            loss = tf.reduce_sum(pooled) + tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])

    for size in range(50):
        step(tf.range(size, dtype=tf.int64))
    assert len(traces) == 1 and ev.total_count() == 49
    assert ev.get_frequency([0, 48]).numpy().tolist() == [2 * 49, 2]


def test_two_threads_trace_and_train_at_once():
    rounds = 100 if STRESS else 5
    for _ in range(rounds):
        ev, optimizer = make(), tf_multitier.optimizers.SGD(0.5)
        start, failed = threading.Barrier(2), []

        def work(ev=ev, optimizer=optimizer, start=start, failed=failed):
            try:
                step = tf.function(lambda ids: train(ev, ids, optimizer))  # each traces its own
                start.wait()
                for _ in range(10):
                    step(tf.constant([1, 2, 2]))
            except Exception as error:  # noqa: BLE001  the test fails below
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert ev.get_frequency([1, 2]).numpy().tolist() == [20, 40]
        assert tf.nn.embedding_lookup(ev, [1, 2]).numpy()[:, 0].tolist() == [0.5 - 10, 0.5 - 20]
        assert optimizer.iterations == 20


def test_a_function_names_a_variable_whose_object_was_deleted():
    holder = [make("short_lived")]
    look_up = tf.function(lambda: tf.nn.embedding_lookup(holder[0], [1])).get_concrete_function()
    holder.clear()
    gc.collect()
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="'short_lived' has no table any more.*keep the object",
    ):
        look_up()
    with (
        tf.GradientTape(),
        pytest.raises(AssertionError, match="variables which have been deleted"),
    ):
        look_up()


def test_a_dataset_prefetches_rows_eagerly(tmp_path):
    ev, optimizer = make(ev_option=on_disk(tmp_path, 64 * 16)), tf_multitier.optimizers.SGD(0.5)
    for ids in np.arange(1000).reshape(10, 100):
        train(ev, ids, optimizer)
    ev.drain()
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(40)).batch(4)
    ahead = dataset.apply(tf_multitier.data.prefetch_embeddings(lambda ids: {ev: ids}, timeout=100))
    assert [ids.numpy().tolist() for ids in ahead] == np.arange(40).reshape(10, 4).tolist()
    assert ev.stats()["prefetched"] > 0  # rows are pinned and wait for their use
    with tf.Graph().as_default():
        other = make("other")
    with pytest.raises(
        RuntimeError, match="'other': expected a dataset that is made in a v1 graph"
    ):
        dataset.apply(tf_multitier.data.prefetch_embeddings(lambda ids: {other: ids}))


# ---- the other world, and XLA


def test_an_eager_variable_in_a_graph_is_refused():
    ev, parts = make(), parted()
    with tf.Graph().as_default():
        for variable in (ev, parts):
            with pytest.raises(RuntimeError, match="created eagerly: expected an eager call"):
                tf.nn.embedding_lookup(variable, [1])
            with pytest.raises(RuntimeError, match="created eagerly: expected an eager call"):
                tf_multitier.nn.group_embedding_lookup([variable], [[1]])
            with pytest.raises(RuntimeError, match="created eagerly: expected an eager call"):
                variable.total_count()


def test_a_variable_of_a_graph_used_eagerly_is_refused():
    with tf.Graph().as_default():
        ev = make()
    for look_up in (
        lambda: tf.nn.embedding_lookup(ev, [1]),
        lambda: tf.nn.embedding_lookup_sparse(ev, tf.sparse.from_dense([[1]]), None),
        lambda: tf_multitier.nn.group_embedding_lookup([ev], [[1]]),
    ):
        with pytest.raises(
            RuntimeError,
            match="'ev' of a tf.Graph: expected a use in that graph, found an eager call",
        ):
            look_up()


@pytest.mark.parametrize("create", [make, parted])
def test_a_variable_as_an_argument_of_a_function_is_refused_by_name(create):
    ev = create("users")
    for argument, look_up in ((ev, lambda e: e), ({"a": [ev]}, lambda e: e["a"][0])):
        function = tf.function(lambda e, look_up=look_up: tf.nn.embedding_lookup(look_up(e), [1]))
        with pytest.raises(
            NotImplementedError, match="'users' cannot be an argument of a tf.function: use it from"
        ):
            function(argument)


def test_xla_is_refused_in_one_sentence():
    ev = make()
    with pytest.raises(
        NotImplementedError, match="'ev' cannot be compiled by XLA: use tf.function"
    ):
        tf.function(lambda: tf.nn.embedding_lookup(ev, [1]), jit_compile=True)()


def test_v1_optimizers_are_refused_by_name():
    ev = make()
    with pytest.raises(
        NotImplementedError, match="AdagradOptimizer.*tf_multitier.optimizers.Adagrad"
    ):
        train(ev, [1], v1.train.AdagradOptimizer(0.1))


def test_a_custom_getter_is_refused():
    with pytest.raises(ValueError, match="expected custom_getter=None in eager execution"):
        make(custom_getter=lambda getter, *a, **k: getter(*a, **k))


@pytest.mark.parametrize("dense", [lambda ev: ev.numpy(), lambda ev: ev + 1, tf.convert_to_tensor])
def test_dense_uses_are_refused(dense):
    with pytest.raises(NotImplementedError, match="has no dense value"):
        dense(make())


def test_bad_ids_are_refused_as_in_graphs():
    with pytest.raises(TypeError, match="'ev': ids: expected int64, found float32"):
        tf.nn.embedding_lookup(make(), [1.0])
    narrow = make(key_dtype=tf.int32)
    with pytest.raises(TypeError, match="expected int32, the key_dtype, found int64"):
        tf.function(lambda: tf.nn.embedding_lookup(narrow, tf.constant([1], tf.int64)))()
