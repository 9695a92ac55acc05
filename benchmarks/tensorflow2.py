r"""Compares the ways to run TensorFlow 2: Session, tf.function, eager execution and Keras' fit. One process, in turns.

    python benchmarks/tensorflow2.py
    python benchmarks/tensorflow2.py --quick --parts=grouped,lookup
    python benchmarks/tensorflow2.py --parts=grouped --fbgemm_python=fbgemm/bin/python

Parts:

  grouped   --features tables, Adagrad, --batch examples with Zipf ids: a step in a Session, in a tf.function, by a concrete
            function and eagerly; with --fbgemm_python, FBGEMM's step on the same ids
  fit       the same tables: Model.fit with GroupEmbedding, and a loop of a tf.function over the same dataset
  stock     Model.fit with one Embedding, and with keras.layers.Embedding of --rows rows and Keras' Adagrad
  lookup    --lookup_ids uniform ids: an embedding variable and tf.gather on a tf.Variable, each in a Session and in a tf.function
  search    the 10 best of --rows rows for 64 queries: Retrieval, also without 100 ids for each, and tf.math.top_k over one matrix

A round gives one ratio of each pair. The medians of the ratios are printed, with the middle half. See docs/benchmarks.md.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import driver
from driver import each
from driver import ratio
from driver import short_turns
from driver import turns
from driver import whole
import grouped
import grouped_workload
import tf_multitier
import tf_multitier.keras as multitier_keras
import workload

v1 = tf.compat.v1
FLAGS = flags.FLAGS
PARTS = ("grouped", "fit", "stock", "lookup", "search")
flags.DEFINE_integer("lookup_ids", 65_536, "Ids of a step of `lookup`.", lower_bound=1)
flags.DEFINE_integer("fit_steps", 100, "Steps of a turn of `fit`.", lower_bound=1)
flags.DEFINE_bool("quick", False, "Three rounds, fewer rows and steps: the numbers mean little.")
FLAGS.set_default("batch", 2048)
FLAGS.set_default("alpha", 1.05)
QUICK = dict(
    rounds=3, steps_per_round=4, fit_steps=10, rows=20_000, vocabulary=20_000, lookup_ids=4096
)

START = tf.constant_initializer(workload.INITIAL_VALUE)


# ---- a group of tables


def tables(prefix):
    return [
        tf_multitier.get_embedding_variable(f"{prefix}_{i}", FLAGS.dim, initializer=START)
        for i in range(FLAGS.features)
    ]


def group_loss(variables, ids):
    """Half the sum of squares of the pooled embeddings, by example. ids: int64 [features, batch x hot].

    Its gradient is one op. That of tf.reduce_mean is three, which a Session computes once and a tf.function in each step.
    """
    every = tf.constant(grouped_workload.indices())
    sparse = [tf.SparseTensor(every, its, [FLAGS.batch, FLAGS.hot]) for its in tf.unstack(ids)]
    pooled = tf_multitier.nn.group_embedding_lookup_sparse(variables, sparse, "sum", concat=True)
    return tf.nn.l2_loss(pooled) / FLAGS.batch


def session_step():
    with tf.Graph().as_default():
        ids = v1.placeholder(tf.int64, [FLAGS.features, FLAGS.batch * FLAGS.hot])
        loss = group_loss(tables("session"), ids)
        # It counts its steps, as the optimizer of TensorFlow 2 does.
        steps = v1.train.get_or_create_global_step()
        train = v1.train.AdagradOptimizer(FLAGS.learning_rate).minimize(loss, global_step=steps)
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        return session.make_callable([train, loss], feed_list=[ids])


def eager_step(name):
    variables = tables(name)
    optimizer = tf_multitier.optimizers.Adagrad(FLAGS.learning_rate)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = group_loss(variables, ids)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def measure_grouped(_):
    arrays = grouped_workload.keys(grouped_workload.batches())
    tensors = [tf.constant(array) for array in arrays]
    count = len(arrays)
    session, other, eager = session_step(), session_step(), eager_step("eager")
    function, traced = tf.function(eager_step("function")), tf.function(eager_step("traced"))
    concrete = traced.get_concrete_function(tensors[0])  # its variables live as long as `traced`
    for array, tensor in zip(arrays, tensors):
        session(array), other(array), function(tensor), concrete(tensor)
    in_session = each(lambda i: session(arrays[i % count]))
    in_function = each(lambda i: function(tensors[i % count]))
    # Each system has tables of its own. The ratio of the two Sessions, whose programs are the same, shows what the measurement
    # cannot tell.
    pairs = short_turns(
        {
            "Session": in_session,
            "tf.function": in_function,
            "concrete function": each(lambda i: concrete(tensors[i % count])),
            "other Session": each(lambda i: other(arrays[i % count])),
        }
    )
    systems = {
        "Session": in_session,
        "tf.function": in_function,
        "eager": each(lambda i: eager(tensors[i % count])),
    }
    worker = None
    if FLAGS.fbgemm_python:
        worker = grouped.start("fbgemm", FLAGS.fbgemm_python, "peers.py", "--peer=fbgemm_grouped")
        systems["FBGEMM"] = worker.system("train")
    seconds = turns(systems)
    ratio("grouped", pairs, "tf.function", "Session", "at most 1.1")
    ratio("grouped", pairs, "concrete function", "Session", "at most 1.1")
    ratio("grouped", pairs, "other Session", "Session", "1, the noise")
    ratio("grouped", seconds, "eager", "tf.function", "at most 12")
    if worker:
        worker.close()
        for name in ("Session", "tf.function"):
            ratio("grouped", seconds, "FBGEMM", name, "the Session's")


# ---- fit


def dataset(features, steps):
    """`steps` batches of ({feature: int64 [batch, 1]}, label), cached as tensors. features: int64 [steps or fewer, n, batch]."""
    label = np.zeros([FLAGS.batch, 1], np.float32)
    made = tf.data.Dataset.from_tensor_slices(
        {f"f{i}": features[:, i, :, None] for i in range(features.shape[1])}
    )
    return made.map(lambda ids: (ids, label)).cache().repeat().take(steps).prefetch(2)


def mean_square(label, value):
    return tf.reduce_mean(tf.square(value), -1)


def fitted(layer, features, steps, optimizer):
    """A system: Model.fit of a model of this layer alone."""
    batches = dataset(features, steps)
    inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in batches.element_spec[0]}
    model = keras.Model(inputs, layer(inputs))
    model.compile(optimizer, mean_square, jit_compile=False)
    return whole(lambda count: model.fit(batches.take(count), verbose=0))


def looped(features, steps):
    """A system: a loop of a tf.function over the same dataset, with the same tables."""
    batches, variables = dataset(features, steps), tables("loop")
    optimizer = tf_multitier.optimizers.Adagrad(FLAGS.learning_rate)

    @tf.function
    def step(ids):
        rows = [tf.RaggedTensor.from_tensor(ids[f"f{i}"]) for i in range(len(variables))]
        with tf.GradientTape() as tape:
            pooled = tf_multitier.nn.group_embedding_lookup_sparse(
                variables, rows, "sum", concat=True
            )
            loss = tf.reduce_mean(tf.square(pooled))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def run(count):
        for ids, _ in batches.take(count):
            step(ids)

    return whole(run)


def measure_fit(_):
    features = grouped_workload.keys(grouped_workload.batches())[:, :, : FLAGS.batch]
    one = dict(output_dim=FLAGS.dim, combiner="sum", embeddings_initializer="zeros")
    names = [f"f{i}" for i in range(FLAGS.features)]
    group = lambda optimizer: multitier_keras.GroupEmbedding(
        dict.fromkeys(names, one), concat=True, optimizer=optimizer
    )
    rate, steps = FLAGS.learning_rate, FLAGS.fit_steps
    own = fitted(group(tf_multitier.optimizers.Adagrad(rate)), features, steps, "sgd")
    with_rows = multitier_keras.with_rows(keras.optimizers.Adagrad(rate))
    systems = {
        "fit": own,
        "fit, with_rows": fitted(group(None), features, steps, with_rows),
        "tf.function loop": looped(features, steps),
    }
    seconds = turns(systems, steps)
    for name in list(systems)[:2]:
        ratio("fit", seconds, name, "tf.function loop", "at most 1.25")


def measure_stock(_):
    random = np.random.default_rng(FLAGS.seed)
    ranks = random.integers(0, FLAGS.rows, (FLAGS.batches, 1, FLAGS.batch))
    rate, steps = FLAGS.learning_rate, max(FLAGS.fit_steps // 10, 2)

    class First(keras.layers.Layer):
        """The one feature of a dict."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, inputs):
            return self.inner(inputs["f0"])

    own = multitier_keras.Embedding(FLAGS.dim, optimizer=tf_multitier.optimizers.Adagrad(rate))
    stock = keras.layers.Embedding(FLAGS.rows, FLAGS.dim)
    systems = {
        "Embedding": fitted(First(own), workload.keys_of(ranks), steps, "sgd"),
        "keras Embedding": fitted(First(stock), ranks, steps, keras.optimizers.Adagrad(rate)),
    }
    seconds = turns(systems, steps)
    ratio("stock", seconds, "keras Embedding", "Embedding", "at least 10")


