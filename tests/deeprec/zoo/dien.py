"""DIEN: interests that a GRU finds in the history, evolved by a GRU whose gates take attention."""

import tensorflow as tf
from tensorflow.contrib.rnn.python.ops.core_rnn_cell import _Linear

import histories
import layers
import zoo


class AttentionGRUCell(tf.nn.rnn_cell.RNNCell):
    """A GRU whose update gate is scaled by an attention score. Inputs: (inputs [batch, width], scores [batch, 1])."""

    def __init__(self, num_units, reuse=None):
        super().__init__(_reuse=reuse)
        self._num_units = num_units
        self._gates = self._candidate = None

    @property
    def state_size(self):
        return self._num_units

    @property
    def output_size(self):
        return self._num_units

    def __call__(self, inputs, state):
        return self.call(inputs, state)

    def call(self, inputs, state):
        inputs, scores = inputs
        if self._gates is None:
            with tf.variable_scope("gates"):
                self._gates = _Linear(
                    [inputs, state],
                    2 * self._num_units,
                    True,
                    bias_initializer=tf.constant_initializer(1.0, dtype=inputs.dtype),
                    kernel_initializer=None,
                )
        reset, update = tf.split(
            value=tf.math.sigmoid(self._gates([inputs, state])), num_or_size_splits=2, axis=1
        )
        if self._candidate is None:
            with tf.variable_scope("candidate"):
                self._candidate = _Linear(
                    [inputs, reset * state],
                    self._num_units,
                    True,
                    bias_initializer=None,
                    kernel_initializer=None,
                )
        candidate = tf.math.tanh(self._candidate([inputs, reset * state]))
        update = (1.0 - scores) * update
        state = update * state + (1 - update) * candidate
        return state, state


def auxiliary_loss(states, steps, mask):
    """How well the state after a step tells the next step from another user's."""
    others = tf.concat([steps[1:], steps[:1]], 0)
    with tf.variable_scope("auxiliary_net"):

        def probability(next_steps):
            net = tf.layers.batch_normalization(
                inputs=tf.concat([states, next_steps], -1), name="bn1", reuse=tf.AUTO_REUSE
            )
            net = tf.nn.sigmoid(
                tf.layers.dense(net, 16, activation=None, name="f1", reuse=tf.AUTO_REUSE)
            )
            net = tf.nn.softmax(
                tf.layers.dense(net, 2, activation=None, name="f2", reuse=tf.AUTO_REUSE)
            )
            return net[:, :, 0] + tf.constant(1e-8, dtype=net.dtype)

        found, refused = probability(steps), probability(others)
    mask = tf.cast(mask, dtype=tf.float32)
    return tf.reduce_mean(-tf.log(found) * mask - tf.log(1.0 - refused + 1e-6) * mask)


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        histories.split_history(
            features, ["HISTORY_ITEM", "HISTORY_CATEGORY"], tf.shape(self.label)[0]
        )
        with zoo.input_scope(args, "input_layer"):
            uid = zoo.input_layer(args, features, columns["uid"])
            history = histories.History(features, columns, args)
            item, (steps, lengths) = history.item(), history.steps("his")
            mask = tf.sequence_mask(lengths)
        with tf.variable_scope("interest_extractor_layer"):
            cell = tf.nn.rnn_cell.GRUCell(16)
            states, _ = tf.nn.dynamic_rnn(
                cell, inputs=steps, sequence_length=lengths, dtype=tf.float32, scope="gru1"
            )
            auxiliary = auxiliary_loss(states[:, :-1], steps[:, 1:], mask[:, 1:])
        with tf.variable_scope("interest_evolution_layer"):
            scores = tf.transpose(layers.attention_scores(item, states, mask, ""), [0, 2, 1])
            _, final = tf.nn.dynamic_rnn(
                AttentionGRUCell(16),
                inputs=(states, scores),
                sequence_length=lengths,
                dtype=tf.float32,
                scope="gru2",
            )
        summed = tf.reduce_sum(steps, 1)
        net = tf.concat([uid, item, summed, item * summed, final], 1)
        with zoo.layer_scope(args, "top_mlp_layer"):
            net = tf.layers.batch_normalization(inputs=zoo.half(args, net), name="bn1")
            net = zoo.full(args, layers.dnn(args, net, [32, 16], "dnn"))
            logits = tf.layers.dense(net, 1, activation=None, name="logits")
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, tf.squeeze(logits)) + auxiliary
        self.global_step = tf.train.get_or_create_global_step()
        self.train_op = histories.clipped_step(self, args)


if __name__ == "__main__":
    zoo.main(Model, histories.build_columns, kind="amazon")
