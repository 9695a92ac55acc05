"""The memory of the processes of a world, over many steps whose sizes all differ.

    python3 -m tf_multitier.launch --workers=2 benchmarks/world_memory.py [--steps=100000]

Each process prints its resident memory, in MiB, every 5,000 steps. A step looks up two tables, of dim 8, with 1 to 2,048 ids of 5,000 each,
and trains them and a dense variable. Tables are full after the first steps.
"""

import os

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf

import tf_multitier

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 100_000, "Steps.", lower_bound=1)

IDS, MOST, DIM = 5_000, 2_048, 8


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def main(_):
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf_multitier.distribute.CollectiveStrategy(timeout=300)
    with strategy.scope():
        tables = [tf_multitier.get_embedding_variable(name, DIM) for name in ("users", "items")]
    weights = tf.Variable(tf.fill([2 * DIM, 1], 0.1))
    optimizer = tf_multitier.optimizers.Adagrad(0.05)
    dense_optimizer = tf.compat.v1.train.AdagradOptimizer(0.05)
    variables = [part for table in tables for part in table]

    @tf.function(input_signature=[tf.TensorSpec([2, None], tf.int64)])
    def step(ids):
        bags = [tf.RaggedTensor.from_uniform_row_length(ids[i], 1).to_sparse() for i in range(2)]
        with tf.GradientTape() as tape:
            x = tf_multitier.nn.group_embedding_lookup_sparse(tables, bags, "mean", concat=True)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
        *grads, dense = strategy.reduce_gradients(tape.gradient(loss, [*variables, weights]))
        optimizer.apply_gradients(zip(grads, variables))
        dense_optimizer.apply_gradients([(dense, weights)])

    random = np.random.default_rng(strategy.rank())
    for i in range(FLAGS.steps + 1):
        step(tf.constant(random.integers(0, IDS, (2, int(MOST ** random.random())))))
        if i % 5_000 == 0:
            print(i, resident(), flush=True)


if __name__ == "__main__":
    app.run(main)
