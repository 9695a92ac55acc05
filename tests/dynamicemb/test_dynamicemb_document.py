"""The program of dynamicemb's document: it trains and evaluates, with and without a cache, and gives the same values."""

import os
import runpy

import numpy as np
import pytest
import tensorflow as tf
from worlds import needs_eager

from tf_multitier import dynamicemb as de

pytestmark = needs_eager
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "collection.py")
STEPS, BATCH, IDS, KEYS = 100, 64, 3, 1000  # fewer keys than rows, so that none leaves


def trained(caching, storage):
    """(model, losses) after the program and STEPS steps with random ids."""
    tf.random.set_seed(1)
    scope = runpy.run_path(PROGRAM, {"caching": caching, "storage": storage})
    model, rng = scope["model"], np.random.default_rng(1)

    @tf.function(autograph=False)
    def step(values, lengths, labels):
        with tf.GradientTape() as tape:
            rows = model(de.KeyedJaggedTensor(["user_id"], values, lengths=lengths))["user_id"]
            logits = tf.reduce_sum(rows, [1, 2])
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        model.apply_gradients(tape.gradient(loss, model.parameters()))
        return loss

    losses, lengths = [], tf.fill([BATCH], IDS)
    for _ in range(STEPS):
        ids = np.minimum(rng.zipf(1.2, BATCH * IDS), KEYS)
        labels = (ids.reshape(BATCH, IDS) % 2).sum(1) > 1
        losses.append(float(step(ids, lengths, labels.astype(np.float32))))
    return model, losses


def evaluated(model, keys):
    ids = tf.RaggedTensor.from_row_splits(keys, [0, 0, len(keys)])
    return model.eval()({"user_id": ids})["user_id"].flat_values.numpy()


def test_the_program_trains_and_evaluates_the_same_with_and_without_a_cache(tmp_path, capsys):
    ssd = {"storage_type": "DRAM_SSDHASH", "storage_path": str(tmp_path)}
    keys, first = np.arange(1, KEYS + 100), None
    for caching, storage in ((False, {}), (True, {}), (True, ssd)):
        model, losses = trained(caching, storage)
        [variable] = model.parameters()
        assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])
        rows, count = evaluated(model, keys), int(variable.total_count())
        assert 512 < count == int(variable.total_count())
        assert count == (rows != 0).any(1).sum()  # an absent key reads as zeros
        held = [tier["rows"] for tier in variable.stats()["tiers"]]
        assert held[0] <= (512 if storage else count)  # half the bytes
        first = (losses, rows) if first is None else first
        assert losses == first[0]
        np.testing.assert_array_equal(rows, first[1])
        assert (
            f"user_id: at most 1,024 rows of 192 bytes, {1024 * 192:,}" in capsys.readouterr().out
        )


@pytest.mark.parametrize("caching", [False, True])
def test_the_next_step_has_the_next_score(caching):
    model, _ = trained(caching, {})
    [variable] = model.parameters()
    assert int(tf.reduce_max(variable.get_version([1]))) == STEPS
