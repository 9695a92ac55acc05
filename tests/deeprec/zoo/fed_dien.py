"""DIEN fed by placeholders, with a recurrent loop of its own: what the samples of variables and optimizers share.

A sample gives `tables(name, rows)`, which makes the variable of "uid", "mid" or "cat", and an optimizer.
"""

import os

import numpy
import tensorflow as tf
from tensorflow.python.framework import constant_op
from tensorflow.python.framework import dtypes
from tensorflow.python.ops import array_ops
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.ops import math_ops
from tensorflow.python.ops import tensor_array_ops
from tensorflow.python.ops import variable_scope as vs
from tensorflow.python.ops.rnn_cell import GRUCell

import dien
import layers
import samples

EMBEDDING_DIM = 18
HIDDEN_SIZE = 36


def static_table(name, rows):
    return tf.get_variable(name + "_embedding_var", [rows, EMBEDDING_DIM])


def dynamic_rnn(cell, inputs, scores, sequence_length, scope):
    """(outputs [batch, steps, units], final state): a while loop over TensorArrays. scores: [batch, steps, 1] or None."""
    with vs.variable_scope(scope):
        steps = array_ops.shape(inputs)[1]
        states = tensor_array_ops.TensorArray(
            dtype=dtypes.float32, size=steps, element_shape=[None, cell.output_size]
        )
        parts = array_ops.transpose(inputs, [1, 0, 2])
        weights = None if scores is None else array_ops.transpose(scores, [1, 0, 2])

        def body(time, states, state):
            fed = parts[time] if weights is None else (parts[time], weights[time])
            _, new = cell(fed, state)
            state = array_ops.where_v2(array_ops.expand_dims(time < sequence_length, 1), new, state)
            return time + 1, states.write(time, state), state

        zero = array_ops.zeros([array_ops.shape(inputs)[0], cell.state_size])
        _, states, final = control_flow_ops.while_loop(
            cond=lambda time, *_: time < steps,
            body=body,
            loop_vars=(constant_op.constant(0), states, zero),
            parallel_iterations=32,
        )
        return array_ops.transpose(states.stack(), [1, 0, 2]), final


class Batches:
    """Batches of a file of clicks with the histories of users: a list of arrays in the order of Model.fed."""

    def __init__(self, args, file):
        self._size, folder = args.batch_size, args.data_location
        self._words = {}
        for key in ("uid", "mid", "cat"):
            with open(os.path.join(folder, key + "_voc.txt")) as words:
                self._words[key] = {word.rstrip("\n"): number for number, word in enumerate(words)}
        with (
            open(os.path.join(folder, file)) as clicks,
            open(os.path.join(folder, file + "_neg")) as others,
        ):
            self._rows = [
                (line.rstrip("\n").split("\t"), other.rstrip("\n").split("\t"))
                for line, other in zip(clicks, others)
            ]

    def counts(self):
        return [len(self._words[key]) for key in ("uid", "mid", "cat")]

    def batches(self, epochs):
        for start in list(range(0, len(self._rows) - self._size + 1, self._size)) * epochs:
            yield self._arrays(self._rows[start : start + self._size])

    def _arrays(self, rows):
        ids = [
            numpy.array([self._words[key].get(row[i], 0) for row, _ in rows])
            for i, key in ((1, "uid"), (2, "mid"), (3, "cat"))
        ]
        lists = [
            [[self._words[key].get(word, 0) for word in text.split("\x02")] for text in texts]
            for texts, key in (
                ([row[4] for row, _ in rows], "mid"),
                ([row[5] for row, _ in rows], "cat"),
                ([other[0] for _, other in rows], "mid"),
                ([other[1] for _, other in rows], "cat"),
            )
        ]
        lengths = numpy.array([len(words) for words in lists[0]])
        padded = [numpy.zeros((len(rows), lengths.max()), "int64") for _ in lists]
        for array, texts in zip(padded, lists):
            for row, words in enumerate(texts):
                array[row, : len(words)] = words
        mask = (numpy.arange(lengths.max()) < lengths[:, None]).astype("float32")
        target = numpy.array([[1.0, 0.0] if row[0] == "1" else [0.0, 1.0] for row, _ in rows])
        return [
            *ids,
            *padded[:2],
            mask,
            target,
            lengths,
            *[array[:, :, None] for array in padded[2:]],
        ]


