"""tf_multitier.deeprec: the names that `install` and the command add or leave unchanged.

Installing changes the process, so a program of its own does it once (REPORT) and says what it saw; the tests read that.
"""

import json
import os
import subprocess
import sys

import forks
import pytest
import tensorflow as tf
from paths import ROOT

import tf_multitier
from tf_multitier import deeprec
from tf_multitier._src.tensorflow import deeprec_command as command
from tf_multitier.deeprec import name_map
from tf_multitier.deeprec import names
from tf_multitier.deeprec import refused_names
from tf_multitier.deeprec import stage

v1 = tf.compat.v1


QUIET = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")  # conftest.py sets them


REPORT = r"""
import json, sys
import tensorflow as tf
from tensorflow.python.client import session as tf_session
from tensorflow.python.feature_column import feature_column_v2, sequence_feature_column
from tensorflow.python.ops import embedding_ops, variable_scope, variables

v1 = tf.compat.v1
OPENED = (feature_column_v2, sequence_feature_column, embedding_ops, variable_scope, variables)

def snapshot():
    places = {n: m for n, m in sys.modules.items() if n == "tensorflow" or n.startswith("tensorflow._api.")}
    places.update((m.__name__, m) for m in OPENED)
    return {n: dict(vars(m)) for n, m in places.items()}

def differences(old, new):
    replaced = [f"{m}.{n}" for m in old for n in old[m] if m in new and n in new[m] and new[m][n] is not old[m][n]]
    gone = [f"{m}.{n}" for m in old for n in old[m] if n not in new.get(m, {})]
    added = {m: sorted(set(new[m]) - set(old.get(m, {}))) for m in new}
    return {"replaced": sorted(replaced), "gone": sorted(gone), "added": {m: n for m, n in added.items() if n},
            "modules": sorted(set(sys.modules) & {"tensorflow.contrib", "tensorflow.core.framework.embedding"})}

def is_resource():
    with tf.Graph().as_default():
        return v1.get_variable("v", [1]).__class__.__name__

report = {}
stock, init = snapshot(), tf_session.BaseSession.__init__
import tf_multitier
report["import"] = differences(stock, snapshot())
report["import"]["loaded"] = "tf_multitier.deeprec" in sys.modules
assert tf_multitier.deeprec.__name__ == "tf_multitier.deeprec"
report["import of deeprec"] = differences(stock, snapshot())
report["session"] = [tf_session.BaseSession.__init__ is init]

tf_multitier.deeprec.install(v1_behavior=False)
installed = snapshot()
report["install"] = differences(stock, installed)
report["eager"] = [tf.executing_eagerly()]
report["session"].append(tf_session.BaseSession.__init__ is init)
wrapped = tf_session.BaseSession.__init__

tf_multitier.deeprec.install()
report["again"] = differences(installed, snapshot())
report["eager"].append(tf.executing_eagerly())
report["session"].append(tf_session.BaseSession.__init__ is wrapped)
report["variable"] = is_resource()
report["same"] = {n: getattr(tf, n) is getattr(v1, n) for n in ("Session", "placeholder", "get_embedding_variable", "GraphKeys", "app")}

# The names at work, in TensorFlow 2's own module.
from tensorflow.core.framework.embedding import config_pb2
from tensorflow.contrib.layers.python.layers import feature_column as old_columns
from tensorflow.contrib.layers.python.layers import feature_column_ops, embedding_ops as old_embedding_ops
from tensorflow.contrib.feature_column import sequence_input_layer
from tensorflow.python.ops import kv_variable_ops
from tensorflow.python.training import adagrad_decay, adagrad_decay_v2, adam_async, weight_decay_optimizers
import tensorflow.contrib.layers as contrib_layers
assert tf.contrib.layers is contrib_layers and old_columns.embedding_column and feature_column_ops.input_from_feature_columns
assert adam_async.AdamAsyncOptimizer is tf.train.AdamAsyncOptimizer and adagrad_decay_v2.AdagradDecayOptimizerV2
option = tf.EmbeddingVariableOption(storage_option=tf.StorageOption(storage_type=config_pb2.DRAM))
with tf.device("/GPU:3"):
    table = variable_scope.get_embedding_variable("table", 2, tf.int64, tf.float32, tf.ones_initializer(tf.float32), None, True)
    rows = tf.nn.embedding_lookup(table, tf.constant([1, -1, 1], tf.int32))
    chosen = tf.cond(v1.placeholder_with_default(True, []), lambda: tf.nn.embedding_lookup(table, [7]), lambda: rows[:1])
    loss = tf.reduce_sum(rows) + tf.reduce_sum(chosen)
    optimizer = tf.train.AdagradDecayOptimizer(0.1, global_step=tf.train.get_or_create_global_step())
    step = optimizer.minimize(loss)
with tf.Session() as session:
    session.run(tf.get_collection(tf.GraphKeys.EV_INIT_VAR_OPS) + tf.get_collection(tf.GraphKeys.EV_INIT_SLOT_OPS))
    session.run(tf.global_variables_initializer())
    first = float(session.run(loss))  # by itself: the update does not wait for the value of the branch
    session.run(step)
    report["trained"] = [first, float(session.run(loss)), int(session.run(table.total_count())),
                         session.run(kv_variable_ops.lookup_tier(table, [1, 2])).tolist()]
report["collection"] = [v.name for v in tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES)]
meta = tf.train.export_meta_graph()
with tf.Graph().as_default():
    tf.train.import_meta_graph(meta)
    report["imported"] = [type(v).__name__ for v in tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES)]
print("REPORT" + json.dumps(report))
"""


