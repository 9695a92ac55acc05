"""A script's modules below `tensorflow.python` and `tensorflow.core`: DeepRec's arguments, whichever way they are imported."""

import os

import forks
from paths import ROOT

_IMPORTS = """
import tensorflow as tf
import tensorflow.python.ops.embedding_ops as by_name
import tensorflow.core.protobuf.config_pb2 as config_by_name
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import ops
from tensorflow.python.feature_column import feature_column, feature_column_v2
from tensorflow.python.ops import embedding_ops, gen_math_ops, rnn
from tensorflow.python.ops.embedding_ops import embedding_lookup
from tensorflow.python.training import checkpoint_utils, monitored_session

for module in (by_name, embedding_ops, ops.embedding_ops, tf.python.ops.embedding_ops, tf.nn):
    assert module.embedding_lookup is embedding_lookup, module
assert feature_column.input_layer is tf.feature_column.input_layer
assert feature_column_v2.weighted_categorical_column is tf.feature_column.weighted_categorical_column
assert config_by_name.ConfigProto is config_pb2.ConfigProto is tf.ConfigProto
assert monitored_session.MonitoredTrainingSession is tf.train.MonitoredTrainingSession
assert checkpoint_utils.load_variable is tf.train.load_variable
assert tf.python.framework.ops.Graph is tf.Graph and gen_math_ops.add and rnn.dynamic_rnn
assert config_pb2.RunOptions is tf.RunOptions
from tensorflow.python.ops import fused_embedding_ops, prefetch
assert prefetch.staged is tf.staged
assert fused_embedding_ops.fused_embedding_lookup_sparse is tf.nn.fused_embedding_lookup_sparse
import tensorflow.contrib.layers as layers
for place, name in ((tf.contrib, "opt"), (layers, "fully_connected")):
    try:
        getattr(place, name)
    except AttributeError as error:
        assert "docs/deeprec.md" in str(error)
    else:
        assert False, name
assert not hasattr(tf.contrib, "opt")
"""

_ARGUMENTS = """
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_lib
from tensorflow.python.feature_column import feature_column as fc, feature_column_v2 as fc2
from tensorflow.python.framework import dtypes, sparse_tensor
from tensorflow.python.ops import embedding_ops, init_ops, math_ops, variable_scope, variables

ones = init_ops.ones_initializer(dtypes.float32)
table = variable_scope.get_dynamic_dimension_embedding_variable("d", 2, 2, initializer=ones)
blocks = embedding_ops.embedding_lookup(table, math_ops.cast([1, 2], dtypes.int64), blocknums=[2, 1])
ids = lambda indices, shape: sparse_tensor.SparseTensor(indices, math_ops.cast([1, 3, 2], dtypes.int64), shape)
multihash = fc2.embedding_column(fc2.categorical_column_with_multihash("m", dims=(5, 3)), dimension=(2, 3), initializer=ones)
weighted = fc2.embedding_column(
    fc2.weighted_categorical_column(fc2.categorical_column_with_embedding("w", dtype=dtypes.int64), "weight"),
    dimension=2, initializer=ones, combiner="sum")
features = {"m": ids([[0, 0], [1, 0], [1, 1]], [2, 2]), "w": ids([[0, 0], [0, 1], [1, 1]], [2, 2]), "weight": [[2.0], [5.0], [4.0]]}
config = config_pb2.ConfigProto()
config.graph_options.optimizer_options.do_op_fusion = True
tensors = [blocks, fc.input_layer(features, [multihash]), fc.input_layer(features, [weighted])]
with session_lib.Session(config=config) as session:
    session.run(variables.global_variables_initializer())
    print([tensor.tolist() for tensor in session.run(tensors)])
"""

_CHECKPOINT = """
import tensorflow as tf
whole = tf.get_embedding_variable("whole", 2, initializer=tf.zeros_initializer(),
                                  ev_option=tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2)))
parts = tf.get_embedding_variable("parts", 3, partitioner=tf.fixed_size_partitioner(2))
ids = tf.constant([7, 7, 5, 9], tf.int64)
loss = tf.reduce_sum(tf.nn.embedding_lookup(whole, ids)) + tf.reduce_sum(tf.nn.embedding_lookup(parts, ids))
step = tf.train.AdagradOptimizer(1.0).minimize(loss, tf.train.get_or_create_global_step())
saver = tf.train.Saver()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(step)
    path = saver.save(session, "model")
load = lambda name: tf.train.load_variable(path, name)
assert load("whole-keys").tolist() == [7] and load("whole-freqs").tolist() == [2] and load("whole-versions").tolist() == [0]
assert load("whole-values").shape == (1, 2) and (load("whole-values") < 0).all()
assert load("whole/Adagrad-keys").tolist() == [7] and (load("whole/Adagrad-values") > 4).all()
assert sorted(load("whole-keys_filtered").tolist()) == [5, 9] and load("whole-freqs_filtered").tolist() == [1, 1]
keys = load("parts/part_0-keys").tolist() + load("parts/part_1-keys").tolist()
assert sorted(keys) == [5, 7, 9], keys
assert load("global_step") == 1 and load("global_step:0") == 1
from tensorflow.contrib.framework.python.framework import checkpoint_utils
listed = dict(checkpoint_utils.list_variables(path))
assert listed["whole-values"] == [1, 2] and listed["whole-keys_filtered"] == [2] and listed["global_step"] == []
assert len(listed) == 1 + 1 * (7 + 4) + 2 * (7 + 4), sorted(listed)
for name, shape in listed.items():
    assert list(load(name).shape) == shape, name
reader = tf.train.load_checkpoint(path)
assert reader.has_tensor("whole-keys") and not reader.has_tensor("other")
assert reader.get_variable_to_dtype_map()["whole-keys"] == tf.int64
for bad in (lambda: load("whole-nothing"), lambda: tf.train.load_variable("no/such", "whole-keys")):
    try:
        bad()
    except tf.errors.NotFoundError as error:
        print(type(error).__name__)
"""


def run(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    environ = dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    done = forks.run(["-m", "tf_multitier.deeprec", "program.py"], environ, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_each_way_to_import_gives_the_same_functions(tmp_path):
    run(tmp_path, _IMPORTS)


def test_functions_of_modules_below_python_take_deeprecs_arguments(tmp_path):
    blocks, multihash, weighted = eval(run(tmp_path, _ARGUMENTS))
    assert blocks == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert multihash == [[1] * 5] * 2
    assert weighted == [[7, 7], [4, 4]]


def test_tensors_of_embedding_variables_are_read_by_deeprecs_names(tmp_path):
    assert run(tmp_path, _CHECKPOINT).split() == ["NotFoundError"] * 2
