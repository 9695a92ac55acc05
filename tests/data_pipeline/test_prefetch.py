"""Prefetch of embedding variables: rows come up, stay until they are used or released, and no value changes."""

import numpy as np
import pytest
from storage_util import OVER_HBM
from storage_util import WorldModel
from storage_util import option

import tf_multitier


@pytest.mark.parametrize("parts", [1, 3])
def test_prefetch_brings_rows_up_and_keeps_them_until_they_are_used(world, parts, tmp_path):
    storage = option("DRAM_SSDHASH", tmp_path, rows=16, cache_strategy="LRU")
    model, keys = WorldModel(world, storage, parts=parts), np.arange(200)
    for key in keys:
        model.run([key])
    expected = model.look_up(keys)
    cold = [k for k, tier in zip(keys, model.tiers(keys)) if tier == 1][: 3 * parts]
    prefetch = lambda ids: model.ev.prefetch(ids, timeout=1000)
    kept = world.run(prefetch, np.concatenate([cold, cold]))
    assert 1 <= kept <= len(cold) and model.prefetched() == kept
    up = [k for k, tier in zip(cold, model.tiers(cold)) if tier == 0]
    assert len(up) == kept
    for key in keys[50:]:  # would evict every row that is not pinned
        model.run([key])
    assert model.tiers(up) == [0] * len(up)
    np.testing.assert_array_equal(model.look_up(up), expected[up])
    assert model.prefetched() == 0
    for key in keys[50:]:
        model.run([key])
    assert model.tiers(up) == [1] * len(up)


@pytest.mark.parametrize("parts", [1, 2])
def test_prefetched_rows_are_let_go_explicitly_and_in_time(world, parts, tmp_path):
    storage = option("DRAM_LEVELDB", tmp_path, rows=16, cache_strategy="LRU")
    model, keys = WorldModel(world, storage, parts=parts), np.arange(100)
    for key in keys:
        model.run([key])
    prefetch = lambda ids: model.ev.prefetch(ids, timeout=1000)
    assert world.run(prefetch, [1, 2, 3]) == model.prefetched() > 0
    model.ask("release_prefetched")
    assert model.prefetched() == 0
    assert world.run(lambda ids: model.ev.prefetch(ids, timeout=1e-6), [4, 5, 6]) > 0
    for key in keys[50:]:
        model.run([key])
    assert model.prefetched() == 0
    assert model.tiers([1, 2, 3, 4, 5, 6]) == [1] * 6


def test_prefetch_is_a_hint_that_creates_and_changes_nothing(world, tmp_path):
    for m, kept in (
        (WorldModel(world, option("SSDHASH", tmp_path), "ssd"), 0),
        (WorldModel(world, None, "dram"), 2 if OVER_HBM else 0),  # with HBM, rows are kept there
    ):
        m.run([1, 2, 3])
        before = m.content()
        # Without HBM, neither has rows elsewhere to keep in DRAM.
        assert m.ask("prefetch", [[1, 2], [2, 77]]) == kept
        assert m.ask("prefetch", np.zeros(0, np.int64)) == 0
        assert m.content() == before
        assert m.ask("pop_dropped").tolist() == []


@pytest.mark.parametrize(
    "timeout, error",
    [
        (0, ValueError),
        (-1.0, ValueError),
        (float("nan"), ValueError),
        ("1", TypeError),
        (float("inf"), ValueError),
        (True, TypeError),
        (None, TypeError),
    ],
)
def test_a_bad_timeout_is_refused(graph, timeout, error):
    ev = tf_multitier.get_embedding_variable("ev", 4)
    with pytest.raises(error, match="timeout: expected .* found"):
        ev.prefetch([1], timeout=timeout)
    with pytest.raises(error, match="timeout: expected .* found"):
        tf_multitier.data.prefetch_embeddings(lambda x: {ev: x}, timeout=timeout)