SCRIPT = """
import importlib, sys
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tensorflow.train
import tensorflow.contrib.layers as contrib_layers
import tensorflow.python.ops.variable_scope as variable_scope
from tensorflow import losses
from tensorflow.feature_column import categorical_column_with_embedding
from tensorflow.python.framework import dtypes
import helper

assert __name__ == "__main__" and sys.argv[1:] == ["--flag", "x"], (__name__, sys.argv)
assert tf is tensorflow and helper.tf is tf and tf.reduce_sum is v1.reduce_sum and tf.losses is v1.losses and losses is tf.losses
assert tf.python.framework is sys.modules["tensorflow.python.framework"] and tf.__version__ == v1.__version__ and "Session" in dir(tf)
assert contrib_layers is tf.contrib.layers and tf.feature_column.categorical_column_with_embedding is categorical_column_with_embedding
assert tf.train.AdamOptimizer is v1.train.AdamOptimizer and tf.train.AdamWOptimizer(0.1)
real = sys.modules["tensorflow"]
assert real is not tf and importlib.import_module("tensorflow") is real
assert real.reduce_sum is not tf.reduce_sum  # a module in the script's directory sees TensorFlow 2
try:
    import tensorflow.contrib.slim
except ModuleNotFoundError as error:
    assert "tensorflow.contrib.slim" in str(error)

columns = [tf.feature_column.embedding_column(tf.feature_column.categorical_column_with_embedding("a"), 4)]
net = tf.feature_column.input_layer({"a": tf.constant([["x"], ["y"]])}, columns)
assert net.shape[-1].value == 4
step = tf.train.AdamAsyncOptimizer(0.1).minimize(tf.losses.mean_squared_error(tf.ones([2, 4]), net))

def main(_):
    with tf.train.MonitoredTrainingSession() as session:
        session.run(step)
    tf.logging.info("done")
    print("ran main")

if __name__ == "__main__":
    tf.app.run(argv=[""])
"""


