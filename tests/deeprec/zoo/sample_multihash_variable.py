"""A multihash variable for categories in a DIEN."""

import tensorflow as tf

import fed_dien


def tables(name, rows):
    if name != "cat":
        return fed_dien.static_table(name, rows)
    part = int(rows**0.5)
    return tf.get_multihash_variable(
        "cat_embedding_var",
        [[part, fed_dien.EMBEDDING_DIM], [int(rows / part) + 1, fed_dien.EMBEDDING_DIM]],
    )


if __name__ == "__main__":
    fed_dien.run(lambda counts: fed_dien.Model(counts, tables))
