"""Importing tf_multitier prints nothing and changes nothing for objects that are not embedding variables."""

import os
import subprocess
import sys

import forks
import pytest
import tensorflow as tf
from paths import ROOT
from tensorflow.python.training import device_setter

from tf_multitier._src.tensorflow import internals


# Builds a stock training graph, twice: before and after the import. Prints a line for each thing that must not differ.
STOCK_GRAPH = r"""
import hashlib, sys
import tensorflow as tf
v1 = tf.compat.v1
if BEHAVIOR == "v1":
    v1.disable_v2_behavior()

def graph_bytes(use_resource):
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        step = v1.train.get_or_create_global_step()
        features = {"a": v1.placeholder(tf.string, [None], "a"), "b": v1.placeholder(tf.float32, [None], "b")}
        columns = [tf.feature_column.embedding_column(tf.feature_column.categorical_column_with_hash_bucket("a", 20), 4),
                   tf.feature_column.numeric_column("b")]
        x = v1.feature_column.input_layer(features, columns)
        logits = v1.feature_column.linear_model(features, columns[1:])
        with v1.variable_scope("tower", partitioner=v1.fixed_size_partitioner(2), use_resource=use_resource):
            table = v1.get_variable("table", [100, 5])
        dense = v1.get_variable("dense", [5, 1], use_resource=use_resource)
        ids = tf.SparseTensor(tf.constant([[0, 0], [1, 0]], tf.int64), tf.constant([1, 2], tf.int64), [2, 1])
        h = tf.nn.embedding_lookup_sparse(table, ids, None) + v1.nn.embedding_lookup(table, [3, 4])
        h += v1.nn.safe_embedding_lookup_sparse(list(table), ids) + tf.gather(dense, [0]) * 0.0
        loss = tf.reduce_sum(h @ dense) + tf.reduce_sum(x) + tf.reduce_sum(logits)
        train = v1.train
        # All have the compute_gradients of one class.
        grads, variables = zip(*train.GradientDescentOptimizer(0.1).compute_gradients(loss))
        grads, _ = tf.clip_by_global_norm(grads, 1.0)
        for optimizer in (train.GradientDescentOptimizer(0.1), train.MomentumOptimizer(0.1, 0.9), train.AdagradOptimizer(0.1),
                          train.AdamOptimizer(), train.RMSPropOptimizer(0.1, centered=True), train.FtrlOptimizer(0.1),
                          train.AdadeltaOptimizer(), train.ProximalAdagradOptimizer(0.1)):
            optimizer.apply_gradients(zip(grads, variables), global_step=step)
        train.Saver(max_to_keep=3)
        v1.global_variables_initializer()
        with v1.device(train.replica_device_setter(2)):
            v1.get_variable("placed", [3])
        meta = train.export_meta_graph(clear_devices=False)
    with tf.Graph().as_default():
        train.import_meta_graph(meta)
        again = train.export_meta_graph()
    return [hashlib.sha256(m.graph_def.SerializeToString(deterministic=True)).hexdigest() for m in (meta, again)]

def keras_result():
    if BEHAVIOR == "v1":
        return None
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(tf.ones([8, 3]), tf.ones([8, 1]), verbose=0)
    embedding = tf.keras.layers.Embedding(10, 2)
    return [w.tobytes().hex() for w in model.get_weights()] + [embedding(tf.constant([1])).numpy().tobytes().hex()]

def eager_result():
    if BEHAVIOR == "v1":
        return None
    variable = tf.Variable([[1.0], [2.0]])
    v1.train.AdagradOptimizer(0.1).minimize(lambda: tf.reduce_sum(tf.nn.embedding_lookup(variable, [1, 1]) ** 2), var_list=[variable])
    return variable.numpy().tolist()

def everything():
    return [graph_bytes(True), graph_bytes(False), keras_result(), eager_result()]
before = everything()
import tf_multitier
after = everything()
print("SAME" if before == after else f"DIFFERENT {before} {after}")
"""


def _run(code):
    return forks.run(["-c", code], env=dict(os.environ, PYTHONPATH=ROOT))


