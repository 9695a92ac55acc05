"""Several processes with one storage path, from Python: shared names, forks, dead parents, variables of the same name."""

import os

import numpy as np
import pytest
from engine_process import Process
from engine_process import run
from engine_util import TYPES
from engine_util import files_of

from tf_multitier import engine


def instances(path):
    return (
        sorted(os.listdir(os.path.join(path, "ev")))
        if os.path.isdir(os.path.join(path, "ev"))
        else []
    )


LIVE = """
    table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0], name="ev")
    fill(table, 100)
    say(table.path)
    wait()
    say(table.lookup(np.arange(100)).tolist() == np.ones((100, 4)).tolist())
"""


def test_processes_share_a_path_and_a_name_and_leftovers_of_the_dead_go(tmp_path):
    first, killed = Process(LIVE, str(tmp_path)), Process(LIVE, str(tmp_path))
    paths = [first.hear(), killed.hear()]
    assert len(set(paths)) == 2 and len(instances(tmp_path)) == 2
    killed.kill()
    assert len(instances(tmp_path)) == 2
    mine = engine.Table(dim=4, storage_type="LEVELDB", storage_path=tmp_path, name="ev")
    assert instances(tmp_path) == sorted(os.path.basename(path) for path in (paths[0], mine.path))
    first.go()
    assert first.hear() is True
    first.end()
    mine.close()
    assert os.listdir(tmp_path) == []


FORK = """
    path = arguments[0]
    table = engine.Table(dim=4, storage_type=arguments[1], storage_path=path, storage_size=[64] * arguments[1].count("_"), name="ev",
                         l2_weight_threshold=0.0)
    fill(table, 100)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        calls = [lambda: table.lookup([1]), lambda: fill(table, 1), lambda: table.remove([1]), lambda: table.expire(1), table.clear,
                 table.export, table.scan, table.stats, table.total_count, table.drain, table.flush, table.close,
                 table.release_prefetched, table.pop_dropped, lambda: table.prefetch([1]), lambda: table.frequency([1]),
                 lambda: table.version([1]), lambda: table.lookup_tier([1]), lambda: table.import_rows(engine.Table(dim=4).export()),
                 lambda: table.add_slots([("m", 4, 0.0)]), lambda: table.columns]
        bad = [(i, error(call)) for i, call in enumerate(calls) if (error(call) or [None])[0] != "FailedPreconditionError"]
        bad += [] if f"belongs to process {os.getppid()}" in error(calls[0])[1] else [error(calls[0])]
        own = engine.Table(dim=4, storage_type="SSDHASH", storage_path=path, name="ev")  # it may use its own directory
        fill(own, 10)
        own.close()
        os.write(write, json.dumps(bad).encode())
        os.close(write)
        sys.exit()  # the interpreter ends, and with it the child's copy of the table
    os.close(write)
    bad = os.read(read, 100000).decode()
    os.waitpid(pid, 0)
    value = table.lookup(np.arange(100)).tolist() == np.ones((100, 4)).tolist()
    locked = os.fork()
    if locked == 0:  # another process still finds it locked
        refused = error(lambda: _engine.Instance(table._table.path))
        os._exit(0 if refused and f"in use by process {os.getppid()}" in refused[1] else 1)
    say([bad, value, os.waitpid(locked, 0)[1]])
"""


@pytest.mark.parametrize("kind", TYPES)
def test_a_forked_child_can_do_nothing_and_breaks_nothing(kind, tmp_path):
    bad, value, status = run(FORK, str(tmp_path), kind)
    assert bad == "[]" and value is True and status == 0
    assert os.listdir(tmp_path) == []


def test_a_killed_parent_leaves_no_lock_though_its_child_lives(tmp_path):
    process = Process(
        """
        table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0], name="ev", keep=True)
        fill(table, 100)
        table.flush()
        child = os.fork()
        if child == 0:
            os.close(0), os.close(1)
            signal.pause()
        say([table.path, child])
        wait()
    """,
        str(tmp_path),
    )
    path, child = process.hear()
    with pytest.raises(engine.FailedPreconditionError, match=f"in use by process {process.pid}"):
        engine.Table.open(path)
    process.kill()
    try:
        with engine.Table.open(path, keep=False) as table:
            assert len(table) == 100
    finally:
        os.kill(child, 9)
    assert os.listdir(tmp_path) == []


# The op library and the engine module are two shared objects of one process, each with this code in it.
def test_a_table_takes_nothing_from_a_variable_of_its_process_and_name(tmp_path):
    tf = pytest.importorskip("tensorflow")
    import tf_multitier
    from op_util import attrs_of

    ops = tf.load_op_library(tf_multitier.get_library_path())
    attrs = attrs_of(4, storage_type="SSDHASH", storage_path=str(tmp_path))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = ops.multitier_embedding_variable_handle(shared_name="ev", **attrs)
        session.run(ops.multitier_initialize(handle, tf.zeros([0, 4]), **attrs))
        session.run(
            ops.multitier_apply(
                handle,
                tf.constant([1, 2], tf.int64),
                -tf.ones([2, 4]),
                tf.constant([], tf.int64),
                tf.constant(-1, tf.int64),
                [tf.constant(1.0)],
                [],
                rule="sgd",
                slot_names=[],
                slot_initial_values=[],
            )
        )
        (name,) = os.listdir(tmp_path)
        (variable,) = os.listdir(tmp_path / name)
        directory = str(tmp_path / name / variable)
        before = files_of(directory)
        tables = [
            engine.Table(dim=4, storage_type="SSDHASH", storage_path=tmp_path, name=name)
            for _ in range(2)
        ]
        assert len(os.listdir(tmp_path / name)) == 3 and files_of(directory) == before
        for call in (engine.Table.open, engine.salvage):
            with pytest.raises(
                engine.FailedPreconditionError,
                match=rf"in use by process {os.getpid()} \(this one\)",
            ):
                call(directory)
        del tables
        # The variable has its lock still: another process finds it held, and takes it for no leftover either.
        held = run(
            """
            table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0], name=arguments[1])
            say(error(lambda: engine.Table.open(arguments[2])))
        """,
            str(tmp_path),
            name,
            directory,
        )
        assert (
            held[0] == "FailedPreconditionError" and f"in use by process {os.getpid()}" in held[1]
        )
        assert files_of(directory) == before
        values = session.run(ops.multitier_lookup(handle, tf.constant([1, 2, 3], tf.int64), []))
        np.testing.assert_array_equal(values, [[1.0] * 4, [1.0] * 4, [0.0] * 4])
