"""AdagradDecayOptimizer for the deep part of a wide and deep model."""

import tensorflow as tf

import samples

if __name__ == "__main__":
    args = samples.parser().parse_args()
    tf.set_random_seed(2021)
    inputs, init_ops = samples.iterate(
        *[samples.click_rows(file, args) for file in samples.files_of(args)]
    )
    model = samples.WideAndDeep(
        inputs,
        samples.wide_and_deep_columns(),
        args,
        tf.train.AdagradDecayOptimizer,
        global_step=tf.train.get_or_create_global_step(),
    )
    samples.run(model, args, init_ops)