# ---- lookups of one table


def measure_lookup(_):
    random = np.random.default_rng(FLAGS.seed)
    ranks = random.integers(0, FLAGS.rows, (FLAGS.batches, FLAGS.lookup_ids))
    keys = workload.keys_of(ranks)
    fill = [
        workload.keys_of(np.arange(FLAGS.rows))[i :: FLAGS.batches] for i in range(FLAGS.batches)
    ]
    systems = {}

    def add(name, run, ids, as_fed):
        fed = [as_fed(array) for array in ids]
        systems[name] = each(lambda i: run(fed[i % len(fed)]))

    with tf.Graph().as_default():
        ids = v1.placeholder(tf.int64, [None])
        hashed = tf_multitier.get_embedding_variable("hashed", FLAGS.dim, initializer=START)
        shape = [FLAGS.rows, FLAGS.dim]
        static = v1.get_variable("static", shape, use_resource=True, initializer=START)
        values = [tf.nn.embedding_lookup(variable, ids) for variable in (hashed, static)]
        train = v1.train.GradientDescentOptimizer(0.1).minimize(values[0], var_list=[hashed])
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        for part in fill:
            session.run(train, {ids: part})
        for name, value, its in zip(("Session", "Session gather"), values, (keys, ranks)):
            run = session.make_callable(value.op, feed_list=[ids])
            add(name, run, its, np.asarray)
    hashed = tf_multitier.get_embedding_variable("hashed", FLAGS.dim, initializer=START)
    for part in fill:
        rows = tf.IndexedSlices(tf.ones([part.size, FLAGS.dim]), tf.constant(part))
        tf_multitier.optimizers.SGD(0.1).apply_gradients([(rows, hashed)])
    static = tf.Variable(tf.fill(shape, workload.INITIAL_VALUE))

    def in_function(variable):
        signature = [tf.TensorSpec([None], tf.int64)]
        return tf.function(lambda ids: tf.nn.embedding_lookup(variable, ids), signature)

    add("function", in_function(hashed), keys, tf.constant)
    add("function gather", in_function(static), ranks, tf.constant)
    seconds = short_turns(systems)
    ratio("lookup", seconds, "Session gather", "Session", "the other's")
    ratio("lookup", seconds, "function gather", "function", "the Session's, 10 %")


