"""v1 Sessions in a world of processes: exact counts, one checkpoint of all parts, dense values of rank 0, refusals."""

import ast
import re
import time

import numpy as np

import pytest
import tensorflow as tf

from cluster_util import launch
from tf_multitier._src.variable import delta_names

# Each rank trains other ids, in batches of other sizes. The learning rate undoes the mean, so a value is the number of occurrences.
PROGRAM = """
import numpy as np
import tf_multitier
import tf_multitier.v1 as tf
from tf_multitier._src.processes import world_steps
strategy = tf_multitier.distribute.CollectiveStrategy(timeout=60)
rank, size = strategy.rank(), strategy.world_size()
KEYS = np.arange(300)

def ids_of(step, rank):
    return np.random.default_rng([step, rank]).integers(0, 300, 50 + 17 * step % 40 * (rank + 1))

def build():
    with strategy.scope():
        tables = [tf.get_embedding_variable(name, 4, initializer=tf.zeros_initializer()) for name in ("a", "b", "alone")]
    weights = tf.get_variable("weights", [4, 1], initializer=tf.random_normal_initializer(seed=rank))
    ids = tf.placeholder(tf.int64, [None])
    found = [*tf.nn.group_embedding_lookup(tables[:2], [ids, ids]), tf.nn.embedding_lookup(tables[2], ids)]
    loss = -tf.add_n([tf.reduce_sum(each) for each in found])
    return tables, weights, ids, loss - tf.reduce_sum(tf.matmul(tf.stop_gradient(found[0]), weights))

def counts(session, tables):
    reads = [(tf.nn.embedding_lookup(table, KEYS), table.parts[0].export_rows()) for table in tables]
    for values, rows in session.run(reads):
        of_part = dict(zip(rows.keys.tolist(), rows.frequencies.tolist()))
        print("counts", np.rint(values[:, 0]).astype(int).tolist(), of_part)  # a third of a sum, times 3
"""

TRAINED = """
with tf.Graph().as_default():
    tables, weights, ids, loss = build()
    step = tf.train.get_or_create_global_step()
    # Two optimizers, whose gradients go back through one lookup.
    optimizer = tf.train.GradientDescentOptimizer(float(size))
    train = [strategy.optimizer(optimizer).minimize(loss, step, [tables[0], weights])]
    parts = [table.parts[0] for table in tables[1:]]
    grads = strategy.reduce_gradients(tf.gradients(loss, parts), variables=parts)
    train.append(optimizer.apply_gradients(zip(grads, parts)))
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == train
    hooks, every = [tf.train.StopAtStepHook(last_step=STEPS)], 4
    if DELTAS:
        hooks.append(tf_multitier.train.IncrementalSaverHook(folder + "/model", save_steps=100, save_incremental_steps=1))
        every = None
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder + "/model", save_checkpoint_steps=every, save_checkpoint_secs=None, hooks=hooks
    ) as session:
        while not session.should_stop():
            session.run(train, {ids: ids_of(session.run(step), rank)})
    steps = world_steps.steps(strategy._world, rank)
    with tf.Session() as session:
        print("steps", session.run(steps))
        counts(session, tables)
        print("weights", session.run(weights).tobytes().hex())
"""

# A process alone.
READ = """
with tf.Graph().as_default():
    tables, weights, ids, loss = build()
    with tf.Session() as session:
        tf.train.Saver().restore(session, PREFIX)
        counts(session, tables)
        print("weights", session.run(weights).tobytes().hex())
"""

