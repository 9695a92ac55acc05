"""A world whose ranks are killed or stopped: the others end within the timeout, and all go on from the last checkpoint."""

from cluster_util import launch

# In each life but the last, a rank gets a signal at a random moment after it has begun a step or a save. Each step trains the keys 0 to 9.
PROGRAM = """
import re, threading, time
import tensorflow as tf
import tf_multitier
from tf_multitier.distribute import CollectiveStrategy
from tf_multitier.distribute.checkpoints import CheckpointManager

TIMEOUT, STEPS, EVERY = 15, 100 + 40 * len(ENDS), 10
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's would end a rank before its own error does
life = sum(os.path.exists(f"{folder}/life{i}-{index}") for i in range(len(ENDS)))
open(f"{folder}/life{life}-{index}", "w").close()
strategy = CollectiveStrategy(timeout=TIMEOUT)
with strategy.scope():
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", storage_path=f"{folder}/rows{index}", storage_size=1 << 20)
    users = tf_multitier.get_embedding_variable(
        "users", 4, initializer=tf.zeros_initializer(), ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage)
    )
optimizer = tf_multitier.optimizers.SGD(1.0)
manager = CheckpointManager(
    strategy, tf.train.Checkpoint(users=users, optimizer=optimizer), folder + "/shared", max_deltas=2
)
manager.restore_or_initialize()

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(tf.nn.embedding_lookup(users, tf.range(10)))
    optimizer.apply_gradients(zip(strategy.reduce_gradients(tape.gradient(loss, list(users)), "sum"), users))

def check():
    frequency, values = users.get_frequency(range(10)).numpy(), users.peek(range(10)).numpy()
    steps = int(optimizer.iterations)
    assert (frequency == 2 * steps).all() and (values == 2.0 * steps).all(), (steps, frequency, values)

def end(number):
    open(f"{folder}/ended{life}", "w").write(str(time.time()))
    os.kill(os.getpid(), number)

def begins(what):
    if life < len(ENDS) and ENDS[life][:2] == [index, what]:
        ENDS[life][2] -= 1
        if ENDS[life][2] == 0:
            threading.Timer(ENDS[life][3], end, ENDS[life][4:]).start()

check()
print("life", life, "from", int(optimizer.iterations))
did_step = False
while int(optimizer.iterations) < STEPS:
    begin = time.monotonic()
    try:
        begins("step")
        step()
        if life and not did_step:
            print("recovered", life, time.time() - float(open(f"{folder}/ended{life - 1}").read()))
        did_step, begin = True, time.monotonic()
        if int(optimizer.iterations) % EVERY == 0:
            begins("save")
            manager.save(int(optimizer.iterations))
    except tf.errors.OpError as error:
        text = str(error)
        names = re.search(r"rank[_ ]\\d|/task:\\d", text) and not re.search(f"in the same step(?!.*no answer from rank {1 - index})", text)
        print("waited", life, time.monotonic() - begin, bool(names))
        sys.stdout.flush()
        os._exit(1)
check()
print("trained", int(optimizer.iterations), "rows", int(users.total_count()))
strategy.barrier()
"""


def check(folder, ends, late=5):
    """Runs a world of two, in which a rank ends in each of these ways in turn. Returns the seconds after which steps went on.

    ends: of each life but the last: rank, what it has begun, for which time in its life, seconds after that, signal. late: the most seconds
    from the strategy's timeout to the error of another rank.
    """
    number = len(ends)
    arguments = ("--workers=2", f"--max_restarts={number}")
    # The launcher kills only after a rank has had the time for its own error.
    lines, said = launch(
        folder,
        f"ENDS = {ends}\n{PROGRAM}",
        *arguments,
        seconds=300 + 60 * number,
        LAUNCH_GRACE="25",
    )
    found = [lines["worker 0"], lines["worker 1"]]
    lives = [[each.split() for each in own if each.startswith("life")] for own in found]
    assert lives[0] == lives[1] and [int(each[1]) for each in lives[0]] == list(range(number + 1))
    begun = [int(each[3]) for each in lives[0]]
    assert begun == sorted(begun) and not any(step % 10 for step in begun)
    waited = [[each.split() for each in own if each.startswith("waited")] for own in found]
    # TensorFlow may end a process itself whose leader, rank 0, is dead or stopped.
    for _, _, seconds, names_a_rank in waited[0] + waited[1]:
        assert float(seconds) < 15 + late and names_a_rank == "True"
    rows = [int(own[-1].split()[-1]) for own in found]
    assert sum(rows) == 10 and found[0][-1].startswith(f"trained {100 + 40 * number}")
    assert [end.split(" ", 1)[1] for end in said if "again" in end] == [
        f"all start again, {i} of {number}" for i in range(1, number + 1)
    ], said
    return (
        begun,
        waited,
        [float(each.split()[2]) for each in found[0] if each.startswith("recovered")],
    )
