"""Wide & Deep: a linear model over ids and a deep one over their embeddings, each with an optimizer of its own."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    wide, deep = [], []
    with zoo.group_scope(args):
        for name in zoo.CONTINUOUS + zoo.CATEGORICAL:
            if name in zoo.CONTINUOUS:
                column = zoo.numeric(name)
                wide.append(column)
                deep.append(column)
            else:
                wide.append(
                    tf.feature_column.categorical_column_with_hash_bucket(
                        name, hash_bucket_size=args.buckets, dtype=tf.string
                    )
                )
                deep.append(zoo.embedding(args, zoo.categorical(args, name), args.embedding_dim))
    return wide, deep


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        wide, deep = columns
        with tf.variable_scope("dnn"):
            with zoo.input_scope(args, "input_from_feature_columns"):
                net = zoo.input_layer(args, features, deep)
                zoo.summarize(net, "input_from_feature_columns")
            with zoo.layer_scope(args, "dnn_layers"):
                net = zoo.full(
                    args,
                    layers.dnn(
                        args, zoo.half(args, net), [32 * args.width, 16 * args.width], "hiddenlayer"
                    ),
                )
                with tf.variable_scope("logits") as logits_scope:
                    dnn_logits = tf.layers.dense(net, units=1, activation=None, name=logits_scope)
        with tf.variable_scope("linear"):
            fusion = {} if args.tf or not args.emb_fusion else {"do_fusion": args.emb_fusion}
            linear_logits = tf.feature_column.linear_model(
                units=1,
                features=features,
                feature_columns=wide,
                sparse_combiner="sum",
                weight_collections=None,
                trainable=True,
                **fusion,
            )
        logits = tf.add_n([dnn_logits, linear_logits])
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, tf.squeeze(logits))
        self._train(args)

    def _train(self, args):
        global_step = tf.train.get_or_create_global_step()
        linear = tf.train.FtrlOptimizer(
            learning_rate=0.2, l1_regularization_strength=0.0, l2_regularization_strength=0.0
        )
        scopes = [
            (zoo.optimizer_of(args, global_step), "dnn", global_step),
            (linear, "linear", None),
        ]
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train_op = tf.group(
                *[
                    optimizer.minimize(
                        self.loss,
                        var_list=tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=scope),
                        global_step=step,
                    )
                    for optimizer, scope, step in scopes
                ]
            )


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")