class Model:
    """self.fed: the placeholders, without that of the learning rate."""

    def __init__(
        self, counts, tables=static_table, optimizer=tf.train.AdamOptimizer, look_up_uid=None
    ):
        with tf.name_scope("Inputs"):
            uid, mid, cat = [
                tf.placeholder(tf.int32, [None], name=name + "_batch_ph")
                for name in ("uid", "mid", "cat")
            ]
            history = [
                tf.placeholder(tf.int32, [None, None], name=name + "_his_batch_ph")
                for name in ("mid", "cat")
            ]
            self._mask = tf.placeholder(tf.float32, [None, None], name="mask")
            self.target = tf.placeholder(tf.float32, [None, None], name="target_ph")
            self._lengths = tf.placeholder(tf.int32, [None], name="seq_len_ph")
            self.learning_rate = tf.placeholder(tf.float64, [])
            others = [
                tf.placeholder(tf.int32, [None, None, None], name="noclk_" + name + "_batch_ph")
                for name in ("mid", "cat")
            ]
        self.fed = [uid, mid, cat, *history, self._mask, self.target, self._lengths, *others]
        with tf.name_scope("Embedding_layer"):
            user = look_up_uid(uid) if look_up_uid else self._look_up(tables("uid", counts[0]), uid)
            variables = [tables("mid", counts[1]), tables("cat", counts[2])]
            item = tf.concat(
                [self._look_up(table, ids) for table, ids in zip(variables, (mid, cat))], 1
            )
            steps = tf.concat(
                [self._look_up(table, ids) for table, ids in zip(variables, history)], 2
            )
            skipped = tf.concat(
                [self._look_up(table, ids)[:, :, 0, :] for table, ids in zip(variables, others)], -1
            )
        self._predict(user, item, steps, skipped)
        self.train_op = optimizer(learning_rate=self.learning_rate).minimize(self.loss)
        tf.summary.scalar("loss", self.loss)
        self.merged = tf.summary.merge_all()

    def _look_up(self, table, ids):
        return tf.nn.embedding_lookup(table, math_ops.cast(ids, dtypes.int64))

    def _predict(self, user, item, steps, skipped):
        with tf.name_scope("rnn_1"):
            states, _ = dynamic_rnn(GRUCell(HIDDEN_SIZE), steps, None, self._lengths, "gru1")
        auxiliary = self._auxiliary_loss(
            states[:, :-1, :], steps[:, 1:, :], skipped[:, 1:, :], self._mask[:, 1:]
        )
        with tf.name_scope("Attention_layer_1"):
            scores = tf.transpose(
                layers.attention_scores(item, states, self._mask > 0.5, "1_1"), [0, 2, 1]
            )
        with tf.name_scope("rnn_2"):
            _, final = dynamic_rnn(
                dien.AttentionGRUCell(HIDDEN_SIZE), states, scores, self._lengths, "gru2"
            )
        summed = tf.reduce_sum(steps, 1)
        net = tf.layers.batch_normalization(
            inputs=tf.concat([user, item, summed, item * summed, final], 1), name="bn1"
        )
        with tf.variable_scope("top_full_connect", reuse=tf.AUTO_REUSE):
            for layer, units in enumerate([32, 16]):
                net = layers.prelu(
                    tf.layers.dense(net, units, activation=None, name="dnn%d" % layer),
                    "prelu%d" % layer,
                )
            self.y_hat = (
                tf.nn.softmax(tf.layers.dense(net, 2, activation=None, name="dnn3")) + 0.00000001
            )
        self.loss = -tf.reduce_mean(tf.log(self.y_hat) * self.target) + auxiliary
        self.accuracy = tf.reduce_mean(
            tf.cast(tf.equal(tf.round(self.y_hat), self.target), tf.float32)
        )

    def _auxiliary_loss(self, states, clicked, skipped, mask):
        mask = tf.cast(mask, tf.float32)

        def probability(steps):
            net = tf.concat([states, steps], -1)
            net = tf.layers.batch_normalization(inputs=net, name="bn1gru", reuse=tf.AUTO_REUSE)
            net = tf.layers.dense(
                net, 16, activation=tf.nn.sigmoid, name="f1gru", reuse=tf.AUTO_REUSE
            )
            return (
                tf.nn.softmax(
                    tf.layers.dense(net, 2, activation=None, name="f2gru", reuse=tf.AUTO_REUSE)
                )[:, :, 0]
                + 1e-8
            )

        clicks = -tf.reshape(tf.log(probability(clicked)), [-1, tf.shape(clicked)[1]]) * mask
        others = (
            -tf.reshape(tf.log(1.0 - probability(skipped) + 1e-6), [-1, tf.shape(skipped)[1]])
            * mask
        )
        return tf.reduce_mean(clicks + others)


def run(make_model):
    """make_model(counts): a Model. Trains it and continues where the folder has a checkpoint."""
    parser = samples.parser()
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    tf.set_random_seed(args.seed)
    numpy.random.seed(args.seed)
    folder = args.checkpoint or os.path.join(args.output_dir, "model")
    with tf.Session(config=samples.session_config_of(args)) as sess:
        data, test = (
            Batches(args, "local_train_splitByUser"),
            Batches(args, "local_test_splitByUser"),
        )
        model = make_model(data.counts())
        sess.run(tf.get_collection(tf.GraphKeys.EV_INIT_VAR_OPS))
        sess.run(tf.get_collection(tf.GraphKeys.EV_INIT_SLOT_OPS))
        sess.run(tf.global_variables_initializer())
        sess.run(tf.local_variables_initializer())
        saver = tf.train.Saver(max_to_keep=args.keep_checkpoint_max)
        if tf.train.latest_checkpoint(folder):
            saver.restore(sess, tf.train.latest_checkpoint(folder))
        for step, batch in zip(range(args.steps), data.batches(100)):
            feed = {**dict(zip(model.fed, batch)), model.learning_rate: args.learning_rate}
            loss, _, _ = sess.run([model.loss, model.train_op, model.merged], feed_dict=feed)
            print("step", step, "loss", repr(float(loss)))
            if args.save_steps and step % args.save_steps == args.save_steps - 1:
                os.makedirs(folder, exist_ok=True)
                saver.save(
                    sess, save_path=os.path.join(folder, "ckpt_noshuffDIEN"), global_step=step
                )
        found = [
            sess.run(model.accuracy, feed_dict=dict(zip(model.fed, batch)))
            for batch in test.batches(1)
        ]
        print(f"ACC = {numpy.mean(found)}")
