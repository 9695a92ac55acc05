"""Features of a GroupEmbedding without a combiner: an embedding per id, with a mask, as separate layers give them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")

RNG = np.random.default_rng(0)
USERS, HISTORY = RNG.integers(0, 9, (32, 2)), RNG.integers(0, 5, (32, 4))
INPUTS = {"user": USERS, "history": HISTORY, "seen": HISTORY}
ROWS = RNG.normal(size=(9, 4)).astype("float32")


def features():
    first = keras.initializers.Constant(ROWS)
    return {
        "user": kt.Embedding(4, first, combiner="mean"),
        "history": kt.Embedding(4, first, mask_zero=True),
        "seen": "history",
    }


def model(look_up):
    inputs = {
        name: keras.Input((ids.shape[1],), dtype="int64", name=name) for name, ids in INPUTS.items()
    }
    found = look_up(inputs)
    keras.utils.set_random_seed(7)
    steps = keras.layers.GRU(3)(found["history"])
    pooled = keras.layers.GlobalAveragePooling1D()(found["seen"])
    joined = keras.layers.Concatenate()([found["user"], steps, pooled])
    made = keras.Model(inputs, keras.layers.Dense(1)(joined))
    made.compile(kt.with_rows(keras.optimizers.Adagrad(0.1)), "mse")
    return made


def apart(inputs):
    layers = features()
    layers["seen"] = layers["history"]
    return {name: layers[name](ids) for name, ids in inputs.items()}


def test_a_group_trains_sequences_with_masks_as_separate_layers_do(tmp_path):
    group, separate = model(lambda ids: kt.GroupEmbedding(features())(ids)), model(apart)
    for made in (group, separate):
        made.fit(INPUTS, np.ones(32), batch_size=8, epochs=2, shuffle=False, verbose=0)
    expected = separate.predict(INPUTS, verbose=0)
    np.testing.assert_allclose(group.predict(INPUTS, verbose=0), expected, rtol=1e-6, atol=1e-6)
    unmasked = dict(INPUTS, history=np.where(HISTORY == 0, 8, HISTORY))
    assert np.abs(group.predict(unmasked, verbose=0) - expected).max() > 1e-4
    group.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    same_bits(again.predict(INPUTS, verbose=0), group.predict(INPUTS, verbose=0))


@pytest.mark.parametrize(
    "form",
    [tf.constant, tf.RaggedTensor.from_tensor, tf.sparse.from_dense],
    ids=lambda f: f.__name__,
)
def test_forms_of_ids_give_values_and_masks_of_an_embedding(form):
    ids = form(HISTORY)
    group, alone = kt.GroupEmbedding(features()), features()["history"]
    found, expected = group({"user": USERS, "history": ids, "seen": ids}), alone(ids)
    for name in ("history", "seen"):
        assert type(found[name]) is type(expected)
        same_bits(*(getattr(its, "flat_values", its) for its in (found[name], expected)))
    masks, mask = (
        group.compute_mask({"user": USERS, "history": ids, "seen": ids}),
        alone.compute_mask(ids),
    )
    assert masks["user"] is None and (mask is None) == (masks["history"] is None)
    if mask is not None:
        same_bits(masks["history"], mask)


def test_what_sequences_can_not_do_is_refused():
    with pytest.raises(
        ValueError, match="'history': expected .*a combiner with concat=True, found"
    ):
        kt.GroupEmbedding(features(), concat=True)
    with pytest.raises(ValueError, match=r"weights: expected those of features with a combiner"):
        kt.GroupEmbedding(features())(INPUTS, weights={"seen": np.ones((32, 4), np.float32)})
    assert kt.GroupEmbedding(features()).compute_output_shape(
        {"user": (None, 2), "history": (None, 4), "seen": (None, 4)}
    ) == {"user": (None, 4), "history": (None, 4, 4), "seen": (None, 4, 4)}
