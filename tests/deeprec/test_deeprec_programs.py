"""Programs as DeepRec's users write them. Each runs in a separate process, in up to three ways:

    command    python3 -m tf_multitier.deeprec SCRIPT, the program as it is
    install    tf_multitier.deeprec.install() before it
    imports    only its imports changed: tf_multitier.v1 and config_pb2

The programs make the calls of the examples in DeepRec's manual (multi-tier storage, grouped lookup, multihash variables), in their
order.
"""

import os
import re

import forks
import numpy as np
import pytest
from paths import ROOT

INSTALL = "import tensorflow as tf\nimport tf_multitier\ntf_multitier.deeprec.install()\n"
IMPORTS = (
    "import tensorflow as tf\nfrom tensorflow.core.framework.embedding import config_pb2\n",
    "import tf_multitier.v1 as tf\nfrom tf_multitier import config_pb2\n",
)


def run_program(directory, text, way="command"):
    """The output of the program. Fails the test if the program fails."""
    if way == "imports":
        assert IMPORTS[0] in text
        text = text.replace(*IMPORTS)
    script = directory / "program.py"
    script.write_text(INSTALL + text if way == "install" else text)
    environ = dict(
        os.environ,
        PYTHONPATH=ROOT,
        TF_CPP_MIN_LOG_LEVEL="3",
        TF_ENABLE_ONEDNN_OPTS="0",
        CUDA_VISIBLE_DEVICES="",
    )
    command = ["-m", "tf_multitier.deeprec"] if way == "command" else []
    done = forks.run([*command, str(script)], environ, directory)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", text)]


def adagrad_from_ones(gradients, steps, rate=0.1):
    """Values of one element before each of `steps` Adagrad steps with a constant gradient."""
    value, accumulator, values = np.float32(1), np.float32(0.1), []
    for _ in range(steps):
        values.append(float(value))
        accumulator += np.float32(gradients) ** 2
        value -= np.float32(rate) * np.float32(gradients) / np.sqrt(accumulator)
    return values


STORAGE_WAYS = """
import tensorflow as tf
from tensorflow.core.framework.embedding import config_pb2

storage = tf.StorageOption(storage_type=config_pb2.StorageType.DRAM_SSDHASH, storage_path="ssd", storage_size=[512])
option = tf.EmbeddingVariableOption(storage_option=storage)
table = tf.get_embedding_variable("table", embedding_dim = 16, ev_option=option)

from tensorflow.contrib.layers.python.layers import feature_column
old_column = feature_column.sparse_column_wth_embedding("key", ev_option=option)
column = tf.feature_column.categorical_column_with_embedding("key", ev_option=option)
print(table.storage_type, old_column == column, column.name)
"""

STORAGE_VARIABLE = """
import tensorflow as tf
from tensorflow.core.framework.embedding import config_pb2
with tf.device('/cpu:0'):
  storage = tf.StorageOption(storage_type=config_pb2.StorageType.DRAM_SSDHASH, storage_path="ssd", storage_size=[128])
  option = tf.EmbeddingVariableOption(storage_option=storage)
  table = tf.get_embedding_variable("table", embedding_dim=3, initializer=tf.ones_initializer(tf.float32), ev_option=option)
  rows = tf.nn.embedding_lookup(table, tf.cast([0,1,2,5,6,7], tf.int64))
  loss = tf.reduce_sum(tf.multiply(rows, 2.0, name='multiply'), name='reduce_sum')
  optimizer = tf.train.AdagradOptimizer(0.1)
  gradients = optimizer.compute_gradients(loss)
  step = optimizer.apply_gradients(gradients)
  init = tf.global_variables_initializer()

config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
with tf.Session(config=config) as session:
  session.run([init])
  for _ in range(3):
    print(session.run([rows, step, loss])[2])
"""

