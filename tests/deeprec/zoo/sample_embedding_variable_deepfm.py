"""Columns over embedding variables, without options, in a DeepFM."""

import tensorflow as tf

import samples


def categorical(name):
    return tf.feature_column.categorical_column_with_embedding(name, dtype=tf.string)


if __name__ == "__main__":
    args = samples.parser().parse_args()
    tf.set_random_seed(2021)
    inputs, init_ops = samples.iterate(
        *[samples.click_rows(file, args) for file in samples.files_of(args)]
    )
    samples.run(samples.DeepFM(inputs, samples.deepfm_columns(categorical), args), args, init_ops)
