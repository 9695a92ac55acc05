"""Weights of ids in Keras layers: what TensorFlow's own lookup of a dense table gives, and how rows train with them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 9, (6, 3))
WEIGHTS = RNG.uniform(0.5, 2.0, (6, 3)).astype(np.float32)


def sparse(values):
    places = np.argwhere(np.ones(values.shape))
    return tf.SparseTensor(places, values.reshape(-1), values.shape)


FORMS = {
    "dense": tf.constant,
    "ragged": tf.RaggedTensor.from_tensor,
    "sparse": sparse,
}


def stock(table, combiner, weights=WEIGHTS):
    weights = None if weights is None else sparse(weights)
    return tf.nn.embedding_lookup_sparse(table, sparse(IDS), weights, combiner)


@pytest.mark.parametrize(
    "form, combiner", [("dense", "sum"), ("ragged", "mean"), ("sparse", "sqrtn"), ("dense", "mean")]
)
def test_weighted_values_and_updates_are_those_of_a_dense_table(form, combiner):
    make = FORMS[form]
    alone = kt.Embedding(4, combiner=combiner)
    group = kt.GroupEmbedding(
        {"a": kt.Embedding(4, combiner=combiner), "b": kt.Embedding(2, combiner="sum")}
    )
    for layer in (alone, group):
        layer.build()
    for variable, look_up in (
        (alone.embeddings, lambda: alone(make(IDS), weights=make(WEIGHTS))),
        (
            group.embeddings["a"],
            lambda: group({"a": make(IDS), "b": make(IDS)}, weights={"a": make(WEIGHTS)})["a"],
        ),
    ):
        dense = tf.Variable(tf.nn.embedding_lookup(variable, np.arange(9)))
        np.testing.assert_allclose(look_up(), stock(dense, combiner), rtol=1e-6)
        for of, trained in ((look_up, variable), (lambda: stock(dense, combiner), dense)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(of() ** 2)
            pairs = [(tape.gradient(loss, trained), trained)]
            if trained is dense:
                dense.assign_sub(0.1 * tf.convert_to_tensor(pairs[0][0]))
            else:
                tf_multitier.optimizers.SGD(0.1).apply_gradients(pairs)
        np.testing.assert_allclose(
            tf.nn.embedding_lookup(variable, np.arange(9)), dense, rtol=1e-5, atol=1e-6
        )


def test_a_model_with_inputs_of_weights_trains_and_comes_back(tmp_path):
    ids, weights = keras.Input((3,), dtype="int64"), keras.Input((3,))
    table = kt.Embedding(4, combiner="mean")
    grouped = kt.GroupEmbedding({"a": kt.Embedding(2, combiner="sum")}, concat=True)
    joined = [table(ids, weights=weights), grouped({"a": ids}, weights={"a": weights})]
    model = keras.Model([ids, weights], keras.layers.Dense(1)(keras.layers.Concatenate()(joined)))
    model.compile(kt.with_rows(keras.optimizers.Adam(0.01)), "mse")
    model.fit([IDS, WEIGHTS], np.ones(6), verbose=0)
    expected = model.predict([IDS, WEIGHTS], verbose=0)
    assert np.abs(expected - model.predict([IDS, np.ones_like(WEIGHTS)], verbose=0)).max() > 0
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict([IDS, WEIGHTS], verbose=0), expected)


def test_weights_that_do_not_fit_are_refused():
    layer = kt.Embedding(4, combiner="sum", name="t")
    with pytest.raises(ValueError, match="weights: expected None without a combiner"):
        kt.Embedding(4)(IDS, weights=WEIGHTS)
    with pytest.raises(TypeError, match="'t': weights: expected a RaggedTensor as the ids are"):
        layer(IDS, weights=sparse(WEIGHTS))
    with pytest.raises(TypeError, match="'t': weights: expected a SparseTensor as the ids are"):
        layer(sparse(IDS), weights=WEIGHTS)
    with pytest.raises(TypeError, match="'t': weights: expected numbers, found bool"):
        layer(IDS, weights=WEIGHTS > 1)
    with pytest.raises(ValueError, match=r"'t': weights: expected the shape of the ids"):
        layer(IDS, weights=WEIGHTS[:5])
    lengths, others = [[1, 2], [3]], [[0.5], [1.0, 2.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="'t': weights: expected one for each"):
        layer(tf.ragged.constant(lengths, tf.int64), weights=tf.ragged.constant(others))
    group = kt.GroupEmbedding({"a": kt.Embedding(4, combiner="sum")}, name="g")
    with pytest.raises(ValueError, match=r"weights: expected some of the features \['a'\], found"):
        group({"a": IDS}, weights={"b": WEIGHTS})