# Plain Sessions. Adagrad's slots are in the parts of all ranks.
PLAIN = """
with tf.Graph().as_default():
    tables, weights, ids, loss = build()
    optimizer = strategy.optimizer(tf.train.AdagradOptimizer(0.5))
    pairs = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients(pairs)
    begin, saver = strategy.broadcast_variables(), tf.train.Saver()
    def refused(make):
        try:
            make()
        except Exception as error:
            print("refused", type(error).__name__, str(error).replace(chr(10), " "))
        else:
            print("not refused")
    grads = [grad for grad, _ in pairs]
    clipped, norm = strategy.clip_by_global_norm(grads, 1.0)
    train_clipped = optimizer.apply_gradients(zip(clipped, [variable for _, variable in pairs]))
    variables = [variable for _, variable in pairs]
    refused(lambda: tf.train.AdagradOptimizer(0.5).minimize(loss))
    refused(lambda: optimizer.apply_gradients(zip(tf.clip_by_global_norm(grads, 1.0)[0], variables)))
    dense = tf.train.AdagradOptimizer(0.5)
    refused(lambda: dense.minimize(loss, var_list=[weights]))
    [mine] = strategy.reduce_gradients(tf.gradients(loss, [weights]))
    dense.apply_gradients([(tf.clip_by_global_norm([mine], 1.0)[0][0], weights)])
    apart = tf.get_variable("apart", [2], initializer=tf.random_normal_initializer(seed=rank))  # not in `begin`
    train_apart = dense.apply_gradients([(strategy.reduce_gradients([tf.ones([2])])[0], apart)])
    decaying = tf_multitier.train.AdamWOptimizer(0.5, 0.0)
    train_decaying = strategy.optimizer(decaying).minimize(loss, var_list=[weights], decay_var_list=[])
    local = tf.get_embedding_variable("local", 4)
    refused(lambda: optimizer.minimize(tf.reduce_sum(tf.nn.embedding_lookup(local, ids)), var_list=[local]))
    refused(lambda: strategy.dataset(tf.data.Dataset.range(4).batch(2)))
    refused(lambda: tf_multitier.distribute.CheckpointManager(strategy, None, folder))
    own, barrier = strategy.broadcast_variables([weights]), strategy.barrier()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([own, barrier])
        print("own", session.run(weights).tobytes().hex())
        session.run(begin)
        before = session.run(weights).tolist()
        session.run(train_decaying, {ids: ids_of(0, rank)})
        print("decayed", session.run(weights).tolist() != before)
        found, _ = session.run([norm, train_clipped], {ids: ids_of(0, rank)})
        print("norm", found, "weights", session.run(weights).tobytes().hex())
        session.run(train, {ids: ids_of(1, rank)})
        if rank:
            refused(lambda: saver.save(session, folder + "/of_rank_1"))
        else:
            saver.save(session, folder + "/of_rank_0")
            print("slots", [name for name, _ in tf.train.list_variables(folder + "/of_rank_0")])
        refused(lambda: session.run(train_apart))
"""


def parse(lines, what):
    return [line.removeprefix(what + " ") for line in lines if line.startswith(what + " ")]


def check_counts(lines, batches):
    """The values and frequencies of all parts are those of batches: (step, rank)."""
    ids = [
        np.random.default_rng([step, rank]).integers(0, 300, 50 + 17 * step % 40 * (rank + 1))
        for step, rank in batches
    ]
    expected = np.bincount(np.concatenate(ids), minlength=300)
    parts = [parse(its, "counts") for its in lines.values()]
    for of_table in zip(*parts, strict=True):
        frequencies = {}
        for line in of_table:
            values, its = map(ast.literal_eval, re.fullmatch(r"(\[.*\]) (\{.*\})", line).groups())
            assert values == expected.tolist()
            assert its and not set(its) & set(frequencies)
            frequencies.update(its)
        assert frequencies == {key: n for key, n in enumerate(expected) if n}
    [weights] = {weights for its in lines.values() for weights in parse(its, "weights")}
    return weights


def test_monitored_sessions_count_exactly_and_go_on_from_checkpoints_of_other_worlds(tmp_path):
    batches = []
    for began, steps, deltas, size in ((0, 6, False, 2), (6, 8, True, 3), (8, 10, True, 2)):
        code = PROGRAM + f"STEPS, DELTAS = {steps}, {deltas}\n" + TRAINED
        lines, _ = launch(tmp_path, code, f"--workers={size}")
        batches += [(step, rank) for step in range(began, steps) for rank in range(size)]
        weights = check_counts(lines, batches)
        assert {line for its in lines.values() for line in parse(its, "steps")} == {
            str(2 * (steps - began))
        }
    newest = delta_names.deltas(tf.train.latest_checkpoint(tmp_path / "model"))[-1]
    assert newest.startswith(f"{tmp_path}/model/model.ckpt-")
    read = f'PREFIX = "{newest}"\n' + READ
    lines, _ = launch(tmp_path, PROGRAM + read, "--workers=1")
    assert check_counts(lines, batches) == weights


def test_what_would_train_apart_is_refused(tmp_path):
    lines, _ = launch(tmp_path, PROGRAM + PLAIN, "--workers=2")
    assert len({*parse(lines["worker 0"], "norm"), *parse(lines["worker 1"], "norm")}) == 1
    assert parse(lines["worker 0"], "own") == parse(lines["worker 1"], "own")
    saved = parse(lines["worker 1"], "refused")[-2]
    assert "expected rank 0, which saves the parts of all ranks, found rank 1" in saved
    assert "a/part_1-of-2/manifest" in parse(lines["worker 0"], "slots")[0]
    for its in lines.values():
        unreduced, clipped, dense, local, data, manager, *_, apart = parse(its, "refused")
        assert "dataset: expected eager execution, found a graph of TensorFlow 1" in data
        assert "CheckpointManager: expected eager execution, found a graph" in manager
        assert "decayed False" in its
        assert "gradient of variable 'weights:0': expected that of the world" in dense
        assert "found that of this process: train by strategy.optimizer" in unreduced
        assert "found that of tf.clip_by_global_norm" in clipped
        assert "'local': expected one that is made in strategy.scope()" in local
        assert "let all ranks run strategy.broadcast_variables() once" in apart