@pytest.mark.parametrize("behavior", ["v1", "v2"])
def test_stock_graphs_are_the_same_byte_for_byte_before_and_after_the_import(behavior):
    run = _run(f"BEHAVIOR = {behavior!r}\n{STOCK_GRAPH}")
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip().splitlines()[-1] == "SAME"


KERAS_CLASSES = r"""
import hashlib, keras, tensorflow as tf

def classes():
    found = {}
    todo = [object]
    while todo:
        for one in type.__subclasses__(todo.pop()):
            if str(one.__module__).split(".")[0] == "keras" and one not in found:
                found[one] = {name: id(value) for name, value in vars(one).items() if name != "__doc__"}
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return found

def trained():
    keras.utils.set_random_seed(3)
    ids = keras.Input((2,), dtype="int64")
    values = keras.layers.Flatten()(keras.layers.Embedding(10, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(values))
    model.compile("adam", "mse")
    model.fit(tf.range(20)[:, None] % 10 + [[0, 0]], tf.ones([20, 1]), shuffle=False, verbose=0)
    return [weight.tobytes() for weight in model.get_weights()]

before = trained()
seen = set()
classes_before = classes()
assert keras.layers.Embedding in classes_before and keras.optimizers.Adam in classes_before
import tf_multitier.keras
seen = set()
classes_after = classes()
for one, names in classes_before.items():
    ignored = {"__abstractmethods__", "_abc_impl", "__annotations__", "__weakref__"}
    changed = {n for n in names | classes_after[one] if names.get(n) != classes_after[one].get(n)} - ignored
    assert not changed, (one, changed)
assert trained() == before
print("SAME")
"""


def test_importing_the_keras_layers_changes_no_class_of_keras_and_no_bit_of_its_training():
    run = _run(KERAS_CLASSES)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip().splitlines()[-1] == "SAME"


def test_importing_prints_nothing_and_loads_no_keras():
    code = (
        "import sys; import tensorflow; loaded = set(sys.modules); print('--', flush=True); print('--', file=sys.stderr, "
        "flush=True); import tf_multitier, tf_multitier.v1; "
        "assert not [m for m in set(sys.modules) - loaded if m.split('.')[0] == 'keras']"
    )
    run = _run(code)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("--")[1].strip() == "" and run.stderr.split("--\n")[-1].strip() == ""


def test_another_minor_version_of_tensorflow_is_refused_at_import_in_one_sentence():
    run = _run(
        "import sys, types; info = types.ModuleType('tf_multitier._build_info'); info.OPS = {'2.17': '', '2.18': ''}; "
        "sys.modules['tf_multitier._build_info'] = info; import tf_multitier"
    )
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ImportError: tf_multitier was built for TensorFlow 2.17, 2.18 and cannot be used with the installed "
        f"TensorFlow {tf.__version__}"
    )


def test_wrappers_keep_name_and_signature():
    for name, original in internals.wrapped_functions().items():
        assert original.__name__ == name.rsplit(".", 1)[-1]
    ours = ("MultitierEmbeddingVariableHandle", "MultitierHbmEmbeddingVariableHandle")
    assert device_setter.STANDARD_PS_OPS[-2:] == ours
    assert not set(ours) & set(device_setter.STANDARD_PS_OPS[:-2])


def test_only_a_table_in_persistent_memory_needs_libpmem(tmp_path):
    (tmp_path / "libpmem.so.1").write_text("of another program")
    program = f"""
from tf_multitier import engine
for type, rows in (("DRAM_SSDHASH", [64, 64]), ("PMEM", [64]), ("DRAM_PMEM", [64, 64])):
    try:
        engine.Table(4, storage_type=type, storage_path={str(tmp_path)!r}, storage_rows=rows)
    except engine.FailedPreconditionError as error:
        print(type, error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ, PYTHONPATH=ROOT, LD_LIBRARY_PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = run.stdout.strip().splitlines()
    assert [line.split()[0] for line in lines] == ["PMEM", "DRAM_PMEM"]
    for line in lines:
        assert "expected libpmem.so.1, found none that can be loaded (" in line
        assert "install the package libpmem1" in line
