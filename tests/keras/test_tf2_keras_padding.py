"""`mask_zero` of the Keras layers with a combiner: id 0 of dense, ragged and sparse ids is padding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers

RNG = np.random.default_rng(0)
X = RNG.integers(0, 6, (32, 3))
Y = RNG.normal(size=(32, 1)).astype("float32")


def sparse(ids):
    """All ids as a SparseTensor. tf.sparse.from_dense would leave the zeros out."""
    ids = tf.convert_to_tensor(ids)
    places = tf.where(tf.ones_like(ids, tf.bool))
    return tf.SparseTensor(places, tf.reshape(ids, [-1]), tf.shape(ids, tf.int64))


KINDS = {"dense": tf.convert_to_tensor, "ragged": tf.RaggedTensor.from_tensor, "sparse": sparse}
INPUTS = {"dense": {}, "ragged": {"ragged": True}, "sparse": {"sparse": True}}
SPECS = {
    "dense": tf.TensorSpec([None, 3], tf.int64),
    "ragged": tf.RaggedTensorSpec([None, None], tf.int64),
    "sparse": tf.SparseTensorSpec([None, 3], tf.int64),
}
POOLED = {"sum": 2.0, "mean": 1.0, "sqrtn": 2.0**0.5}  # of two embeddings that are 1

every_kind = pytest.mark.parametrize("kind", list(KINDS))


def embedding(combiner, **kwargs):
    return kt.Embedding(
        2, "ones", mask_zero=True, combiner=combiner, optimizer=optimizers.SGD(0.1), **kwargs
    )


def group():
    pooling = {"output_dim": 2, "embeddings_initializer": "ones", "mask_zero": True}
    features = {name: {"combiner": name, **pooling} for name in POOLED}
    return kt.GroupEmbedding(features, optimizer=optimizers.SGD(0.1))


@every_kind
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_pooling_leaves_id_0_out(kind, dtype):
    ids = KINDS[kind](np.array([[5, 0, 7], [0, 0, 0]], dtype))
    expected = {name: [[value] * 2, [0.0, 0.0]] for name, value in POOLED.items()}
    for combiner, values in expected.items():
        np.testing.assert_allclose(embedding(combiner)(ids), values, rtol=1e-6)
    pooled = group()(dict.fromkeys(POOLED, ids))
    for combiner, values in expected.items():
        np.testing.assert_allclose(pooled[combiner], values, rtol=1e-6)


@every_kind
def test_without_mask_zero_id_0_is_an_id(kind):
    ids = KINDS[kind](np.array([[5, 0, 7]]))
    layer = kt.Embedding(2, "ones", combiner="sum")
    assert layer(ids).numpy().tolist() == [[3.0, 3.0]]


@every_kind
@pytest.mark.parametrize("is_group", [False, True])
def test_id_0_has_no_gradient(kind, is_group):
    ids = KINDS[kind](np.array([[5, 0, 7], [0, 9, 0]]))
    layer = group() if is_group else embedding("mean")
    with tf.GradientTape() as tape:
        values = layer(dict.fromkeys(POOLED, ids) if is_group else ids)
        loss = tf.add_n([tf.reduce_sum(v) for v in tf.nest.flatten(values)])
    for gradient in tape.gradient(loss, layer.trainable_variables):
        assert sorted(gradient.indices.numpy().tolist()) == [5, 7, 9]


def model(kind, is_group):
    """A model, its ids, and its tables."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int64", **INPUTS[kind])
    layer = group() if is_group else embedding("mean")
    pooled = layer(dict.fromkeys(POOLED, ids) if is_group else ids)
    if is_group:
        pooled = keras.layers.Concatenate()([pooled[name] for name in POOLED])
    made = keras.Model(ids, keras.layers.Dense(1, "tanh")(pooled))
    made.compile("sgd", "mse")
    return made, layer.tables


def batches(kind, *others):
    return (
        tf.data.Dataset.from_tensor_slices((X, *others))
        .batch(8)
        .map(lambda ids, *its: (KINDS[kind](ids), *its))
    )


@every_kind
@pytest.mark.parametrize("is_group", [False, True])
def test_fit_predict_and_export_leave_id_0_out(kind, is_group, tmp_path):
    made, tables = model(kind, is_group)
    made.fit(batches(kind, Y), epochs=2, verbose=0)
    for table in tables:
        assert sorted(table.export()[0].numpy().tolist()) == [1, 2, 3, 4, 5]
        assert table.get_frequency([0]).numpy().tolist() == [0]
    dense, _ = model("dense", is_group)
    dense.fit(batches("dense", Y), epochs=2, verbose=0)
    answers = made.predict(batches(kind), verbose=0)
    np.testing.assert_allclose(answers, dense.predict(X, verbose=0), rtol=1e-5)
    exported = tf.Module()  # model.export takes dense ids only
    exported.model = made
    exported.serve = tf.function(lambda ids: made(ids, training=False), [SPECS[kind]])
    tf.saved_model.save(exported, str(tmp_path / "served"))
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    same_bits(loaded.serve(KINDS[kind](X[:8])), answers[:8])
