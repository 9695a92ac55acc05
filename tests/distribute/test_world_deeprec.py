"""DeepRec's scripts, and Horovod's names in them, in a world of processes."""

import pytest

from cluster_util import launch
from tf_multitier._src.tensorflow import deeprec_command

_LAUNCHER = "tensorflow.python.distribute.launch"
_KINDS = {
    "horovod": """
import horovod.tensorflow as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(float(size)))
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
os.environ["TF_CONFIG"] = "{}"  # as with another cluster resolver
assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
mine = tf.constant([1.0 + rank])
found = [hvd.allreduce(mine, op=hvd.Sum), hvd.broadcast(tf.constant([10 + rank]), 0)]
found += tf.gradients(hvd.allreduce(5.0 * mine, op=hvd.Sum) * tf.stop_gradient(mine), [mine])
try:
    hvd.alltoall
except AttributeError as error:
    print("refused", error)
""",
    "strategy": """
from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy
import tf_multitier
own = tf_multitier.distribute.CollectiveStrategy()
strategy = CollectiveStrategy()
assert strategy._strategy is own
scope = strategy.scope()
scope.__enter__()
rank, size = strategy.rank(), strategy.world_size()
optimizer, hooks, found = tf.train.GradientDescentOptimizer(float(size)), [], []

def signature():
    with strategy.embedding_scope():
        table = tf.get_embedding_variable("table", embedding_dim=4)
    ids = tf.placeholder(tf.int64, [None])
    return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": tf.nn.embedding_lookup(table, ids)})

def export():
    return strategy.export_saved_model(folder + "/exported", folder + "/model", signature)
""",
    "enable": """
tf.config.experimental.enable_distributed_strategy("collective")
rank, size = index, len(TF_CONFIG["cluster"]["worker"])

class Own(tf.train.GradientDescentOptimizer):
    calls = []

    def minimize(self, *args, **kwargs):
        return self.apply_gradients(self.compute_gradients(*args), more="given", **kwargs)

    def apply_gradients(self, *args, more="lost", **kwargs):
        self.calls.append(more)
        return super().apply_gradients(*args, **kwargs)

optimizer, hooks, found = Own(float(size)), [], []
""",
}
_TRAIN = """
import numpy as np
table = tf.get_embedding_variable("table", embedding_dim=4, initializer=tf.zeros_initializer())
weights = tf.get_variable("weights", [4, 1])
ids = tf.placeholder(tf.int64, [None])
rows = tf.nn.embedding_lookup(table, ids)
loss = -tf.reduce_sum(rows) - tf.reduce_sum(tf.matmul(tf.stop_gradient(rows), weights))
train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
export = globals().get("export", lambda: None)
print("calls", getattr(optimizer, "calls", []))
every = tf.nn.embedding_lookup(table, np.arange(50))
with tf.train.MonitoredTrainingSession(hooks=hooks, checkpoint_dir=folder + "/model") as session:
    for i in range(5):
        session.run(train, {ids: np.arange(10 * rank, 10 * rank + 15 + i)})
    batches = [np.arange(10 * q, 10 * q + 15 + i) for q in range(size) for i in range(5)]
    expected = np.bincount(np.concatenate(batches), minlength=50)
    print("exact", session.run(every)[:, 0].astype(int).tolist() == expected.tolist())
    print("weights", session.run(weights).tobytes().hex())
    print("found", [each.tolist() for each in session.run(found)])
print("exported", export() is not None)
"""


@pytest.mark.parametrize("kind", _KINDS)
def test_a_script_trains_in_two_processes_as_in_one(tmp_path, kind):
    code = "import tensorflow as tf\n" + _KINDS[kind] + _TRAIN
    if kind == "horovod":
        command = ["-m", _LAUNCHER, "--workers=2", "python3"]
        lines, _ = launch(tmp_path, code, *command, module="tf_multitier.deeprec")
    else:
        # The launcher imports TensorFlow before the programs set this.
        command = ["--workers=2", "-m", "tf_multitier.deeprec"]
        lines, _ = launch(tmp_path, code, *command, TF_USE_LEGACY_KERAS="1")
    assert len(lines) == 2
    exported = {name: "exported True" in its for name, its in lines.items()}
    assert exported == {"worker 0": kind == "strategy", "worker 1": False}
    for its in lines.values():
        assert "exact True" in its
        if kind == "enable":
            assert "calls ['given']" in its
        if kind == "horovod":
            assert any("refused horovod.tensorflow.alltoall does not exist" in line for line in its)
            assert "found [[3.0], [10], [15.0]]" in its
    assert len({line for its in lines.values() for line in its if line.startswith("weights")}) == 1


@pytest.mark.parametrize(
    ("devices", "options", "workers"),
    [("0,1", [], "2"), ("", [], "1"), ("-1", [], "1"), ("0", ["--workers=3"], "3")],
)
def test_deeprecs_launcher_starts_a_process_for_each_device(
    monkeypatch, tmp_path, devices, options, workers
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    (tmp_path / "train.py").touch()
    script = [str(tmp_path / "train.py"), "--steps", "3"]
    found = deeprec_command.launched(["-m", _LAUNCHER, *options, "/usr/bin/python3", *script])
    assert found == [f"--workers={workers}", "-m", "tf_multitier.deeprec", *script]
    assert deeprec_command.launched(script) is None
