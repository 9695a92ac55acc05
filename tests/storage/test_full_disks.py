"""Tables without TensorFlow on full and read-only disks."""

import textwrap

import pytest
from engine_process import MOUNT
from engine_process import result
from engine_process import run
from engine_util import TYPES

FULL = MOUNT + textwrap.dedent("""
    import time

    directory, kind = arguments
    mount(directory, "size=6m")
    DIM, ROWS = 32, 200
    sizes = [ROWS * DIM * 4] * kind.count("_")
    table = engine.Table(dim=DIM, storage_type=kind, storage_path=directory, storage_size=sizes)
    random = np.random.default_rng(5)
    model = {}

    def train(keys):
        table.apply("sgd", keys, np.full((len(keys), DIM), -1.0), hyper={"learning_rate": 1.0})
        for key in keys.tolist():
            model[key] = model.get(key, 0) + 1

    def check():
        keys = np.arange(-100, max(model) + 100)
        expected = np.array([model.get(key, 0) for key in keys.tolist()], np.float32)
        found = table.lookup(keys)
        wrong = keys[(found != expected[:, None]).any(1)]
        assert len(wrong) == 0, (wrong[:10], [model.get(k) for k in wrong[:10].tolist()], found[np.isin(keys, wrong)][:10, 0])
        assert (table.frequency(keys) == expected).all() and len(table) == len(model)

    first, full = 0, None
    while full is None:  # new rows until the disk is full
        assert first < 200000
        try:
            train(np.arange(first, first + 100))
        except engine.ResourceExhaustedError as e:
            full = str(e)
        first += 100
    refused = 0
    for _ in range(5):  # it stays so, and nothing is lost
        try:
            train(np.arange(first, first + 3000))
        except engine.ResourceExhaustedError:
            refused += 1
    check()
    tiers = table.lookup_tier(np.array(sorted(model)))
    resident = np.array(sorted(model))[tiers == 0][:50]
    updated = 0
    if kind.startswith("DRAM"):
        for key in resident.tolist():
            try:
                train(np.array([key]))
                updated += 1
            except engine.ResourceExhaustedError:
                pass
    check()
    stored = len(model)
    remount(directory, "size=64m")
    begun = time.time()
    trained = 0
    while trained < 20:
        assert time.time() < begun + 30, "no training though there is space"
        try:
            train(random.integers(0, first, 200))
            trained += 1
        except engine.ResourceExhaustedError:
            pass
    for _ in range(20):
        train(np.arange(first, first + 100))
        first += 100
    check()
    table.drain()
    check()
    say({"full": full, "refused": refused, "resident": len(resident), "updated": updated, "stored": stored,
         "seconds": time.time() - begun})
""")


@pytest.mark.parametrize("kind", TYPES)
def test_full_disk_refuses_what_needs_room_and_goes_on_when_there_is_some(kind, tmp_path):
    said = result(run(FULL, str(tmp_path), kind))
    assert said["refused"] > 0 and said["stored"] > 1000
    if kind.startswith("DRAM"):
        assert said["updated"] == said["resident"] > 0, said


def test_a_read_only_directory_is_one_clear_error(tmp_path):
    said = result(
        run(
            MOUNT
            + textwrap.dedent("""
        directory = arguments[0]
        mount(directory, "size=4m")
        os.mkdir(directory + "/store")
        remount(directory, "size=4m", read_only=True)
        say({path: error(lambda: engine.Table(dim=4, storage_type="SSDHASH", storage_path=directory + path)) for path in ("", "/store", "/new")}
            | {"left": os.listdir(directory)})
    """),
            str(tmp_path),
        )
    )
    assert said.pop("left") == ["store"]
    for path, (name, message) in said.items():
        assert name == "EngineError", message
        assert str(tmp_path) + path in message and "Read-only file system" in message
