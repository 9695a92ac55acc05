"""AdamAsyncOptimizer, with a learning rate that is fed, for a DIEN."""

import tensorflow as tf

import fed_dien

if __name__ == "__main__":
    fed_dien.run(lambda counts: fed_dien.Model(counts, optimizer=tf.train.AdamAsyncOptimizer))