# What programs import from DeepRec's modules, {module: names}; looked for by NAMES_PROGRAM.
NAMES = {
    "tensorflow": "get_embedding_variable get_multihash_variable get_dynamic_dimension_embedding_variable EmbeddingVariableOption "
    "StorageOption InitializerOption CounterFilter CBFFilter GlobalStepEvict L2WeightEvict CheckpointOption Session "
    "placeholder global_variables_initializer ConfigProto train.Saver train.AdagradOptimizer train.AdamOptimizer "
    "train.FtrlOptimizer train.GradientDescentOptimizer train.AdamAsyncOptimizer train.AdagradDecayOptimizer "
    "train.AdagradDecayOptimizerV2 train.AdamWOptimizer nn.group_embedding_lookup nn.group_embedding_lookup_sparse "
    "feature_column.categorical_column_with_embedding feature_column.group_embedding_column_scope "
    "config.experimental.enable_distributed_strategy config.experimental.enable_group_embedding ExecutorPolicy GPUOptions "
    "GraphOptions OptimizerOptions nn.fused_embedding_lookup_sparse nn.fused_safe_embedding_lookup_sparse "
    "variable_scope.keep_weights staged make_prefetch_hook prefetch_join train.mark_target_node",
    "tensorflow.python.ops.work_queue": "WorkQueue",
    "tensorflow.python.data.experimental.ops.parquet_dataset_ops": "ParquetDataset DataFrame.Field read_parquet",
    "tensorflow.python.data.experimental.ops.dataframe": "DataFrame.Value to_sparse unbatch_and_to_sparse",
    "tensorflow.core.framework.embedding.config_pb2": "StorageType CacheStrategy StorageType.DRAM StorageType.DRAM_SSDHASH StorageType.HBM_DRAM_SSDHASH CacheStrategy.LFU",
    "tensorflow.python.ops.kv_variable_ops": "EmbeddingVariable MultiHashVariable DynamicEmbeddingVariable lookup_tier lookup_resource",
    "tensorflow.python.ops.variable_scope": "get_embedding_variable get_multihash_variable get_dynamic_dimension_embedding_variable get_variable",
    "tensorflow.python.ops.variables": "EmbeddingVariableOption StorageOption InitializerOption CounterFilter CBFFilter GlobalStepEvict "
    "L2WeightEvict CheckpointOption global_variables_initializer",
    "tensorflow.python.framework.ops": "GraphKeys.EV_INIT_VAR_OPS GraphKeys.EV_INIT_SLOT_OPS GraphKeys.EMBEDDING_VARIABLES",
    "tensorflow.python.feature_column.feature_column_v2": "categorical_column_with_embedding categorical_column_with_multihash categorical_column_with_adaptive_embedding",
    "tensorflow.python.feature_column.feature_column": "categorical_column_with_embedding input_layer",
    "tensorflow.python.feature_column.sequence_feature_column": "sequence_categorical_column_with_embedding",
    "tensorflow.python.ops.embedding_ops": "fused_embedding_lookup_sparse fused_safe_embedding_lookup_sparse",
    "tensorflow.python.distribute.group_embedding_collective_strategy": "CollectiveStrategy",
    "tensorflow.contrib.rnn": "GRUCell LSTMCell LSTMStateTuple",
    "tensorflow.contrib.rnn.python.ops.core_rnn_cell": "_Linear",
    "tensorflow.python.ops.array_ops": "stack unstack",
    "tensorflow.python.ops.control_flow_ops": "Assert while_loop cond case",
    "tensorflow.python.ops.rnn_cell": "GRUCell ops math_ops array_ops vs",
    "tensorflow.python.util.nest": "is_sequence",
    "tensorflow.python.training.adam_async": "AdamAsyncOptimizer",
    "tensorflow.python.training.adagrad_decay": "AdagradDecayOptimizer",
    "tensorflow.python.training.adagrad_decay_v2": "AdagradDecayOptimizerV2",
    "tensorflow.python.training.weight_decay_optimizers": "AdamWOptimizer",
    "tensorflow.contrib.layers": "sparse_column_with_embedding embedding_column shared_embedding_columns input_from_feature_columns "
    "weighted_sum_from_feature_columns",
    "tensorflow.contrib.layers.python.layers.embedding_ops": "safe_embedding_lookup_sparse fused_safe_embedding_lookup_sparse",
    "tensorflow.contrib.layers.python.layers.feature_column": "sparse_column_with_embedding sparse_column_wth_embedding",
    "tensorflow.contrib.layers.python.layers.feature_column_ops": "input_from_feature_columns",
    "tensorflow.contrib.feature_column": "sequence_input_layer",
}