STORAGE_COLUMN = """
import tensorflow as tf
from tensorflow.core.framework.embedding import config_pb2

with tf.device('/cpu:0'):
  storage = tf.StorageOption(storage_type=config_pb2.StorageType.DRAM_SSDHASH, storage_path="ssd", storage_size=[128])
  option = tf.EmbeddingVariableOption(storage_option=storage)
  keys = tf.feature_column.categorical_column_with_embedding("key", dtype=tf.dtypes.int64, ev_option=option)
  embedding = tf.feature_column.embedding_column(categorical_column=keys, dimension=3,
                                                 initializer=tf.ones_initializer(tf.dtypes.float32))
  features={}
  features["key"] = tf.SparseTensor(indices=[[0,0],[1,1],[2,2],[3,3],[4,4]], values=tf.cast([1,2,3,4,5], tf.dtypes.int64),
                                    dense_shape=[5, 4])
  net = tf.feature_column.input_layer(features, [embedding])
  loss = tf.reduce_sum(tf.multiply(net, 2.0, name='multiply'), name='reduce_sum')
  optimizer = tf.train.AdagradOptimizer(0.1)
  gradients = optimizer.compute_gradients(loss)
  step = optimizer.apply_gradients(gradients)
  init = tf.global_variables_initializer()

with tf.Session() as session:
    session.run(init)
    for _ in range(3):
        print(session.run([net, step, loss])[2])
"""

GROUP_LOOKUP = """
import tensorflow as tf
{strategy}
option = tf.EmbeddingVariableOption(evict_option=None, filter_option=None)
with tf.device('/GPU:{{}}'.format(0)):
  wide = tf.get_embedding_variable("wide", embedding_dim=16, initializer=tf.ones_initializer(tf.float32), ev_option=option)
  narrow = tf.get_embedding_variable("narrow", embedding_dim=8, initializer=tf.ones_initializer(tf.float32), ev_option=option)
ids = tf.RaggedTensor.from_row_splits(values=[3, 1, 4, 1, 5, 9, 2, 6], row_splits=[0, 4, 4, 7, 8, 8])
tables = [wide, narrow]
indices = [ids for _ in range(2)]
combiners = ["sum", "sum"]
pooled = tf.nn.group_embedding_lookup_sparse(tables, indices, combiners)
init = tf.global_variables_initializer()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = "0"
config.gpu_options.allow_growth = True
with tf.Session(config=config) as session:
  session.run(init)
  for out in session.run([pooled])[0]:
    print(out.shape, out[:, 0].tolist(), (out == out[:, :1]).all())
"""

# As in the manual, `tf` is not imported: each example there continues the one before.
GROUP_COLUMNS = """
from tensorflow.python.feature_column import feature_column as fc_old
from tensorflow.python.framework import dtypes
{strategy}
option = tf.EmbeddingVariableOption(evict_option=None, filter_option=None)
with tf.feature_column.group_embedding_column_scope(name="item"):
  ad0 = tf.feature_column.categorical_column_with_embedding(key='ad0', dtype=dtypes.int64, ev_option=option)
  ad0_column = tf.feature_column.embedding_column(categorical_column=ad0, dimension=20,
                                                  initializer=tf.constant_initializer(0.5))
  ad1_column = tf.feature_column.embedding_column(
      tf.feature_column.categorical_column_with_embedding(key='ad1', dtype=dtypes.int64, ev_option=option),
      dimension=30, initializer=tf.constant_initializer(0.5))
with tf.feature_column.group_embedding_column_scope(name="user"):
  user0_column = tf.feature_column.embedding_column(
      tf.feature_column.categorical_column_with_embedding(key='user0', dtype=dtypes.int64, ev_option=option),
      dimension=20, initializer=tf.constant_initializer(0.5))
columns = [ad0_column, ad1_column, user0_column]
features={{}}
for key in ["ad0", "ad1", "user0"]:
  features[key] = tf.SparseTensor(indices=[[0,0],[0,1],[1,1],[2,2],[3,3],[4,3],[4,4]],
                                  values=tf.cast([1,3,2,3,4,5,3], tf.dtypes.int64), dense_shape=[5, 5])
with tf.device('{device}'):
  net = tf.feature_column.input_layer(features, columns)
  doubled = tf.multiply(net, 2.0, name='multiply')
  loss = tf.reduce_sum(doubled, name='reduce_sum')
  optimizer = tf.train.FtrlOptimizer(0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001)
  gradients = optimizer.compute_gradients(loss)
  step = optimizer.apply_gradients(gradients)
  init = tf.global_variables_initializer()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = "0"
config.gpu_options.allow_growth = True
with tf.Session(config=config) as session:
  session.run(init)
  first, _, before = session.run([doubled, step, loss])
  print(first.shape, before, session.run(loss) != before)
"""


