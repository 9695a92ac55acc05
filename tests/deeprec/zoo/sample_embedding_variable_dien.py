"""An embedding variable for items in a DIEN, with an InitializerOption."""

import tensorflow as tf

import fed_dien


def tables(name, rows):
    if name != "mid":
        return fed_dien.static_table(name, rows)
    init_opt = tf.InitializerOption(
        initializer=tf.glorot_uniform_initializer, default_value_dim=rows
    )
    ev_opt = tf.EmbeddingVariableOption(init_option=init_opt)
    return tf.get_embedding_variable(
        "mid_embedding_var", embedding_dim=fed_dien.EMBEDDING_DIM, ev_option=ev_opt
    )


if __name__ == "__main__":
    fed_dien.run(lambda counts: fed_dien.Model(counts, tables))
