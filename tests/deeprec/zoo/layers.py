"""What several models build."""

import tensorflow as tf


def dnn(args, net, units, name, activation=tf.nn.relu, normalize=False):
    """Dense layers, each in a variable scope that is also its name."""
    for layer_id, num_hidden_units in enumerate(units):
        with tf.variable_scope(name + "_%d" % layer_id, reuse=tf.AUTO_REUSE) as layer_scope:
            net = tf.layers.dense(
                net,
                units=num_hidden_units,
                activation=activation,
                kernel_initializer=tf.glorot_uniform_initializer(),
                name=layer_scope,
            )
            if normalize:
                net = tf.layers.batch_normalization(net, training=not args.no_eval, trainable=True)
    return net


def sigmoid_loss(label, logits):
    return tf.losses.sigmoid_cross_entropy(
        label, logits, scope="loss", reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE
    )


def prelu(x, name):
    with tf.variable_scope(name_or_scope=name, default_name="prelu"):
        alpha = tf.get_variable(
            "prelu_" + name,
            shape=x.get_shape()[-1],
            dtype=x.dtype,
            initializer=tf.constant_initializer(0.1),
        )
        return tf.nn.relu(x) + alpha * (x - abs(x)) * tf.constant(0.5, dtype=x.dtype)


def attention_scores(query, facts, mask, name):
    """[batch, 1, steps]: how much each step of a history has to do with the query."""
    query = prelu(
        tf.layers.dense(query, facts.get_shape().as_list()[-1], activation=None, name="f1" + name),
        name,
    )
    queries = tf.reshape(tf.tile(query, [1, tf.shape(facts)[1]]), tf.shape(facts))
    both = tf.concat([queries, facts, queries - facts, queries * facts], axis=-1)
    hidden = tf.layers.dense(both, 16, activation=tf.nn.sigmoid, name="f1_att" + name)
    scores = tf.layers.dense(hidden, 1, activation=None, name="f3_att" + name)
    scores = tf.reshape(scores, [-1, 1, tf.shape(facts)[1]])
    paddings = tf.ones_like(scores) * (-(2**32) + 1)
    return tf.nn.softmax(tf.where(tf.expand_dims(mask, 1), scores, paddings))


def attention(query, facts, mask, name=""):
    """[batch, width]: the sum of a history, weighted by attention_scores."""
    return tf.reduce_sum(tf.matmul(attention_scores(query, facts, mask, name), facts), 1)
