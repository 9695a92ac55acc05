"""Tables of a GroupEmbedding that several features read, each in its own way: features={...}, tables={...}."""

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
v1 = tf.compat.v1.train

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(8, 4)).astype("float32")
IDS = {name: RNG.integers(0, 8, (64, n)) for name, n in (("item", 1), ("basket", 4), ("seen", 2))}
FEATURES = {
    "item": "items",
    "basket": {"table": "items", "combiner": "mean"},
    "seen": {"table": "items", "combiner": None},
}


def items(combiner="sum", **kwargs):
    return kt.Embedding(4, keras.initializers.Constant(ROWS), combiner=combiner, **kwargs)


def group(features=FEATURES, **kwargs):
    return kt.GroupEmbedding(features, tables={"items": items()}, name="group", **kwargs)


def outputs(found):
    """Of each feature, as one tensor."""
    return tf.concat([found["item"], found["basket"], tf.reshape(found["seen"], [64, 8])], 1)


RULES = {
    "SGD": (optimizers.SGD(0.5), v1.GradientDescentOptimizer(0.5)),
    "Adagrad": (optimizers.Adagrad(0.1), v1.AdagradOptimizer(0.1)),
    "Adam": (optimizers.Adam(0.1, epsilon=1e-7), v1.AdamOptimizer(0.1, epsilon=1e-7)),
}


@pytest.mark.parametrize("rule", list(RULES))
def test_a_step_is_that_of_a_static_table_that_is_used_for_each_feature(rule):
    """To the last digit: gradients are sums of quarters, which have no rounding, and each step has every row."""
    layer, table = group(optimizer=RULES[rule][0]), tf.Variable(ROWS)
    layer(IDS)
    wanted = RNG.integers(-3, 4, (64, 16)).astype("float32")
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(wanted * outputs(layer(IDS)))
        [one] = layer.tables
        layer.optimizer.apply_gradients([(tape.gradient(loss, one), one)])
        with tf.GradientTape() as tape:
            found = {name: tf.gather(table, ids) for name, ids in IDS.items()}
            pooled = {"item": found["item"][:, 0], "basket": tf.reduce_mean(found["basket"], 1)}
            loss = tf.reduce_sum(wanted * outputs(found | pooled))
        summed = tf.convert_to_tensor(tape.gradient(loss, table))
        slices = tf.IndexedSlices(summed, tf.range(8), [8, 4])  # rules for slices use no rsqrt
        RULES[rule][1].apply_gradients([(slices, table)])
    same_bits(layer.tables[0].peek(np.arange(8)), table)
    same_bits(layer.tables[0].get_version(np.arange(8)), np.full(8, 2))


@pytest.mark.parametrize(
    "form",
    [np.asarray, tf.RaggedTensor.from_tensor, tf.sparse.from_dense],
    ids=["dense", "ragged", "sparse"],
)
def test_of_each_row_the_first_ids_count(form):
    """As if the others were not given: values, weights, masks and shapes."""
    made = lambda **most: kt.GroupEmbedding(
        {
            "basket": {"table": "items", "combiner": "mean", **most},
            "seen": {"table": "items", "combiner": None, **most},
        },
        tables={"items": items(mask_value=3)},
    )
    layer, whole = made(max_ids=2), made()
    weights = RNG.normal(size=(64, 4)).astype("float32")
    given = lambda n: (
        {name: form(IDS["basket"][:, :n] + 1) for name in ("basket", "seen")},
        {"basket": form(weights[:, :n])},
    )
    (long, its_weights), (short, expected_weights) = given(4), given(2)
    found, expected = layer(long, weights=its_weights), whole(short, weights=expected_weights)
    for name in found:
        same_bits(*(getattr(its, "flat_values", its) for its in (found[name], expected[name])))
    masks, wanted = layer.compute_mask(long), whole.compute_mask(short)
    assert masks["basket"] is None and (masks["seen"] is None) == (wanted["seen"] is None)
    if wanted["seen"] is not None:
        same_bits(masks["seen"], wanted["seen"])
    assert layer.compute_output_shape({"basket": (None, 4), "seen": (None, 4)})["seen"] == (
        None,
        2,
        4,
    )


def test_of_sparse_ids_the_first_count_wherever_they_are():
    layer = kt.GroupEmbedding(
        {"basket": {"table": "items", "combiner": "sum", "max_ids": 2}}, tables={"items": items()}
    )
    places = [[0, 0], [0, 5], [0, 6], [2, 4]]
    sparse = lambda values: tf.SparseTensor(places, values, [3, 7])
    found = layer(
        {"basket": sparse([1, 2, 3, 4])}, weights={"basket": sparse([0.5, 2.0, 8.0, 4.0])}
    )
    ids = {"basket": tf.ragged.constant([[1, 2], [], [4]])}
    expected = layer(ids, weights={"basket": tf.ragged.constant([[0.5, 2.0], [], [4.0]])})
    same_bits(found["basket"], expected["basket"])


def test_a_model_with_tables_is_saved_and_made_again(tmp_path):
    inputs = {
        name: keras.Input((ids.shape[1],), dtype="int64", name=name) for name, ids in IDS.items()
    }
    found = group(optimizer=optimizers.Adagrad(0.1))(inputs)
    joined = [found["item"], found["basket"], keras.layers.GRU(3)(found["seen"])]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(joined)))
    model.compile("sgd", "mse")
    model.fit(IDS, np.ones(64), batch_size=16, verbose=0)
    model.save(tmp_path / "m.keras")
    model.export(tmp_path / "served", verbose=False)
    expected = model.predict(IDS, verbose=0)
    loaded = keras.models.load_model(tmp_path / "m.keras")
    again = loaded.get_layer("group")
    assert again.get_config() == model.get_layer("group").get_config()
    assert len(again.tables) == 1 and again.tables[0].stats()["rows"] == 8
    same_bits(loaded.predict(IDS, verbose=0), expected)
    served = tf.saved_model.load(tmp_path / "served")
    found = served.serve({name: tf.constant(ids) for name, ids in IDS.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "features, found",
    [
        ({"a": "item"}, "feature 'a': expected the name of a table.*'item': did you mean 'items'"),
        ({"a": {"table": "item"}}, "feature 'a': expected the name of a table.*'item'"),
        ({"a": {"table": "items", "combinr": "sum"}}, "'combinr': did you mean 'combiner'"),
        ({"a": {"table": "items", "combiner": "men"}}, "feature 'a': combiner: .*found 'men'"),
        ({"a": {"table": "items", "max_ids": 0}}, "feature 'a': max_ids: expected at least 1"),
        ({"items": {"output_dim": 4}, "a": "items"}, "feature 'items': expected another name"),
        (
            {"a": {"output_dim": 4}},
            r"tables: expected a feature for each, found none for \['items'\]",
        ),
    ],
)
def test_a_feature_that_fits_no_table_is_refused(features, found):
    with pytest.raises(ValueError, match=found):
        group(features)
