"""Models for tests of dumps, and the files of a dump, read and written by what the format says alone."""

import glob
import json
import os

import numpy as np
import tensorflow as tf

from tf_multitier import dynamicemb as de

DIMS = {"a": 4, "b": 3}
STATES = {"sgd": 0, "adam": 2, "exact_adagrad": 1}  # values a row has of them; rowwise: one number
STRATEGY = de.DynamicEmbScoreStrategy
PAIR = (STRATEGY.TIMESTAMP, STRATEGY.LFU)
EVICTION = {
    STRATEGY.STEP: "KCustomized",
    STRATEGY.CUSTOMIZED: "KCustomized",
    STRATEGY.NO_EVICTION: "KCustomized",
    STRATEGY.TIMESTAMP: "KLru",
    STRATEGY.LFU: "KLfu",
    PAIR: "KLfu",
    PAIR[::-1]: "KLfu",
}


def make(
    strategy=STRATEGY.STEP,
    optimizer=de.EmbOptimType.SGD,
    data_type=de.DataType.FP32,
    fused=None,
    **options,
):
    """A collection of tables "a" and "b", with a feature each."""
    configs = [
        de.EmbeddingConfig(
            name=name,
            embedding_dim=dim,
            num_embeddings=1000,
            feature_names=[name],
            data_type=data_type,
        )
        for name, dim in DIMS.items()
    ]
    made = de.EmbeddingCollection(tables=configs, device="meta")
    its = {n: de.DynamicEmbTableOptions(score_strategy=strategy, **options) for n in DIMS}
    return made.create(its, {"optimizer": optimizer, "learning_rate": 0.1, **(fused or {})})


def train(model, ids):
    """A step in which both tables have these ids."""
    ids = tf.constant(ids, tf.int64)
    with tf.GradientTape() as tape:
        rows = model(dict.fromkeys(DIMS, ids), training=True)
        loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float32) ** 2) for r in rows.values()])
    model.apply_gradients(tape.gradient(loss, model.parameters()))


def everything(model):
    """{table: (keys, rows with states, versions)}, sorted by key, and the variables of the optimizer."""
    found = {}
    for name, table in model.tables_by_name.items():
        rows = table.variable.export_rows()
        found[name] = [np.asarray(x) for x in (rows.keys, rows.rows, rows.versions)]
    optimizer = model.row_optimizer.named_variables()
    return found, {name: v.numpy() for name, v in optimizer.items()}


def assert_same(found, expected):
    for name in DIMS:
        for x, y in zip(found[0][name], expected[0][name], strict=True):
            np.testing.assert_array_equal(x, y, strict=True)
    assert found[1] == expected[1]


def read(path, table, item, dtype, width=None, folder="model"):
    """An item of all ranks, one after the other."""
    names = sorted(glob.glob(os.path.join(path, folder, f"{table}_{item}.rank_*")))
    flat = np.concatenate([np.fromfile(name, dtype) for name in names])
    return flat if width is None else flat.reshape(-1, width)


def arguments(path, table, folder="model"):
    with open(os.path.join(path, folder, f"{table}_opt_args.json")) as file:
        return json.load(file)


def hand_made(path, keys, scores, world=1, arguments=None, states=None, counted=None):
    """A dump as another program writes it, without a manifest. The value of a key is the key, in each element.

    scores: int64 [n] or [n, 2]. states: {table: float32 [n, width]}. counted: (keys, counts).
    """
    os.makedirs(os.path.join(path, "model"))
    for table, dim in DIMS.items():
        arrays = {
            "emb_keys": keys,
            "emb_values": np.repeat(keys.astype(np.float32)[:, None], dim, 1),
            "emb_scores": scores,
        }
        if states is not None:
            arrays["emb_opt_values"] = states[table]
        if counted is not None:
            arrays["counter_keys"], arrays["counter_frequencies"] = counted
        for item, array in arrays.items():
            for rank in range(world):
                name = f"{table}_{item}.rank_{rank}.world_size_{world}"
                np.ascontiguousarray(array[rank::world]).tofile(os.path.join(path, "model", name))
        its = {"opt_type": "sgd", "lr": 0.1, "evict_strategy": "KCustomized", "step_score": 5}
        with open(os.path.join(path, "model", f"{table}_opt_args.json"), "w") as file:
            json.dump({**its, **(arguments or {})}, file)
