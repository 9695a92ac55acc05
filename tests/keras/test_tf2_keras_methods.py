"""The methods of Keras' layer API that a program may call itself take what Keras gives: symbolic tensors, tensors, arrays, lists."""

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

IDS = np.array([[5, 0, 7], [0, 0, 9]])
FORMS = {
    "array": lambda ids: ids,
    "list": lambda ids: ids.tolist(),
    "tensor": tf.constant,
    "floats": lambda ids: ids.astype("float32"),
    "variable": tf.Variable,
    "small": lambda ids: ids.astype("uint8"),
}
every_form = pytest.mark.parametrize("form", list(FORMS))


def sparse(ids):
    return tf.sparse.from_dense(ids)


def group(concat=False):
    features = {"a": {"output_dim": 4, "mask_zero": True}, "b": {"output_dim": 2}}
    return kt.GroupEmbedding(features, concat)


@every_form
def test_values_masks_and_shapes_of_an_embedding(form):
    ids, layer = FORMS[form](IDS), kt.Embedding(4, mask_zero=True)
    layer.build((None, 3))
    expected = layer(tf.constant(IDS))
    same_bits(layer.call(ids), expected)
    mask = layer.compute_mask(ids)
    assert mask.dtype == tf.bool and mask.numpy().tolist() == (IDS != 0).tolist()
    same_bits(mask, keras.layers.Embedding(10, 4, mask_zero=True).compute_mask(IDS))
    spec = layer.compute_output_spec(ids)
    assert spec.shape == (2, 3, 4) and spec.dtype == "float32"
    pooling = kt.Embedding(4, mask_zero=True, combiner="mean")
    assert pooling.compute_output_spec(ids).shape == (2, 4)
    assert pooling.compute_mask(ids) is None


@every_form
def test_values_masks_and_shapes_of_a_group(form):
    ids = {name: FORMS[form](IDS) for name in "ab"}
    for concat in (True, False):
        layer = group(concat)
        layer.build(dict.fromkeys("ab", (None, 3)))
        expected = layer({name: tf.constant(IDS) for name in "ab"})
        same_bits(layer.call(ids), expected)
        spec = layer.compute_output_spec(ids)
        shapes = lambda made: keras.tree.map_structure(lambda t: tuple(t.shape), made)
        assert shapes(spec) == shapes(expected)
        assert layer.compute_mask(ids, dict.fromkeys("ab")) is None


@pytest.mark.parametrize("shape", [(None, 3), [None, 3], tf.TensorShape([None, 3])])
def test_shapes_are_tuples_lists_or_tensor_shapes(shape):
    assert kt.Embedding(4).compute_output_shape(shape) == (None, 3, 4)
    assert kt.Embedding(4, combiner="sum").compute_output_shape(shape) == (None, 4)
    shapes = dict.fromkeys("ab", shape)
    assert group(True).compute_output_shape(shapes) == (None, 6)
    assert group().compute_output_shape(shapes) == {"a": (None, 4), "b": (None, 2)}
    for layer in (kt.Embedding(4, combiner="sum"), kt.GroupEmbedding({"a": {"output_dim": 4}})):
        its = (2, 3, 4) if isinstance(layer, kt.Embedding) else {"a": (2, 3, 4)}
        with pytest.raises(ValueError, match="ids for a combiner: expected shape"):
            layer.compute_output_shape(its)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_mask_of_an_input_is_used_in_a_model_and_saved_with_it(kind, dtype, tmp_path):
    """A mean over the ids that are no padding, written with compute_mask."""
    ids = keras.Input((3,), dtype=dtype, sparse=kind == "sparse")
    layer = kt.Embedding(4, mask_zero=True, optimizer=optimizers.SGD(0.1), name="emb")
    mask = layer.compute_mask(ids)
    assert isinstance(mask, keras.KerasTensor) and mask.shape == (None, 3)
    pooled = keras.layers.GlobalAveragePooling1D()(layer(ids), mask=mask)
    model = keras.Model(ids, pooled)
    x = IDS.astype(dtype)
    given = sparse(x) if kind == "sparse" else x
    rows = layer(IDS).numpy()
    expected = [rows[0, [0, 2]].mean(0), rows[1, 2]]
    np.testing.assert_allclose(model(given), expected, rtol=1e-6)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(loaded(given), model(given), rtol=1e-6)


def test_ragged_ids_have_no_mask():
    layer = kt.Embedding(4, mask_zero=True)
    assert layer.compute_mask(keras.Input((None,), dtype="int64", ragged=True)) is None
    assert layer.compute_mask(tf.ragged.constant([[1, 0]])) is None


@pytest.mark.parametrize("make", [lambda: kt.Embedding(4, mask_value=-1), group])
def test_a_layer_is_made_again_from_what_it_says_of_itself(make):
    layer = make()
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again.build_from_config(layer.get_build_config() or {"input_shape": None})
    assert len(again.tables) == len(layer.tables) or not layer.built


@pytest.mark.parametrize("partitions", [1, 2])
def test_candidates_are_the_rows_and_their_ids(partitions):
    layer = kt.Embedding(4, partitions=partitions)
    with pytest.raises(ValueError, match="candidates: expected a layer that is built"):
        layer.candidates()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([7, -7, 3, 7])))
    tf_multitier.optimizers.SGD(0.1).apply_gradients(
        [(tape.gradient(loss, layer.embeddings), layer.embeddings)]
    )
    ids, matrix = layer.candidates()
    assert ids.numpy().tolist() == [-7, 3, 7]
    same_bits(matrix, layer(ids))
    with pytest.raises(ValueError, match=r"found a graph: call candidates\(ids\)"):
        tf.function(layer.candidates)()
    shape = tf.function(lambda: tf.constant(layer.candidates(ids[:2])[1].shape.as_list()))
    assert shape().numpy().tolist() == [2, 4]
    for rows in (layer.embeddings, layer.weights[0]):
        with pytest.raises(NotImplementedError, match=r"candidates\(\)"):
            tf.convert_to_tensor(rows)
    some, values = layer.candidates([3, 100])
    assert some.numpy().tolist() == [3, 100]
    same_bits(values, layer(np.array([3, 100])))
    nearest = tf.argmax(
        tf.matmul(
            layer(np.array([7])), matrix / tf.norm(matrix, axis=1, keepdims=True), transpose_b=True
        ),
        1,
    )
    assert tf.gather(ids, nearest).numpy().tolist() == [7]
