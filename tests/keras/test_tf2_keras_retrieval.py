"""Retrieval: the exact top k of queries over all rows of a layer's table."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
RNG = np.random.default_rng(0)
QUERIES = RNG.integers(-2, 3, (6, 4)).astype("float32")
KEYS = np.concatenate([RNG.choice(10**6, 198, False) - 5 * 10**5, [-1, 2**63 - 1]])
# Small integers: many equal scores, and no rounding.
VALUES = RNG.integers(-2, 3, (200, 4)).astype("float32")


def filled(keys=KEYS, values=VALUES, **kwargs):
    layer = kt.Embedding(4, name="items", **kwargs)
    layer.build()
    layer.embeddings.upsert(keys, values)
    return layer


def expected(k, queries=QUERIES, exclude=None, keys=KEYS, values=VALUES):
    """By sorting all, best first, then by id."""
    scores, ids = (
        np.full((len(queries), k), -np.inf, "float32"),
        np.full((len(queries), k), -1, keys.dtype),
    )
    for i, query in enumerate(queries):
        left = ~np.isin(keys, [] if exclude is None else exclude[i])
        its, their = (values @ query)[left], keys[left]
        order = np.lexsort((their, -its))[:k]
        scores[i, : len(order)], ids[i, : len(order)] = its[order], their[order]
    return scores, ids


def same(found, wanted):
    for one, other in zip(found, wanted):
        same_bits(one, other)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("k, block_rows", [(5, 7), (5, 1000), (40, 16), (300, 50)])
def test_results_are_those_of_a_sort_of_all_rows(partitions, k, block_rows):
    search = kt.Retrieval(filled(partitions=partitions), k, block_rows=block_rows)
    same(search(QUERIES), expected(k))
    seen = [RNG.choice(KEYS, n, False).tolist() for n in (0, 3, 50, 200, 1, 199)]
    seen[1].append(77)  # no item
    ragged = tf.ragged.constant(seen, tf.int64)
    for exclude in (ragged, ragged.to_sparse()):
        same(tf.function(search)(QUERIES, exclude=exclude), expected(k, exclude=seen))
    if k == 5:
        same(
            search(QUERIES, exclude=KEYS[None, :4].repeat(6, 0)),
            expected(k, exclude=[KEYS[:4]] * 6),
        )


@pytest.mark.parametrize("dtype", ["uint64", "uint32", "int32"])
def test_ids_have_the_order_and_type_of_the_keys(dtype):
    keys = np.array([0, 1, np.iinfo(dtype).max, 3], dtype)
    search = kt.Retrieval(filled(keys, np.ones((4, 4), "float32"), key_dtype=dtype), 3)
    spec = search(keras.Input((4,)))[1]
    found = search(np.ones((1, 4)), exclude=tf.ragged.constant([[1]], tf.as_dtype(dtype)))[1]
    assert spec.dtype == found.dtype.name == ("int64" if dtype == "int32" else dtype)
    assert found.numpy().tolist() == [[0, 3, np.iinfo(dtype).max]]


def test_rows_that_were_not_admitted_or_not_trained_are_no_items():
    option = tf_multitier.EmbeddingVariableOption(filter_option=tf_multitier.CounterFilter(2))
    layer = kt.Embedding(4, ev_option=option, optimizer=tf_multitier.optimizers.SGD(0.1))
    search = kt.Retrieval(layer, 2)
    scores, ids = search(QUERIES)
    same((scores, ids), (np.full((6, 2), -np.inf, "float32"), np.full((6, 2), -1)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([7, 8, 7])))
    layer.optimizer.apply_gradients([(tape.gradient(loss, layer.embeddings), layer.embeddings)])
    assert search(QUERIES)[1].numpy().tolist() == [[7, -1]] * 6


def test_rows_of_lower_tiers_are_found_and_stay_there(tmp_path):
    storage = tf_multitier.StorageOption(
        "DRAM_SSDHASH", storage_path=str(tmp_path), storage_size=[20 * 16]
    )
    layer = filled(ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage))
    layer.embeddings.drain()
    tiers = layer.embeddings.lookup_tier(KEYS).numpy()
    assert set(tiers) == {0, 1}
    same(kt.Retrieval(layer, 5, block_rows=32)(QUERIES), expected(5))
    layer.embeddings.drain()
    same_bits(layer.embeddings.lookup_tier(KEYS), tiers)


class HitRate(keras.metrics.Mean):
    """How many of the wanted ids are among those that were found."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        found = tf.reduce_any(tf.cast(y_true, tf.int64) == y_pred, 1)
        return super().update_state(tf.cast(found, tf.float32))


