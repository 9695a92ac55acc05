"""One table for several features of a GroupEmbedding, and one owner for each table."""

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
SEEN, BOUGHT = RNG.integers(0, 20, (64, 3)), RNG.integers(10, 30, (64, 2))
INPUTS = {"seen": SEEN, "bought": BOUGHT}
Y = RNG.normal(size=(64, 1)).astype("float32")


def item(**kwargs):
    return kt.Embedding(4, combiner="sum", name="item", **kwargs)


def by_object(**kwargs):
    shared = item(**kwargs)
    return {"seen": shared, "bought": shared}


def by_name(**kwargs):
    return {"bought": "seen", "seen": item(**kwargs)}


def model(pool):
    keras.utils.set_random_seed(7)
    inputs = {
        name: keras.Input((ids.shape[1],), dtype="int64", name=name) for name, ids in INPUTS.items()
    }
    return keras.Model(inputs, keras.layers.Dense(1)(pool(inputs)))


def grouped(features, optimizer=None, concat=True):
    group = kt.GroupEmbedding(features, concat, optimizer, name="group")
    return model(
        lambda ids: (
            group(ids) if concat else keras.layers.Concatenate()([group(ids)[n] for n in INPUTS])
        )
    )


def called_twice(layer):
    """A model that calls one layer for both features."""
    return model(lambda ids: keras.layers.Concatenate()([layer(ids["seen"]), layer(ids["bought"])]))


def fit(trained, optimizer, epochs=3):
    trained.compile(optimizer, "mse")
    return trained.fit(INPUTS, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)


def export(layer):
    """Keys, values, versions and frequencies of the one table, in order of keys."""
    whole = layer.embeddings["seen"] if isinstance(layer, kt.GroupEmbedding) else layer.embeddings
    return [column.numpy() for column in whole.export()]


@pytest.mark.parametrize(
    "features, concat, is_own, partitions",
    [
        (by_object, True, True, 1),
        (by_object, False, False, 2),
        (by_name, True, False, 1),
        (by_name, False, True, 2),
    ],
)
def test_features_with_one_embedding_train_one_table_once_a_step(
    features, concat, is_own, partitions
):
    own = lambda: optimizers.Adagrad(0.1) if is_own else None
    of_model = lambda: "sgd" if is_own else kt.with_rows(keras.optimizers.Adagrad(0.1))
    features = features(partitions=partitions)
    if features["bought"] == "seen":  # concat is in the order of the features
        features = dict(reversed(features.items()))
    trained = grouped(features, own(), concat)
    twin_layer = item(partitions=partitions, optimizer=own())
    twin = called_twice(twin_layer)
    group = trained.get_layer("group")
    assert len(group.tables) == partitions and len(group.weights) == partitions
    twin.layers[-1].set_weights(trained.layers[-1].get_weights())
    source, target = group.embeddings["seen"], twin_layer.embeddings
    ids = np.arange(30)
    zeros = np.zeros(30, np.int64)
    target.upsert(ids, tf.nn.embedding_lookup(source, ids), frequencies=zeros)
    source.upsert(ids, tf.nn.embedding_lookup(source, ids), frequencies=zeros)
    losses = [fit(one, of_model()).history["loss"] for one in (trained, twin)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    (keys, values, versions, counts), expected = export(group), export(twin_layer)
    np.testing.assert_array_equal(keys, expected[0])
    np.testing.assert_allclose(values, expected[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(versions, expected[2])
    np.testing.assert_array_equal(counts, expected[3])
    occurrences = np.concatenate([SEEN.ravel(), BOUGHT.ravel()])
    np.testing.assert_array_equal(counts, 3 * np.bincount(occurrences, minlength=30))


def test_saved_loaded_and_cloned_features_still_share_a_table(tmp_path):
    trained = grouped(by_object(), optimizers.Adam(0.01))
    fit(trained, "sgd")
    expected = export(trained.get_layer("group"))
    trained.save(tmp_path / "m.keras")
    trained.save_weights(tmp_path / "m.weights.h5")
    prefix = tf.train.Checkpoint(model=trained).write(str(tmp_path / "checkpoint"))
    made = keras.models.clone_model(trained)
    loaded = keras.models.load_model(tmp_path / "m.keras")
    by_weights, by_checkpoint = (
        grouped(by_name() if i else by_object(), optimizers.Adam(0.01)) for i in range(2)
    )
    by_weights.load_weights(tmp_path / "m.weights.h5")
    tf.train.Checkpoint(model=by_checkpoint).read(prefix).assert_existing_objects_matched()
    for one in (loaded, by_weights, by_checkpoint):
        same_bits(export(one.get_layer("group")), expected)
    made.set_weights(trained.get_weights())
    for one in (made, loaded):
        group = one.get_layer("group")
        assert len(group.tables) == 1
        assert group.embeddings["seen"] is group.embeddings["bought"]
    fit(trained, "sgd", 1), fit(loaded, "sgd", 1)
    same_bits(export(loaded.get_layer("group")), export(trained.get_layer("group")))


def test_a_table_has_one_owner():
    shared = item()
    kt.GroupEmbedding({"seen": shared, "bought": shared}, name="first")
    message = "found 'item', whose table is in group 'first': give that group all features"
    with pytest.raises(ValueError, match=f"layer 'second': feature 'x': expected .*{message}"):
        kt.GroupEmbedding({"x": shared}, name="second")
    for use in (lambda: shared(SEEN), shared.build, lambda: keras.Sequential([shared])(SEEN)):
        with pytest.raises(ValueError, match=message):
            use()
    refused = item()
    with pytest.raises(ValueError, match="expected names of features"):
        kt.GroupEmbedding({"a b": refused})
    assert refused(SEEN).shape == (64, 4)  # no group has it


@pytest.mark.parametrize(
    "features, found",
    [
        ({"a": "b"}, "feature 'a': .*found 'b'"),
        ({"a": "a"}, "feature 'a': .*found 'a'"),
        ({"a": "b", "b": "c", "c": {"output_dim": 4}}, "feature 'a': .*found 'b'"),
    ],
)
def test_a_name_of_no_table_is_refused(features, found):
    with pytest.raises(ValueError, match=found):
        kt.GroupEmbedding(features)


def test_equal_arguments_are_two_tables():
    arguments = {"output_dim": 4}
    group = kt.GroupEmbedding({"seen": arguments, "bought": arguments})
    group.build()
    assert len(group.tables) == 2


@pytest.mark.parametrize(
    "setting, found",
    [
        ({"trainable": False}, "found trainable=False"),
        ({"activity_regularizer": "l2"}, "activity_regularizer=<.*L2"),
    ],
)
def test_a_setting_of_a_feature_that_a_group_does_not_have_is_refused(setting, found):
    for feature in (item(**setting), {"output_dim": 4, **setting}):
        with pytest.raises(ValueError, match=f"feature 'a': .*{found}.*: give them to the group"):
            kt.GroupEmbedding({"a": feature})
