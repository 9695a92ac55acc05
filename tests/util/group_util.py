"""What the tests of grouped lookups and columns share: variables, sparse ids, features, members of random groups."""

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
VOCABULARY = 20  # of static variables


def kind(op):
    """The type of an op. Ops of variables with HBM have names of their own; here they have those of the others."""
    return op.type.replace("MultitierHbm", "Multitier")


def one_op_of_each_kind(types):
    """Whether no type of op is there twice. With HBM, variables in parts are not in the op of the others (placement.py)."""
    return len(types) == len(set(types))


def table(name, dim, parts=1, seed=1):
    return tf_multitier.get_embedding_variable(
        name,
        dim,
        initializer=v1.random_uniform_initializer(-1.0, 1.0, seed=seed),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
    )


def matrix(dim, seed=1, rows=VOCABULARY):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, dim)).astype(np.float32)


def static(name, dim, parts=1, seed=1, use_resource=True):
    partitioner = v1.fixed_size_partitioner(parts) if parts > 1 else None
    rows = matrix(dim, seed)

    def initial(shape, dtype=tf.float32, partition_info=None):
        begin = 0 if partition_info is None else partition_info.var_offset[0]
        return tf.constant(rows[begin : begin + shape[0]], dtype)

    return v1.get_variable(
        name,
        [VOCABULARY, dim],
        initializer=initial,
        use_resource=use_resource,
        partitioner=partitioner,
    )


def sparse(rows, dtype=np.int64):
    """A SparseTensor of a list of lists."""
    indices = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    return tf.SparseTensor(
        np.array(indices, np.int64).reshape(-1, 2),
        np.array([x for row in rows for x in row], dtype),
        [len(rows), max([1] + [len(row) for row in rows])],
    )


def normal(seed):
    """The initializer of a column."""
    return v1.random_normal_initializer(stddev=1.0, seed=seed)


def features():
    """A batch of three for columns of every kind."""
    return {
        "a": sparse([[1, 2], [], [-7]]),
        "b": sparse([["x"], ["y", "x"], []], str),
        "c": sparse([[5], [5], [6]]),
        "d": sparse([[5, 5], [1], []]),
        "w": sparse([[1, 1], [], [3]]),
        "weights": sparse([[2.0, -1.0], [], [0.5]], np.float32),
        "price": np.array([[1.0], [2.0], [3.0]], np.float32),
        "stock": sparse([[1], [2], [3]]),
        "hashed": sparse([["x", "z"], [], ["y"]], str),
        "words": sparse([["no", "red"], ["no"], ["blue"]], str),
        "first": np.array([[1, 4], [-1, -1], [4, -1]]),
        "second": sparse([[4], [9, 1], []]),
    }


class NoScope:
    """In place of `group_embedding_column_scope`: columns that name no group."""

    def __init__(self, name):
        del name

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        return None


def initialized(session):
    session.run(v1.global_variables_initializer())


class RandomMember:
    """One member of a random group, and its batches."""

    def __init__(self, rng, number):
        self.dim = rng.choice([1, 3, 8, 16, 17])
        self.kind = rng.choice(["table", "table", "table", "static", "ref"])
        self.parts = rng.choice([1, 1, 3])
        self.combiner = rng.choice(["sum", "mean", "sqrtn"])
        self.weighted = rng.random() < 0.4
        self.ragged = rng.random() < 0.4
        self.max_norm = rng.choice([None, None, 0.5])
        self.longest = rng.choice([0, 1, 4, 30])
        self.int32 = rng.random() < 0.2
        self.number = number

    def variable(self, scope):
        if self.kind == "table":
            return table(f"{scope}/m{self.number}", self.dim, self.parts, self.number)
        return static(
            f"{scope}/m{self.number}", self.dim, self.parts, self.number, self.kind == "static"
        )

    def feeds(self):
        self.values = v1.placeholder(tf.int32 if self.int32 else tf.int64, [None])
        self.weights = v1.placeholder(tf.float32, [None])
        self.lengths = v1.placeholder(tf.int64, [None])
        return self.ids_and_weights(self.values, self.weights, self.lengths)

    def ids_and_weights(self, values, weights, lengths):
        """The ids and weights (or None) of tensors that have them row after row."""
        splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], 0)
        ids = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        weights = tf.RaggedTensor.from_row_splits(weights, splits, validate=False)
        if not self.ragged:
            ids, weights = ids.to_sparse(), weights.to_sparse()
        return ids, weights if self.weighted else None

    def batch(self, rng, rows=None):
        """What is fed for a step: {placeholder: array}."""
        return dict(zip((self.values, self.weights, self.lengths), self.arrays(rng, rows)))

    def arrays(self, rng, rows=None):
        """Ids, weights and lengths of rows of a random batch."""
        lengths = rng.integers(0, self.longest + 1, rng.integers(0, 12) if rows is None else rows)
        n = int(lengths.sum())
        low = -VOCABULARY if self.kind == "table" else 0
        values = rng.integers(low, VOCABULARY, n).astype(np.int32 if self.int32 else np.int64)
        return [values, rng.uniform(0.1, 2.0, n).astype(np.float32), lengths.astype(np.int64)]