# Its process may be gone before it has ended the steps of others.
HAS_ENDED = "rank 1 of 2 has ended, and others wait for it in a step|found one that has ended"

# Rank 1 ends, while the other one waits for it in a step. Its program makes the strategy itself, and does not say how it ended.
ENDED = """
def main():
    import tf_multitier
    import tf_multitier.v1 as tf
    strategy = tf_multitier.distribute.CollectiveStrategy(timeout=200)
    with strategy.scope():
        users = tf.get_embedding_variable("users", 4)
    ids = tf.placeholder(tf.int64, [None])
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.nn.embedding_lookup(users, ids))
    train = strategy.optimizer(tf.train.AdagradOptimizer(0.1)).minimize(loss, global_step=step)
    with tf.train.MonitoredTrainingSession() as session:
        for i in range(10):
            if i == 3 and strategy.rank():
                open(folder + "/ended", "w").close()
                END
            try:
                session.run(train, {ids: [1, 2, 3]})
            except tf.errors.FailedPreconditionError as error:
                print("error", str(error).replace(chr(10), " "))
                sys.stdout.flush()
                if ENDS_WELL:
                    os._exit(9)
                signal.pause()  # until the launcher ends it

sys.exit(main())
"""


@pytest.mark.parametrize(
    ("end", "arguments", "status"),
    [
        ("return 3", (), 3),
        ("return 0", (), 9),
        ("raise ValueError", ("-m", "tf_multitier.deeprec"), 1),
    ],
)
def test_a_rank_that_ends_before_the_others_ends_their_steps_at_once(
    tmp_path, end, arguments, status
):
    code = f"ENDS_WELL = {status == 9}\n" + ENDED.replace("END\n", f"{end}\n")
    lines, _ = launch(tmp_path, code, "--workers=2", *arguments, status=status)
    assert time.time() - (tmp_path / "ended").stat().st_mtime < 100
    if status == 9:
        assert re.search(HAS_ENDED, lines["worker 0"][-1])


# Rank 1 is stopped when rank 0 saves, and goes on after the first question. Then it ends, and rank 0 saves again.
SAVED_ALONE = """
    from tf_multitier.distribute import sessions

    saver, begin = tf.train.Saver(), strategy.broadcast_variables()
    def error_of(call, kind):
        try:
            call()
        except kind as error:
            print("error", error.message.replace(chr(10), " "))
    def loses():  # as a step, when a process ends in the middle of an exchange
        raise tf.errors.UnavailableError(None, None, "Socket closed")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(begin)
        for i in range(3):
            session.run(train, {ids: [1, 2, 3]})
        if strategy.rank():
            signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
            os.kill(os.getpid(), signal.SIGSTOP)
            signal.pause()
        other = int(open(f"{folder}/worker1").read())
        while open(f"/proc/{other}/stat").read().rsplit(")")[-1].split()[0] != "T":
            pass
        answers, found = sessions._answers, []
        def answers_later(*given):
            found.append(answers(*given))
            os.kill(other, signal.SIGCONT)
            return found[-1]
        sessions._answers, sessions._LONGEST_ANSWER = answers_later, 2
        saver.save(session, folder + "/model")
        assert found[0] is False and found[-1] is True, found

        sessions._answers = answers
        error_of(lambda: session._do_call(loses), tf.errors.UnavailableError)
        end_task("worker1", signal.SIGUSR1)
        strategy._world.timeout = 3
        error_of(lambda: saver.save(session, folder + "/model"), tf.errors.DeadlineExceededError)
    sys.stdout.flush()
    os._exit(9)

main()
"""


def test_a_plain_session_names_what_to_do_when_a_rank_is_lost_and_saves_wait_for_the_timeout(
    tmp_path,
):
    begin, _ = ENDED.split("    with tf.train.MonitoredTrainingSession")
    lines, _ = launch(tmp_path, begin + SAVED_ALONE, "--workers=2", status=9, seconds=250)
    step, save = [line for line in lines["worker 0"] if line.startswith("error")]
    assert (
        "rank 0 of 2: expected all ranks to stay connected, found one that has ended: end" in step
    )
    assert "a save: rank 1 of 2 does not answer within 3 s: end all ranks" in save