@pytest.mark.parametrize("of_group", [False, True])
def test_a_model_with_a_search_is_trained_evaluated_saved_and_exported(of_group, tmp_path):
    ids, seen = (
        keras.Input((), dtype="int64", name="ids"),
        keras.Input((None,), dtype="int64", ragged=True, name="seen"),
    )
    if of_group:
        layer = kt.GroupEmbedding(
            {"item": "t"}, tables={"t": kt.Embedding(4, combiner="sum")}, name="items"
        )
        values = layer({"item": ids})["item"]
    else:
        layer = kt.Embedding(4, name="items")
        values = layer(ids)
    query = keras.layers.Dense(4, name="query")(values)
    score = keras.layers.Dense(1, name="score")(query)
    search = kt.Retrieval(layer, 3, "item" if of_group else None, name="search")
    made = {"score": score, "found": search(query, exclude=seen)[1]}
    model = keras.Model({"ids": ids, "seen": seen}, made)
    model.compile(
        kt.with_rows(keras.optimizers.Adam(0.01)),
        {"score": "mse"},
        metrics={"found": HitRate(name="hits")},
    )
    x = {"ids": KEYS[:8], "seen": tf.RaggedTensor.from_tensor(KEYS[:8, None])}
    y = {"score": np.ones(8, "float32"), "found": KEYS[:8, None]}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    model.fit(data, epochs=2, verbose=0)
    assert model.evaluate(data, return_dict=True, verbose=0)["found_hits"] == 0  # each is excluded
    found = model.predict(data, verbose=0)["found"]
    assert np.isin(found, KEYS[:8]).all() and all(len(set(row)) == 3 for row in found.tolist())
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", custom_objects={"HitRate": HitRate})
    assert loaded.get_layer("search").layer is loaded.get_layer("items")
    same_bits(loaded.predict(data, verbose=0)["found"], found)
    module = tf.Module()
    module.model = model
    module.serve = tf.function(
        lambda ids, seen: model({"ids": ids, "seen": seen})["found"],
        [tf.TensorSpec([None], tf.int64), tf.RaggedTensorSpec([None, None], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"))
    served = tf.saved_model.load(str(tmp_path / "saved"))
    same_bits(served.serve(tf.constant(x["ids"]), x["seen"]), found)
    of_all = keras.Model(ids, search(query))
    of_all.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "exported"))
    same(served.serve(tf.constant(x["ids"])), of_all(x["ids"]))


def test_what_a_search_can_not_do_is_refused():
    with pytest.raises(TypeError, match="layer: expected a tf_multitier.keras.Embedding or Group"):
        kt.Retrieval(keras.layers.Embedding(5, 4))
    group = kt.GroupEmbedding({"item": {"output_dim": 4}})
    with pytest.raises(ValueError, match="feature: expected 'item', found 'itm': did you mean"):
        kt.Retrieval(group, feature="itm")
    search = kt.Retrieval(filled(), 2)
    with pytest.raises(ValueError, match=r"queries: expected shape \[batch, 4\], found \(6, 3\)"):
        search(QUERIES[:, :3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclude: expected a row for each"):
        search(QUERIES, exclude=tf.ragged.constant([[1]], tf.int64))
