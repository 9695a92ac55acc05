"""embedding_column(do_fusion=True) in a wide and deep model."""

import tensorflow as tf

import samples

if __name__ == "__main__":
    args = samples.parser().parse_args()
    tf.set_random_seed(2021)
    inputs, init_ops = samples.iterate(
        *[samples.click_rows(file, args) for file in samples.files_of(args)]
    )
    samples.run(
        samples.WideAndDeep(inputs, samples.wide_and_deep_columns(do_fusion=True), args),
        args,
        init_ops,
    )
