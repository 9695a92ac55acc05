"""WorkQueue: each work item is taken once an epoch, by any worker; checkpoints contain the remaining items."""

import collections
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from ports import free_ports

from tf_multitier.data import ParquetDataset
from tf_multitier.deeprec.work_queue import LocalWorkMgr
from tf_multitier.deeprec.work_queue import WorkQueue

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def drain(session, fetch):
    found = []
    while True:
        try:
            found.append(session.run(fetch))
        except tf.errors.OutOfRangeError:
            return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_work_comes_once_an_epoch(shuffle):
    works = [f"w{i}" for i in range(8)]
    queue = WorkQueue(works, num_epochs=3, shuffle=shuffle, seed=7, prefix="dir/")
    taken = queue.take()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found = drain(session, taken)
        assert drain(session, taken) == []
    epochs = [[name.decode() for name in found[i : i + 8]] for i in (0, 8, 16)]
    assert all(sorted(epoch) == [f"dir/{work}" for work in works] for epoch in epochs)
    assert (epochs[0] == epochs[1]) is not shuffle
    assert len(queue) == 8 and queue.works[0] == b"w0" and queue.digest == ",".join(works).encode()


def test_threads_never_get_the_same_work():
    taken = WorkQueue([str(i) for i in range(300)]).take()
    found = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        threads = [
            threading.Thread(target=lambda: found.append(drain(session, taken))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(int(work) for part in found for work in part) == list(range(300))


def write_files(directory, count):
    for i in range(count):
        (directory / f"{i}.txt").write_text(f"{i}a\n{i}b\n")
    return [str(directory / f"{i}.txt") for i in range(count)]


def test_a_dataset_of_works_feeds_readers(tmp_path):
    lines = v1.data.TextLineDataset(
        WorkQueue(write_files(tmp_path, 3), num_epochs=2).input_dataset()
    ).batch(2)
    iterator = v1.data.make_initializable_iterator(lines)
    batch = iterator.get_next()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(iterator.initializer)
        found = drain(session, batch)
    assert collections.Counter(tuple(lines.tolist()) for lines in found) == {
        (b"%da" % i, b"%db" % i): 2 for i in range(3)
    }


def test_parquet_files_of_a_queue_need_no_fields(tmp_path):
    paths = [str(tmp_path / f"{i}.parquet") for i in range(3)]
    for i, path in enumerate(paths):
        pq.write_table(pa.table({"n": [i, i]}), path)
    queue = WorkQueue([f"{i}.parquet" for i in range(3)], shuffle=False, prefix=f"{tmp_path}/")
    iterator = v1.data.make_initializable_iterator(
        ParquetDataset(queue.input_dataset(), batch_size=2)
    )
    batch = iterator.get_next()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(iterator.initializer)
        assert [found["n"].tolist() for found in drain(session, batch)] == [[0, 0], [1, 1], [2, 2]]


def test_a_producer_feeds_readers_in_a_monitored_session(tmp_path):
    queue = WorkQueue(write_files(tmp_path, 3))
    _, lines = v1.TextLineReader().read_up_to(queue.input_producer(), 2)
    found = []
    with v1.train.MonitoredTrainingSession() as session:
        while not session.should_stop():
            found.append(tuple(session.run(lines)))
    assert sorted(found) == [(b"%da" % i, b"%db" % i) for i in range(3)]


def saved_after(directory, works, count, **kwargs):
    """Returns a checkpoint of a queue after `count` work items were taken, and these items."""
    with tf.Graph().as_default(), v1.Session() as session:
        taken = WorkQueue(works, **kwargs).take()
        saver = v1.train.Saver(sharded=True)
        session.run(v1.global_variables_initializer())
        found = [session.run(taken) for _ in range(count)]
        return saver.save(session, str(directory / "model")), found


def restored(prefix, works, **kwargs):
    with tf.Graph().as_default(), v1.Session() as session:
        taken = WorkQueue(works, **kwargs).take()
        v1.train.Saver().restore(session, prefix)
        return drain(session, taken)


@pytest.mark.parametrize("count", [0, 1, 5, 10])
def test_a_restored_queue_goes_on_where_it_was_saved(tmp_path, count):
    works = [str(i) for i in range(5)]
    prefix, before = saved_after(tmp_path, works, count, num_epochs=2, seed=3)
    after = restored(prefix, works, num_epochs=2, seed=4)
    assert collections.Counter(before + after) == {work.encode(): 2 for work in works}
    if count == 5:
        assert sorted(before) == sorted(after)


def test_other_works_begin_anew(tmp_path):
    prefix, _ = saved_after(tmp_path, ["a", "b", "c"], 2)
    assert sorted(restored(prefix, ["a", "b", "c", "d"])) == [b"a", b"b", b"c", b"d"]


def test_more_epochs_do_not_change_what_a_checkpoint_has_left(tmp_path):
    prefix, before = saved_after(tmp_path, ["a", "b", "c"], 2, num_epochs=3)
    assert len(restored(prefix, ["a", "b", "c"], num_epochs=1)) == 9 - len(before)


def test_a_monitored_session_continues_the_queue(tmp_path):
    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            step = v1.train.get_or_create_global_step()
            taken = WorkQueue([str(i) for i in range(6)]).take()
            advance = v1.assign_add(step, 1)
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), save_checkpoint_steps=1
            ) as session:
                for _ in range(3):
                    found.append(session.run([taken, advance])[0])
    assert sorted(found) == [b"%d" % i for i in range(6)]


