"""What the tests of tables without TensorFlow share: storage types, training, rows to compare, damaged files."""

import os

import numpy as np

from tf_multitier import engine

STRESS = os.environ.get("TF_MULTITIER_STRESS") == "1"

# Every storage type with a tier below DRAM, or instead of it.
TYPES = (
    "PMEM",
    "LEVELDB",
    "SSDHASH",
    "DRAM_PMEM",
    "DRAM_LEVELDB",
    "DRAM_SSDHASH",
    "DRAM_PMEM_LEVELDB",
    "DRAM_PMEM_SSDHASH",
)


def kept(path, kind="DRAM_SSDHASH", rows=4, **options):
    """A table of dim 4 that outlives its process. Each tier except the last holds `rows` rows."""
    uniform = {} if "initializer" in options else {"initializer": "uniform", "a": -1.0, "b": 1.0}
    options = {**uniform, "seed": 3, "name": "ev", **options}
    return engine.Table(
        dim=4,
        storage_type=kind,
        storage_path=path,
        storage_size=[rows * 32] * kind.count("_"),
        keep=True,
        **options,
    )


def train(table, keys, step=-1):
    """One step of Adagrad on a table of dim 4."""
    keys = np.asarray(keys)
    grads = np.sin(np.arange(4 * len(keys), dtype=np.float32)).reshape(-1, 4)
    hyper = dict.fromkeys(engine.update_rules()["adagrad"].hyperparameters, 0.1)
    table.apply("adagrad", keys, grads, hyper=hyper, global_step=step)


def by_key(rows):
    """{key: (bytes of the row with its slots, frequency, version)} of exported or salvaged rows."""
    return {
        k: (rows.data[i].tobytes(), rows.frequencies[i], rows.versions[i])
        for i, k in enumerate(rows.keys.tolist())
    }


def content(table):
    return by_key(table.export())


def flip(path, offset, bit=0):
    """Flips one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def files_of(path):
    """The files below a folder that are not empty, without LevelDB's logs of events."""
    return sorted(
        os.path.join(base, name)
        for base, _, names in os.walk(path)
        for name in names
        if os.path.getsize(os.path.join(base, name)) and name != "LOG" and name != "LOG.old"
    )
