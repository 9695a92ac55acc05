"""padding_idx of lookups: one id that every lookup leaves out. It has no row, no count and no gradient."""

import numpy as np
import pytest
import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import nn
from variable_util import make
from worlds import needs_eager
from worlds import WORLDS

DIM = 4
WEIGHTS = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
PADDINGS = {"int64": -1, "int32": -1, "uint64": 2**64 - 1, "uint32": 2**32 - 1}


def sparse(values):
    """All of a matrix as a SparseTensor."""
    places = tf.where(tf.ones(tf.shape(values), tf.bool))
    return tf.SparseTensor(places, tf.reshape(values, [-1]), tf.shape(values, tf.int64))


def ragged(values):
    return tf.RaggedTensor.from_tensor(values)


def group(form, weights=None, **kwargs):
    """A lookup of the variable, and of a static variable without padding, in one group."""

    def look_up(ev, ids, p):
        static = tf.zeros([9, DIM])
        rows = form(tf.zeros(tf.shape(ids), tf.int64))
        given = None if weights is None else [form(tf.constant(weights)), None]
        if form is tf.identity:
            return nn.group_embedding_lookup(
                [ev, static], [ids, rows], padding_idx=[p, None], **kwargs
            )
        return nn.group_embedding_lookup_sparse(
            [ev, static], [form(ids), rows], "mean", given, padding_idx=[p, None], **kwargs
        )

    return look_up


# {name: (lookup of (variable, ids, padding), what it gives for rows a and c of [[a, padding, c], [padding, padding, padding]])}
DENSE = lambda a, c: [[a, 0 * a, c], [0 * a] * 3]
MEAN = lambda a, c: [(a + c) / 2, 0 * a]
WEIGHTED = lambda a, c: [(a + 3 * c) / 4, 0 * a]
LOOKUPS = {
    "dense": (lambda ev, ids, p: lookup.embedding_lookup(ev, ids, padding_idx=p), DENSE),
    "sparse": (
        lambda ev, ids, p: lookup.embedding_lookup_sparse(ev, sparse(ids), padding_idx=p),
        MEAN,
    ),
    "ragged": (
        lambda ev, ids, p: lookup.embedding_lookup_sparse(ev, ragged(ids), padding_idx=p),
        MEAN,
    ),
    "weighted": (
        lambda ev, ids, p: lookup.embedding_lookup_sparse(
            ev, sparse(ids), sparse(tf.constant(WEIGHTS)), padding_idx=p
        ),
        WEIGHTED,
    ),
    "safe": (
        lambda ev, ids, p: lookup.safe_embedding_lookup_sparse(
            ev, ragged(ids), ragged(tf.constant(WEIGHTS)), padding_idx=p
        ),
        WEIGHTED,
    ),
    "group dense": (lambda ev, ids, p: group(tf.identity)(ev, ids, p)[0], DENSE),
    "group concat": (
        lambda ev, ids, p: group(tf.identity, concat=True)(ev, ids, p)[:, :, :DIM],
        DENSE,
    ),
    "group sparse": (lambda ev, ids, p: group(sparse, WEIGHTS)(ev, ids, p)[0], WEIGHTED),
    "group ragged": (lambda ev, ids, p: group(ragged, WEIGHTS)(ev, ids, p)[0], WEIGHTED),
    "group pooled concat": (
        lambda ev, ids, p: group(ragged, concat=True)(ev, ids, p)[:, :DIM],
        MEAN,
    ),
    "sequence": (lambda ev, ids, p: group(sparse, is_sequence=True)(ev, ids, p)[0], DENSE),
    "ragged sequence": (lambda ev, ids, p: group(ragged, is_sequence=True)(ev, ids, p)[0], DENSE),
}


