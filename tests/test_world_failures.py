"""Ranks of a world that are killed or stopped: the others end within the timeout, and all go on from the last checkpoint."""

from cluster_util import launch

# Of three lives, rank 1 is killed in the first and rank 0 stopped in the second. Each step trains the keys 0 to 9.
PROGRAM = """
import time
import tensorflow as tf
import tf_multitier
from tf_multitier.distribute import CollectiveStrategy
from tf_multitier.distribute.checkpoints import CheckpointManager

TIMEOUT, STEPS, EVERY = 15, 30, 10
life = sum(os.path.exists(f"{folder}/life{i}-{index}") for i in range(3))
open(f"{folder}/life{life}-{index}", "w").close()
strategy = CollectiveStrategy(timeout=TIMEOUT)
with strategy.scope():
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", storage_path=f"{folder}/rows{index}", storage_size=1 << 20)
    users = tf_multitier.get_embedding_variable(
        "users", 4, initializer=tf.zeros_initializer(), ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage)
    )
optimizer = tf_multitier.optimizers.SGD(1.0)
manager = CheckpointManager(
    strategy, tf.train.Checkpoint(users=users, optimizer=optimizer), folder + "/shared"
)
manager.restore_or_initialize()

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(tf.nn.embedding_lookup(users, tf.range(10)))
    optimizer.apply_gradients(zip(strategy.reduce_gradients(tape.gradient(loss, list(users)), "sum"), users))

print("life", life, "from", int(optimizer.iterations))
while int(optimizer.iterations) < STEPS:
    if (life, index, int(optimizer.iterations)) in ((0, 1, 14), (1, 0, 27)):
        os.kill(os.getpid(), (signal.SIGKILL, signal.SIGSTOP)[life])
    begin = time.monotonic()
    try:
        step()
    except tf.errors.OpError as error:
        print("waited", time.monotonic() - begin, "rank_" in str(error) or "/task:1" in str(error))
        sys.stdout.flush()
        os._exit(1)
    if int(optimizer.iterations) % EVERY == 0:
        manager.save(int(optimizer.iterations))
frequency, values = users.get_frequency(range(10)).numpy(), users.peek(range(10)).numpy()
assert (frequency == 2 * STEPS).all() and (values == 2.0 * STEPS).all(), (frequency, values)
print("trained", int(optimizer.iterations), "rows", int(users.total_count()))
strategy.barrier()
"""


def test_ranks_that_are_killed_or_stopped_end_the_others_and_all_go_on_from_the_checkpoint(
    tmp_path,
):
    lines, ends = launch(tmp_path, PROGRAM, "--workers=2", "--max_restarts=2")
    rank_0, rank_1 = lines["worker 0"], lines["worker 1"]
    assert [each for each in rank_0 if each.startswith("life")] == [
        "life 0 from 0",
        "life 1 from 10",
        "life 2 from 20",
    ]
    waited = [
        [each.split() for each in lines if each.startswith("waited")] for lines in (rank_0, rank_1)
    ]
    # TensorFlow may end a process itself whose leader, rank 0, is stopped.
    assert len(waited[0]) == 1 and len(waited[1]) <= 1
    for _, seconds, names_a_rank in waited[0] + waited[1]:
        assert float(seconds) < 15 + 5 and names_a_rank == "True"
    rows = [int(each[-1].split()[-1]) for each in (rank_0, rank_1)]
    assert sum(rows) == 10 and rank_0[-1].startswith("trained 30")
    assert [end.split(" ", 1)[1] for end in ends if "again" in end] == [
        "all start again, 1 of 2",
        "all start again, 2 of 2",
    ], ends