# Each name as programs get at it: `from module import name`, and as an attribute of the imported module.
NAMES_PROGRAM = r"""
NAMES = {names!r}
absent = []
for module, names in NAMES.items():
    for name in names.split():
        first, *rest = name.split(".")
        try:
            space = {{"__name__": "__main__"}}
            exec(f"from {{module}} import {{first}} as found\nimport {{module}} as imported\nassert imported.{{name}} is not None", space)
            for part in rest:
                space["found"] = getattr(space["found"], part)
        except Exception as error:
            absent.append((module, name, str(error)))
print(absent)
"""


def _run(*arguments, **kwargs):
    environ = dict(
        os.environ,
        PYTHONPATH=ROOT,
        TF_CPP_MIN_LOG_LEVEL="3",
        TF_ENABLE_ONEDNN_OPTS="0",
        CUDA_VISIBLE_DEVICES="",
    )
    return forks.run(arguments, environ, **kwargs)


@pytest.fixture(scope="module")
def report():
    done = _run("-c", REPORT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("REPORT")[1])


# ---- install


def test_without_installing_nothing_changes(report):
    nothing = {"replaced": [], "gone": [], "added": {}, "modules": []}
    assert report["import"] == {**nothing, "loaded": False}
    assert report["import of deeprec"] == nothing
    assert report["session"][0]


def test_installing_replaces_one_name(report):
    assert report["install"]["replaced"] == ["tensorflow.ones_initializer"]
    assert report["install"]["gone"] == []


def test_installing_adds_the_names_of_tensorflow_1_and_deeprec(report):
    added = report["install"]["added"]
    assert {
        "Session",
        "ConfigProto",
        "placeholder",
        "global_variables_initializer",
        "get_embedding_variable",
        "StorageOption",
        "EmbeddingVariableOption",
        "CounterFilter",
        "GlobalStepEvict",
        "contrib",
        "app",
        "logging",
    } <= set(added["tensorflow"])
    assert len(added["tensorflow"]) > 300
    assert {
        "AdagradOptimizer",
        "Saver",
        "MonitoredTrainingSession",
        "AdamAsyncOptimizer",
        "AdagradDecayOptimizerV2",
        "AdamWOptimizer",
    } <= set(added["tensorflow._api.v2.train"])
    assert {
        "input_layer",
        "categorical_column_with_embedding",
        "categorical_column_with_adaptive_embedding",
    } <= set(added["tensorflow._api.v2.feature_column"])
    assert report["install"]["modules"] == [
        "tensorflow.contrib",
        "tensorflow.core.framework.embedding",
    ]
    assert all(report["same"].values())


def test_tensorflow_1s_own_module_gets_deeprecs_names_only(report):
    added = report["install"]["added"]
    assert set(added["tensorflow._api.v2.compat.v1"]) == {
        "contrib",
        "estimator",
        "stream",
        *names.VARIABLES,
        *stage.STAGE,
        *refused_names.REFUSED["tensorflow"],
        "CBFFilter",
        "CheckpointOption",
        "CounterFilter",
        "EmbeddingVariableOption",
        "GlobalStepEvict",
        "InitializerOption",
        "L2WeightEvict",
        "StorageOption",
    }
    assert set(added["tensorflow._api.v2.compat.v1.train"]) == {
        *tf_multitier.train.__all__,
        *stage.TRAIN,
    }
    assert set(added["tensorflow._api.v2.compat.v1.config.experimental"]) == set(names.CONFIG)


def test_installing_twice_is_installing_once(report):
    assert report["again"]["replaced"] == [] and report["again"]["added"] == {}
    assert report["session"] == [True, False, True]


def test_graphs_and_sessions_unless_names_only(report):
    assert report["eager"] == [True, False]
    assert report["variable"] == "ResourceVariable"


