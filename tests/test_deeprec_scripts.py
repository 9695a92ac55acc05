"""Multi-tier programs in DeepRec's way of writing run with their imports changed, and nothing else."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_IMPORTS = """
import tf_multitier.v1 as tf
from tf_multitier import config_pb2
"""

# What follows the imports is kept in the form that DeepRec's users know.
_VARIABLE = """
with tf.device('/cpu:0'):
  storage_option = tf.StorageOption(storage_type=config_pb2.StorageType.DRAM_SSDHASH,
                                    storage_path="/tmp/ssd_utpy",
                                    storage_size=[128])
  ev_opt = tf.EmbeddingVariableOption(storage_option=storage_option)

  var = tf.get_embedding_variable("var_0",
                                  embedding_dim=3,
                                  initializer=tf.ones_initializer(tf.float32),
                                  ev_option=ev_opt)

  emb = tf.nn.embedding_lookup(var, tf.cast([0,1,2,5,6,7], tf.int64))
  fun = tf.multiply(emb, 2.0, name='multiply')
  loss = tf.reduce_sum(fun, name='reduce_sum')
  opt = tf.train.AdagradOptimizer(0.1)

  g_v = opt.compute_gradients(loss)
  train_op = opt.apply_gradients(g_v)

  init = tf.global_variables_initializer()

sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
with tf.Session(config=sess_config) as sess:
  sess.run([init])
  print(sess.run([emb, train_op, loss]))
  print(sess.run([emb, train_op, loss]))
  print(sess.run([emb, train_op, loss]))
"""

_COLUMN = """
with tf.device('/cpu:0'):
  storage_option = tf.StorageOption(storage_type=config_pb2.StorageType.DRAM_SSDHASH,
                                    storage_path="/tmp/ssd_utpy",
                                    storage_size=[128])
  ev_opt = tf.EmbeddingVariableOption(storage_option=storage_option)

  columns = tf.feature_column.categorical_column_with_embedding("col_emb", dtype=tf.dtypes.int64, ev_option=ev_opt)
  W = tf.feature_column.embedding_column(categorical_column=columns,
                                         dimension=3,
                                         initializer=tf.ones_initializer(tf.dtypes.float32))

  ids={}
  ids["col_emb"] = tf.SparseTensor(indices=[[0,0],[1,1],[2,2],[3,3],[4,4]], values=tf.cast([1,2,3,4,5], tf.dtypes.int64), dense_shape=[5, 4])

  emb = tf.feature_column.input_layer(ids, [W])
  fun = tf.multiply(emb, 2.0, name='multiply')
  loss = tf.reduce_sum(fun, name='reduce_sum')
  opt = tf.train.AdagradOptimizer(0.1)
  g_v = opt.compute_gradients(loss)
  train_op = opt.apply_gradients(g_v)
  init = tf.global_variables_initializer()

with tf.Session() as sess:
    sess.run(init)
    print("init global done")
    print(sess.run([emb, train_op, loss]))
    print(sess.run([emb, train_op, loss]))
    print(sess.run([emb, train_op, loss]))
"""


def printed_by(program, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(_IMPORTS + program))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=_ROOT)
    environment.pop("TF2_BEHAVIOR", None)
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses_of(rows):
    """Losses of three Adagrad steps on so many rows of three ones."""
    value, accumulator, losses = np.float32(1), np.float32(0.1), []
    for _ in range(3):
        losses.append(value * 2 * 3 * rows)
        accumulator += np.float32(4)
        value -= np.float32(0.1) * np.float32(2) / np.sqrt(accumulator)
    return losses


def check(text, rows):
    losses = [float(x) for x in re.findall(r"None, (?:np\.float32\()?([0-9.]+)", text)]
    np.testing.assert_allclose(losses, losses_of(rows), rtol=1e-6)
    # The programs name a path of their own; what they put there went with them.
    assert not os.path.isdir("/tmp/ssd_utpy") or not [n for n in os.listdir("/tmp/ssd_utpy") if "var_0" in n or "col_emb" in n]


def test_a_variable_of_128_bytes_of_dram_over_ssd(tmp_path):
    check(printed_by(_VARIABLE, tmp_path), 6)


def test_a_column_of_128_bytes_of_dram_over_ssd(tmp_path):
    out = printed_by(_COLUMN, tmp_path)
    assert out.startswith("init global done\n")
    check(out, 5)