@pytest.mark.parametrize(
    "world, key_dtype, parts",
    [(world, "int64", 2) for world in WORLDS]
    + [("session", "uint32", 2), ("eager", "uint64", 1), ("function", "int32", 1)],
    indirect=["world"],
)
def test_no_lookup_reads_counts_or_trains_padding(world, key_dtype, parts):
    p = PADDINGS[key_dtype]
    ids = np.array([[5, p, 7], [p, p, p]], key_dtype)
    present = np.array([5, 7], key_dtype)
    chosen = (
        LOOKUPS if key_dtype == "int64" else dict(list(LOOKUPS.items())[len(key_dtype) % 2 :: 2])
    )
    for name, (look_up, expected) in chosen.items():
        ev = make(name.replace(" ", "_"), DIM, parts, key_dtype=key_dtype)
        read = lambda ids, ev=ev: tf.nn.embedding_lookup(ev, ids)
        a, c = before = world.run(read, present)
        found = world.run(lambda ids, ev=ev, look_up=look_up: look_up(ev, ids, p), ids)
        np.testing.assert_allclose(found, expected(a, c), rtol=1e-6, err_msg=name)
        step = world.step(
            lambda ids, ev=ev, look_up=look_up: tf.reduce_sum(look_up(ev, ids, p)), [ev], "sgd", 1.0
        )
        step(ids)
        keys, _, _, frequencies = world.run(ev.export)
        assert sorted(keys.tolist()) == [5, 7], name
        assert frequencies.tolist() == [1, 1], name
        one, zero = np.ones(DIM), np.zeros(DIM)
        gradient = np.sum(expected(one, zero)) / DIM, np.sum(expected(zero, one)) / DIM
        moved = np.outer(gradient, one)
        np.testing.assert_allclose(
            world.run(read, present), before - moved, rtol=1e-5, err_msg=name
        )


@needs_eager
def test_ids_that_are_no_padding_have_the_bits_of_a_lookup_without_it():
    ev = make(dim=8)
    ids = tf.constant([[3, 4], [5, 3]], tf.int64)
    for training in (True, False):
        plain = lookup.embedding_lookup(ev, ids, 0.5, training=training)
        padded = lookup.embedding_lookup(ev, ids, 0.5, training=training, padding_idx=-1)
        np.testing.assert_array_equal(plain, padded)
    half = lookup.embedding_lookup(ev, ids, output_dtype=tf.bfloat16, padding_idx=-1)
    assert half.dtype == tf.bfloat16
    narrow = tf.constant([[3, 4], [5, 3]], tf.int32)  # a type that the padding does not fit into
    np.testing.assert_array_equal(
        lookup.embedding_lookup(ev, narrow, padding_idx=2**40), lookup.embedding_lookup(ev, ids)
    )


@needs_eager
def test_a_row_of_padding_is_an_empty_row():
    ev = make()
    ids = sparse(tf.constant([[-1, -1], [2, -1]], tf.int64))
    found = lookup.safe_embedding_lookup_sparse(ev, ids, default_id=9, padding_idx=-1)
    np.testing.assert_array_equal(found, lookup.embedding_lookup(ev, [9, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="default_id: expected another id"):
        lookup.safe_embedding_lookup_sparse(ev, ids, default_id=-1, padding_idx=-1)


@needs_eager
@pytest.mark.parametrize(
    "key_dtype, padding, message",
    [
        ("int64", 0.0, "padding_idx: expected an integer, found 0.0"),
        ("int64", True, "padding_idx: expected an integer, found True"),
        ("int32", 2**40, "padding_idx: expected at most 2147483647, found 1099511627776"),
        ("uint64", -1, "padding_idx: expected at least 0, found -1"),
    ],
)
def test_padding_that_is_no_key_is_refused(key_dtype, padding, message):
    ev = make(key_dtype=key_dtype)
    ids = tf.zeros([1, 1], key_dtype)
    for look_up in (
        lambda: lookup.embedding_lookup(ev, ids, padding_idx=padding),
        lambda: lookup.embedding_lookup_sparse(ev, sparse(ids), padding_idx=padding),
        lambda: lookup.safe_embedding_lookup_sparse(ev, sparse(ids), padding_idx=padding),
        lambda: nn.group_embedding_lookup([ev], [ids], padding_idx=padding),
        lambda: nn.group_embedding_lookup_sparse([ev], [sparse(ids)], "sum", padding_idx=padding),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            look_up()


@needs_eager
def test_members_that_are_concatenated_have_ids_of_one_shape_with_padding_too():
    tables = [make(name) for name in "ab"]
    ids = [tf.zeros([2, 3], tf.int64), tf.zeros([3, 2], tf.int64)]
    with pytest.raises(ValueError, match=r"member 1 .*concat: expected values of shape \(2, 3, "):
        nn.group_embedding_lookup(tables, ids, padding_idx=0, concat=True)


@needs_eager
def test_padding_of_a_static_variable_is_left_out_too():
    static = tf.Variable(tf.ones([4, DIM]))
    with tf.GradientTape() as tape:
        [found] = nn.group_embedding_lookup([static], [tf.constant([-1, 2])], padding_idx=-1)
    assert found.numpy().tolist() == [[0.0] * DIM, [1.0] * DIM]
    assert tf.convert_to_tensor(tape.gradient(found, static)).numpy()[:, 0].tolist() == [0, 0, 1, 0]