# A step of rank 1 fails by itself, when a collective waits. Rank 0 begins that step then.
FAILED = """
    watch = next(op for op in tf.get_default_graph().get_operations() if op.type == "MultitierWatch")
    with tf.control_dependencies([watch]):
        fails = tf.debugging.Assert(tf.equal(ids[0], 0), ["the step of rank 1 fails"])
    try:
        os.mkfifo(f"{folder}/failed")
    except FileExistsError:
        pass
    with tf.train.MonitoredTrainingSession() as session:
        session.run(train, {ids: [1, 2, 3]})
        if strategy.rank():
            try:
                session.run([train, fails], {ids: [1, 2, 3]})
            except tf.errors.InvalidArgumentError as error:
                print("error", str(error).replace(chr(10), " "))
                open(f"{folder}/ended", "w").close()
        open(f"{folder}/failed", "w" if strategy.rank() else "r").close()  # each waits for the other
        if not strategy.rank():
            try:
                session.run(train, {ids: [1, 2, 3]})
            except tf.errors.FailedPreconditionError as error:
                print("error", str(error).replace(chr(10), " "))
                sys.stdout.flush()
                os._exit(9)

main()
"""


def test_a_rank_that_ends_after_a_step_of_its_own_failed_ends_the_steps_of_others(tmp_path):
    begin, _ = ENDED.split("    with tf.train.MonitoredTrainingSession")
    lines, _ = launch(tmp_path, begin + FAILED, "--workers=2", status=9)
    assert time.time() - (tmp_path / "ended").stat().st_mtime < 100
    assert "the step of rank 1 fails" in lines["worker 1"][-1]
    assert re.search(HAS_ENDED, lines["worker 0"][-1])


# Rank 0 loses the process of rank 1 after a step of both.
GONE = """
    class Lost(tf.train.SessionRunHook):
        def before_run(self, context):
            if lost:
                raise tf.errors.UnavailableError(None, None, "Socket closed")

    lost = []
    try:
        os.mkfifo(f"{folder}/trained")
    except FileExistsError:
        pass
    with tf.train.MonitoredTrainingSession(hooks=[Lost()]) as session:
        pid = os.pidfd_open(int(open(f"{folder}/worker1").read()))
        session.run(train, {ids: [1, 2, 3]})
        open(f"{folder}/trained", "r" if strategy.rank() else "w").close()  # each waits for the other
        if strategy.rank():
            os._exit(0)
        assert select.select([pid], [], [], 60)[0]
        lost.append(True)
        try:
            session.run(train, {ids: [1, 2, 3]})
        except tf.errors.FailedPreconditionError as error:
            print("error", error.message)
            sys.stdout.flush()
            os._exit(9)

main()
"""


def test_a_monitored_session_does_not_wait_for_a_rank_that_is_gone(tmp_path):
    begin, _ = ENDED.split("    with tf.train.MonitoredTrainingSession")
    lines, _ = launch(tmp_path, begin + GONE, "--workers=2", status=9, seconds=150)
    assert "rank 0 of 2: expected all ranks to stay connected" in lines["worker 0"][-1]


# Rank 1 does not come.
ABSENT = """
    try:
        tf.Session()
    except tf.errors.DeadlineExceededError as error:
        print("error", error.message)
        sys.stdout.flush()
        os._exit(9)

main()
"""


def test_a_session_waits_for_a_rank_that_does_not_come_for_the_timeout(tmp_path):
    begin, _ = ENDED.split("    with tf.train.MonitoredTrainingSession")
    begin = begin.replace("timeout=200", "timeout=3").replace(
        "    strategy =", "    if index: select.select([], [], [])\n    strategy ="
    )
    lines, _ = launch(tmp_path, begin + ABSENT, "--workers=2", status=9, seconds=150)
    assert "a session: rank 1 of 2 does not answer within 3 s" in lines["worker 0"][-1]


# Rank 1 is stopped after the first step, and goes on when rank 0 has its error.
STOPPED = """
    with tf.train.MonitoredTrainingSession() as session:
        session.run(train, {ids: [1, 2, 3]})
        if strategy.rank():
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        other = int(open(f"{folder}/worker1").read())
        while open(f"/proc/{other}/stat").read().rsplit(")")[-1].split()[0] != "T":
            pass
        try:
            session.run(train, {ids: [1, 2, 3]})
        except tf.errors.DeadlineExceededError as error:
            print("error", error.message.replace(chr(10), " "))
            sys.stdout.flush()
        os.kill(other, signal.SIGCONT)
        os._exit(9)

main()
"""


def test_a_step_names_the_rank_that_does_not_answer(tmp_path):
    begin, _ = ENDED.split("    with tf.train.MonitoredTrainingSession")
    begin = begin.replace("timeout=200", "timeout=20")
    lines, _ = launch(tmp_path, begin + STOPPED, "--workers=2", status=9, seconds=150)
    late = r"found one that is late or dead \(collective \d+ of this process, no answer from rank 1\): let train,"
    assert re.search(late, lines["worker 0"][-1])