def test_workers_of_a_server_share_the_queue():
    works = [str(i) for i in range(40)]
    ps, workers = _cluster(2)
    found = [[], []]

    def train(index):
        placed = v1.train.replica_device_setter(
            worker_device=f"/job:worker/task:{index}", cluster=ps.server_def.cluster
        )
        with tf.Graph().as_default(), v1.device(placed):
            iterator = v1.data.make_initializable_iterator(WorkQueue(works).input_dataset())
            taken = iterator.get_next()
            v1.train.get_or_create_global_step()
            scaffold = v1.train.Scaffold(
                local_init_op=tf.group(v1.local_variables_initializer(), iterator.initializer)
            )
            with v1.train.MonitoredTrainingSession(
                workers[index].target, is_chief=index == 0, scaffold=scaffold
            ) as session:
                while not session.should_stop():
                    found[index].append(session.run(taken))

    threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert collections.Counter(found[0] + found[1]) == {work.encode(): 1 for work in works}


def _cluster(num_workers):
    """(parameter server, workers): servers of one process."""
    server, *workers = (f"localhost:{port}" for port in free_ports(1 + num_workers))
    cluster = v1.train.ClusterSpec({"ps": [server], "worker": workers})
    servers = [tf.distribute.Server(cluster, "ps", 0)]
    servers += [tf.distribute.Server(cluster, "worker", index) for index in range(num_workers)]
    return servers[0], servers[1:]


def test_the_summary_says_what_is_left():
    queue = WorkQueue(["a", "b", "c", "d"], name="files")
    queue.add_summary()
    taken, summary = queue.take(), v1.summary.merge_all()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(taken)
        [value] = v1.Summary.FromString(session.run(summary)).value
    assert value.tag.endswith("files/fraction_of_4_full") and value.simple_value == 0.75


def test_two_queues_of_a_graph_are_apart():
    first, second = WorkQueue(["a"]), WorkQueue(["b"])
    assert (first.name, second.name) == ("work_queue", "work_queue_1")
    taken = [first.take(), second.take()]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(taken) == [b"a", b"b"]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("a",), TypeError, "list of strings"),
        (([1],), TypeError, "list of strings"),
        (([],), ValueError, "at least one"),
        ((["a"], 0), ValueError, "num_epochs: expected an integer, at least 1, found 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        WorkQueue(*arguments)


def test_a_manager_of_local_works_is_refused():
    with pytest.raises(NotImplementedError, match="LocalWorkMgr is not supported"):
        LocalWorkMgr("worker", 0, "dir")


def test_a_plain_session_makes_the_queue_with_the_global_variables():
    take = WorkQueue(["a", "b"], shuffle=False).take()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(take) == b"a"
        session.run(v1.global_variables_initializer())  # as the local_init_op of another worker
        assert drain(session, take) == [b"b"]


@pytest.mark.parametrize("given", [lambda: None, v1.global_variables], ids=["all", "global"])
def test_a_saver_saves_the_queue_once(tmp_path, given):
    take = WorkQueue(["a", "b"], shuffle=False).take()
    v1.get_variable("w", [])
    with v1.Session() as session:
        saver = v1.train.Saver(given())
        session.run(v1.global_variables_initializer())
        session.run(take)
        prefix = saver.save(session, str(tmp_path / "model"))
        assert drain(session, take) == [b"b"]
        saver.restore(session, prefix)
        assert drain(session, take) == [b"b"]
    names = [name for name, _ in tf.train.list_variables(prefix)]
    assert names == ["w", "work_queue_digest", "work_queue_works"]
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
        assert [v.op.name for v in v1.global_variables()] == ["work_queue/minus_left", "w"]


def test_initializers_in_the_local_init_op_take_no_work_back(tmp_path):
    """DeepRec's sample has them there: they run after a restore, too."""
    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            step = v1.train.get_or_create_global_step()
            taken = WorkQueue([str(i) for i in range(6)]).take()
            advance = v1.assign_add(step, 1)
            local = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer())
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                save_checkpoint_steps=1,
                scaffold=v1.train.Scaffold(local_init_op=local),
            ) as session:
                for _ in range(3):
                    found.append(session.run([taken, advance])[0])
    assert sorted(found) == [b"%d" % i for i in range(6)]
