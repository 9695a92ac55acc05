"""Tables whose process is killed at random moments: recovery gives back all that was acknowledged."""

import os
import time

import pytest
from engine_process import run
from engine_util import STRESS

# kill -9 at random moments. A process forks a life of the table after the other: each opens what the one before left, compares it
# with the oracle, and trains, removes and flushes until it is killed. Before an operation it is written to a pipe, a flush after it.
# The oracle holds for each key the states that it may have: that of the last acknowledged flush, and all later ones.
LIVES = """
    import pickle, random, select, struct, time

    path, kind, rounds, seconds, seed = arguments
    DIM, KEYS = 64, (np.arange(1500, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    random.seed(seed)
    states = {key: [None] for key in KEYS.tolist()}  # None: absent; else (step, step before)
    step = 0

    def live(write, step, seed):
        random = np.random.default_rng(seed)
        tell = lambda *event: os.write(write, struct.pack("<I", len(data := pickle.dumps(event))) + data)
        if instance is None:
            table = engine.Table(dim=DIM, slots=[("m", DIM, 0.0)], storage_type=kind, storage_path=path,
                                 storage_size=[20 * DIM * 8] * kind.count("_"), keep=True)
        else:
            table = engine.Table.open(instance)
        rows = table.export()
        found = {}
        for key, version, row in zip(rows.keys.tolist(), rows.versions.tolist(), rows.data):
            value, slot = row[0], row[DIM]
            if key not in states or not (row[:DIM] == version).all() or not (row[DIM:] == slot).all():
                return tell("wrong", f"torn or foreign row {key}: {version} {row}")
            found[key] = (version, int(version + slot))
        for key, allowed in states.items():
            if found.get(key) not in allowed:
                return tell("wrong", f"{key}: found {found.get(key)}, expected one of {allowed}")
        tell("opened", table.path, found)
        while True:
            choice = random.random()
            if choice < 0.1:
                table.flush()
                tell("flushed")
            elif choice < 0.2:
                keys = random.choice(KEYS, 20, replace=False)
                tell("remove", keys.tolist())
                table.remove(keys)
            elif choice < 0.2 + 0.002:
                table.close()
                return tell("flushed")
            else:
                step += 1
                keys = random.choice(KEYS, 200, replace=False)
                old = table.lookup(keys)[:, :1]
                tell("apply", step, list(zip(keys.tolist(), old[:, 0].astype(int).tolist())))
                table.apply("momentum", keys, np.repeat(old - step, DIM, 1), slots=["m"], global_step=step,
                            hyper={name: float(name == "learning_rate") for name in
                                   engine.update_rules()["momentum"].hyperparameters})

    def events(data):
        while len(data) >= 4 and len(data) >= 4 + (n := struct.unpack_from("<I", data)[0]):
            yield pickle.loads(data[4:4 + n])
            data = data[4 + n:]

    instance, lives, applies, flushes, start = None, 0, 0, 0, time.time()
    while lives < rounds and time.time() < start + seconds:
        lives += 1
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                live(write, step, random.getrandbits(32))
            except BaseException as e:
                import traceback
                data = pickle.dumps(("wrong", traceback.format_exc()))
                os.write(write, struct.pack("<I", len(data)) + data)
            os._exit(0)
        os.close(write)
        data = b""
        # Not before the first instance is there; then at any moment, recovery included.
        until = None
        if instance is not None and random.random() < 0.2:
            until = time.time() + random.random() * 0.03
        while until is None or time.time() < until:
            if select.select([read], [], [], 0.01 if until is None else max(0, until - time.time()))[0]:
                chunk = os.read(read, 1 << 20)
                if not chunk:
                    break
                data += chunk
                if until is None:
                    until = time.time() + random.random() * 0.25
        os.kill(pid, signal.SIGKILL)
        while chunk := os.read(read, 1 << 20):
            data += chunk
        os.close(read)
        os.waitpid(pid, 0)
        for event in events(data):
            if event[0] == "wrong":
                say({"wrong": event[1], "lives": lives})
                sys.exit()
            elif event[0] == "opened":
                instance = event[1]
                states = {key: [event[2].get(key)] for key in states}
            elif event[0] == "apply":
                applies += 1
                step = event[1]
                for key, old in event[2]:
                    states[key].append((step, old))
            elif event[0] == "remove":
                for key in event[1]:
                    states[key].append(None)
            else:
                flushes += 1
                states = {key: known[-1:] for key, known in states.items()}
    say({"lives": lives, "applies": applies, "flushes": flushes, "wrong": None})
"""


@pytest.mark.parametrize(
    "kind, asynchronous",
    [("DRAM_SSDHASH", 0), ("DRAM_SSDHASH", 1), ("DRAM_PMEM_SSDHASH", 1)],
)
def test_killed_at_random_moments_nothing_acknowledged_is_lost(kind, asynchronous, tmp_path):
    rounds = int(os.environ.get("TF_MULTITIER_KILL_ROUNDS", "1000" if STRESS else "25"))
    seconds = rounds * 2  # ends earlier on a machine that is too slow
    seed = time.time_ns() % 2**32
    said = run(
        LIVES,
        str(tmp_path),
        kind,
        rounds,
        seconds,
        seed,
        environment={"TF_SSDHASH_ASYNC_COMPACTION": str(asynchronous)},
    )
    print(f"seed {seed}: {said}")
    assert said["wrong"] is None, f"seed {seed}: life {said['lives']}: {said['wrong']}"
    assert said["applies"] > 0 and said["flushes"] > 0
