"""Training of tf_multitier.dynamicemb against dense NumPy tables in the arithmetic of FBGEMM, and the same bits in every storage."""

import dynamicemb_util as util
import numpy as np
import pytest
import tensorflow as tf
import worlds

from tf_multitier import dynamicemb as de

pytestmark = worlds.needs_eager

KIND = de.EmbOptimType
DIMS = (1, 7, 64, 1023)
STEPS, IDS = 8, 20
RATE, EPS = 0.1, 1e-3


def _sgd(t, w, g, states):
    return w - RATE * g


def _adam(t, w, g, states, decay=0.0):
    m, v = states.setdefault("m", np.zeros_like(w)), states.setdefault("v", np.zeros_like(w))
    m += 0.1 * (g - m)
    v += 0.001 * (g * g - v)
    corrected = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + EPS)
    return w - RATE * (corrected + decay * w)


def _adagrad(t, w, g, states):
    total = states.setdefault("sum", np.full_like(w, 0.5))
    total += g * g
    return w - RATE * g / (np.sqrt(total) + EPS)


def _rowwise(t, w, g, states):
    states["sum"] = states.get("sum", 0.0) + np.mean(g * g)
    return w - RATE * g / (np.sqrt(states["sum"]) + EPS)


def _decayed(t, w, g, states):
    return _adam(t, w, g, states, decay=0.1)


# (fused_params, the rule, float64; the limit of each gradient).
CASES = {
    "sgd": ({"optimizer": KIND.EXACT_SGD}, _sgd, None),
    "adam": ({"optimizer": KIND.ADAM}, _adam, None),
    "adamw": (
        {
            "optimizer": KIND.ADAM,
            "weight_decay": 0.1,
            "gradient_clipping": True,
            "max_gradient": 0.5,
        },
        _decayed,
        0.5,
    ),
    "adagrad": (
        {"optimizer": KIND.EXACT_ADAGRAD, "initial_accumulator_value": 0.5},
        _adagrad,
        None,
    ),
    "rowwise": ({"optimizer": KIND.EXACT_ROWWISE_ADAGRAD}, _rowwise, None),
}


def _tables(static=False):
    tables = [util.config(f"t{dim}", dim, features=[f"f{dim}", f"g{dim}"]) for dim in DIMS]
    return tables + ([util.config("static", 5, IDS)] if static else [])


def _batches(made, seed=0):
    """[({feature: ids [12]}, {feature: gradients [12, dim]})]; ids repeat."""
    rng = np.random.default_rng(seed)
    dims = {
        feature: table.config.embedding_dim
        for table in made.tables_by_name.values()
        for feature in table.config.feature_names
    }
    return [
        (
            {feature: rng.integers(0, IDS, 12) for feature in dims},
            {feature: rng.normal(size=(12, dim)).astype("f") for feature, dim in dims.items()},
        )
        for _ in range(STEPS)
    ]


@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_dense_tables_in_fbgemms_arithmetic(case):
    fused, rule, limit = CASES[case]
    made = util.collection(
        _tables(static=True), {"static": None}, learning_rate=RATE, eps=EPS, **fused
    )
    every = {table.feature_names[0]: np.arange(IDS) for table in made.embedding_configs()}
    rows = {f: np.array(v, np.float64) for f, v in made(every, training=True).items()}
    states = {f: [{} for _ in range(IDS)] for f in rows}
    step = tf.function(lambda ids, weights: util.train(made, ids, weights=weights))
    for t, (ids, weights) in enumerate(_batches(made), 1):
        step(ids, weights)
        for table in made.embedding_configs():
            first, sums = table.feature_names[0], {}
            for feature in table.feature_names:
                its = weights[feature].astype(np.float64)
                its = its if limit is None else np.clip(its, -limit, limit)
                for key, gradient in zip(ids[feature].tolist(), its):
                    sums[key] = sums.get(key, 0.0) + gradient
            for key, gradient in sums.items():
                rows[first][key] = rule(t, rows[first][key], gradient, states[first][key])
    for feature, found in made(every, training=True).items():
        np.testing.assert_allclose(found, rows[feature], 1e-4, 1e-5, err_msg=feature)


def test_every_storage_and_type_of_values_trains_as_dram_does(tmp_path):
    def trained(data_type=de.DataType.FP32, **storage):
        tf.random.set_seed(1)
        tables = _tables()
        for table in tables:
            table.data_type = data_type
        made = util.collection(
            tables, {t.name: util.options(**storage) for t in tables}, optimizer=KIND.ADAM
        )
        for ids, weights in _batches(made):
            util.train(made, ids, weights=weights)
        return [util.variable(made, t.name).export_rows() for t in tables]

    expected = trained()
    for kind in ("SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM_SSDHASH", "DRAM_LEVELDB"):
        found = trained(
            storage_type=kind, storage_path=str(tmp_path), global_hbm_for_values=4096, caching=True
        )
        for one, other in zip(expected, found):
            for a, b in zip(one[1:], other[1:]):
                np.testing.assert_array_equal(a, b, kind)
    half = trained(de.DataType.BF16)
    for one, other in zip(expected, half):
        np.testing.assert_allclose(one.rows, other.rows, 0.05, 0.05)
        states = np.asarray(other.rows)[:, other.rows.shape[1] // 3 :]
        rounded = tf.cast(tf.cast(states, tf.bfloat16), tf.float32)
        assert np.any(states != rounded)  # states are float32


@pytest.mark.parametrize("pooling", [de.PoolingType.SUM, de.PoolingType.MEAN], ids=str)
def test_the_gradient_of_a_bag_is_clipped_before_weights_and_mean(pooling):
    bag = de.EmbeddingBagConfig("t", 2, 100, ["t"], pooling=pooling)
    fused = {"learning_rate": 1.0, "gradient_clipping": True, "max_gradient": 0.5}
    made = de.EmbeddingBagCollection([bag], is_weighted=True)
    made.create({"t": util.options()}, fused)
    ids, weights = tf.constant([[1, 2]], tf.int64), tf.constant([[4.0, 8.0]])
    before = util.variable(made, "t").peek([1, 2])
    with tf.GradientTape() as tape:
        loss = 9 * tf.reduce_sum(made({"t": ids}, {"t": weights}, training=True)["t"])
    made.apply_gradients(tape.gradient(loss, made.parameters()))
    count = 2 if pooling is de.PoolingType.MEAN else 1
    step = [[0.5 * weight / count] * 2 for weight in (4.0, 8.0)]
    np.testing.assert_allclose(before - util.variable(made, "t").peek([1, 2]), step, 1e-6)