MULTIHASH_VARIABLE = """
import tensorflow as tf

def main(unused_argv):
  table = tf.get_multihash_variable("table", [[2,2],[2,2]], complementary_strategy="Q-R", operation="concat",
                                    initializer=tf.ones_initializer)
  rows = tf.nn.embedding_lookup(table, [0,1,2,3])
  loss = tf.reduce_sum(tf.multiply(rows, 2.0, name='multiply'), name='reduce_sum')
  optimizer = tf.train.AdagradOptimizer(0.1)
  gradients = optimizer.compute_gradients(loss)
  step = optimizer.apply_gradients(gradients)
  init = tf.global_variables_initializer()
  with tf.Session() as session:
    session.run([init])
    for _ in range(3):
      print(session.run([rows, step, loss])[2])

if __name__=="__main__":
  tf.app.run()
"""

MULTIHASH_COLUMN = """
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.feature_column import feature_column_v2 as fc2

ids = fc2.categorical_column_with_multihash("key", dims = (2,2))
column = tf.feature_column.embedding_column(categorical_column=ids, dimension=(2,3),
                                            initializer=tf.ones_initializer(tf.dtypes.float32))
features={}
features["key"] = tf.SparseTensor(indices=[[0,0],[1,1],[2,2],[3,3]], values=tf.cast([0,1,2,3], tf.dtypes.int64),
                                  dense_shape=[4, 4])
net = tf.feature_column.input_layer(features, [column])
loss = tf.reduce_sum(tf.multiply(net, 2.0, name='multiply'), name='reduce_sum')
optimizer = tf.train.AdagradOptimizer(0.1)
gradients = optimizer.compute_gradients(loss)
step = optimizer.apply_gradients(gradients)
init = tf.global_variables_initializer()
with tf.Session() as session:
    session.run(init)
    for _ in range(3):
        print(session.run([net, step, loss])[2])
"""


def test_ways_to_ask_for_tiered_storage(tmp_path):
    assert run_program(tmp_path, STORAGE_WAYS).split() == ["DRAM_SSDHASH", "True", "key"]


@pytest.mark.parametrize("way", ["command", "install", "imports"])
@pytest.mark.parametrize(
    "program, elements", [(STORAGE_VARIABLE, 18), (STORAGE_COLUMN, 15)], ids=["variable", "column"]
)
def test_training_on_tiered_storage(tmp_path, program, elements, way):
    losses = numbers(run_program(tmp_path, program, way))
    np.testing.assert_allclose(
        losses, [2 * elements * value for value in adagrad_from_ones(2, 3)], rtol=1e-5
    )
    assert os.listdir(tmp_path / "ssd") == []  # the variable's files went with the program


STRATEGIES = {
    "alone": "",
    "collective": 'tf.config.experimental.enable_distributed_strategy(strategy="collective")',
}


@pytest.mark.parametrize(
    "strategy, way", [("alone", "command"), ("collective", "command"), ("alone", "install")]
)
def test_grouped_lookup_on_a_gpu_that_is_not_there(tmp_path, strategy, way):
    printed = run_program(
        tmp_path, GROUP_LOOKUP.format(strategy=STRATEGIES[strategy]), way
    ).splitlines()
    assert printed == [f"({5}, {dim}) [4.0, 0.0, 3.0, 1.0, 0.0] True" for dim in (16, 8)]


@pytest.mark.parametrize(
    "strategy, device, way",
    [
        ("alone", "/gpu:0", "command"),
        ("collective", "/GPU:0", "command"),
        ("alone", "/gpu:0", "install"),
    ],
)
def test_grouped_columns_on_a_gpu_that_is_not_there(tmp_path, strategy, device, way):
    printed = run_program(
        tmp_path, GROUP_COLUMNS.format(strategy=STRATEGIES[strategy], device=device), way
    )
    assert printed.split() == ["(5,", "70)", "350.0", "True"]


def test_training_a_multihash_variable(tmp_path):
    """Each of its rows is of two ids."""
    losses = numbers(run_program(tmp_path, MULTIHASH_VARIABLE))
    np.testing.assert_allclose(
        losses, [2 * 16 * value for value in adagrad_from_ones(4, 3)], rtol=1e-5
    )


def test_training_a_multihash_column(tmp_path):
    losses = numbers(run_program(tmp_path, MULTIHASH_COLUMN))
    np.testing.assert_allclose(
        losses, [2 * 20 * value for value in adagrad_from_ones(4, 3)], rtol=1e-5
    )