# ---- the best rows of one table


def measure_search(_):
    random = np.random.default_rng(FLAGS.seed)
    matrix = random.normal(size=(FLAGS.rows, FLAGS.dim)).astype("float32")
    layer = multitier_keras.Embedding(FLAGS.dim)
    layer.build()
    for ids in np.array_split(np.arange(FLAGS.rows), FLAGS.rows // 10_000 + 1):
        layer.embeddings.upsert(ids, matrix[ids])
    static = tf.constant(matrix)
    queries = tf.constant(random.normal(size=(64, FLAGS.dim)).astype("float32"))
    seen = tf.RaggedTensor.from_tensor(random.integers(0, FLAGS.rows, (64, 100)))
    search = tf.function(multitier_keras.Retrieval(layer, 10))
    stock = tf.function(lambda q: tf.math.top_k(tf.matmul(q, static, transpose_b=True), 10))
    systems = {
        "top_k": each(lambda _: stock(queries).values.numpy()),
        "Retrieval": each(lambda _: search(queries)[0].numpy()),
        "Retrieval, exclude": each(lambda _: search(queries, exclude=seen)[0].numpy()),
    }
    seconds = turns(systems, min(2, FLAGS.steps_per_round))
    for name in list(systems)[1:]:
        ratio("search", seconds, name, "top_k", "at most 2")


def main(argv):
    if FLAGS.quick:
        for name, value in QUICK.items():
            if not FLAGS[name].present:
                FLAGS[name].value = value
    driver.run(argv, {part: globals()[f"measure_{part}"] for part in PARTS})


if __name__ == "__main__":
    app.run(main)