def test_the_names_train_a_variable_placed_on_a_gpu_that_is_not_there(report):
    first, second, count, tiers = report["trained"]
    assert first == 8.0 and second < first
    assert count == 3 and tiers == [0, -1]
    assert report["collection"] == ["table:0"] and report["imported"] == ["EmbeddingVariable"]


def test_a_name_that_another_package_took_is_refused_before_anything_changes(monkeypatch):
    monkeypatch.setattr(tf.nn, "group_embedding_lookup_sparse", print, raising=False)
    monkeypatch.setattr(names, "lookups", lambda: {"group_embedding_lookup_sparse": run_lookups})
    with pytest.raises(
        RuntimeError,
        match=r"nn\.group_embedding_lookup_sparse: expected none, .*built-in function print",
    ):
        deeprec.install()
    assert (
        not hasattr(tf, "Session")
        and "tensorflow.contrib" not in sys.modules
        and not deeprec._installed
    )


def run_lookups():
    """Stands for a lookup."""


def test_a_module_that_another_package_made_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow.contrib", os)
    with pytest.raises(
        RuntimeError, match="tensorflow.contrib: expected none, TensorFlow's or ours, found"
    ):
        name_map.add()
    assert not hasattr(tf, "Session")


@pytest.mark.skipif(
    os.environ.get("TF_MULTITIER_TEST_BEHAVIOR") == "v1", reason="needs tf.function"
)
def test_installing_inside_a_function_is_refused():
    with pytest.raises(RuntimeError, match="not inside tf.function"):
        tf.function(lambda: deeprec.install())()
    assert not hasattr(tf, "Session")


# ---- the command


def test_a_script_sees_tensorflow_1_with_deeprecs_names(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("import tensorflow as tf\n")
    done = _run("-m", "tf_multitier.deeprec", str(tmp_path / "script.py"), "--flag", "x")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "ran main"


@pytest.mark.parametrize("way", ["command", "install"])
def test_every_name_that_programs_import_is_there(tmp_path, way):
    program = NAMES_PROGRAM.format(names=NAMES)
    script = tmp_path / "names.py"
    script.write_text(
        program
        if way == "command"
        else "import tf_multitier\ntf_multitier.deeprec.install()\n" + program
    )
    done = _run(*(["-m", "tf_multitier.deeprec"] if way == "command" else []), str(script))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments, status",
    [([], 2), (["--help"], 0), (["no/such/file.py", "x"], 2), (["--nonsense", "x"], 2)],
)
def test_the_command_says_how_it_is_used(capsys, arguments, status):
    with pytest.raises(SystemExit) as exit_:
        command.parse(arguments)
    assert exit_.value.code == status
    captured = capsys.readouterr()
    assert (
        "python3 -m tf_multitier.deeprec [-h] [--deprecations] SCRIPT [ARGS]"
        in captured.out + captured.err
    )
    assert ("SCRIPT: expected a file, found 'no/such/file.py'" in captured.err) == (
        len(arguments) == 2 and arguments[1] == "x" and arguments[0] != "--nonsense"
    )
    assert ("TF_USE_LEGACY_KERAS" in captured.out) == (status == 0)


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        ([], 2, "the following arguments are required: SCRIPT\n"),
        (["none.py"], 2, "SCRIPT: expected a file, found 'none.py'\n"),
        (["--help"], 0, ""),
    ],
)
def test_its_own_messages_come_without_those_of_tensorflow(arguments, status, message):
    environ = {n: v for n, v in os.environ.items() if n not in QUIET} | {"PYTHONPATH": ROOT}
    line = [sys.executable, "-m", "tf_multitier.deeprec", *arguments]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == status
    lines = done.stderr.splitlines(keepends=True)
    assert lines[2:] == [] and "".join(lines[1:]).endswith(message)


def test_arguments_after_the_script_are_the_scripts():
    parsed = command.parse(["--deprecations", __file__, "--help", "-x", "--deprecations", "y"])
    assert (parsed.deprecations, parsed.arguments) == (
        True,
        ["--help", "-x", "--deprecations", "y"],
    )
