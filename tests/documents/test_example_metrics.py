"""What the examples measure and generate: metrics, tables of rows in tiers, expected ids."""

import os
import sys

import numpy as np
import pytest
from paths import ROOT

_EXAMPLES = os.path.join(ROOT, "examples")
sys.path.insert(0, _EXAMPLES)

import criteo  # noqa: E402
import metrics  # noqa: E402


def test_auc_equals_counting_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = rng.integers(0, 2, 30)
        labels[:2] = [0, 1]
        scores = rng.integers(0, 6, 30)  # many ties
        positive, negative = scores[labels == 1][:, None], scores[labels == 0][None, :]
        expected = np.mean((positive > negative) + 0.5 * (positive == negative))
        assert metrics.auc(labels, scores) == pytest.approx(expected, abs=1e-12)


def test_auc_refuses_one_class_and_nan():
    with pytest.raises(ValueError, match="3 positives and 0 negatives"):
        metrics.auc([1, 1, 1], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
        metrics.auc([0, 1], [0.1, np.nan])
    with pytest.raises(ValueError, match="two vectors of one length"):
        metrics.auc([0, 1], [0.1])


def test_log_loss_equals_its_definition_and_does_not_overflow():
    labels, logits = np.array([1.0, 0.0, 1.0]), np.array([0.3, -2.0, 4.0])
    p = 1 / (1 + np.exp(-logits))
    expected = -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))
    assert metrics.log_loss(labels, logits) == pytest.approx(expected, rel=1e-12)
    assert metrics.log_loss([1.0, 0.0], [-1000.0, 1000.0]) == 1000.0


def test_recall_at_k_strikes_out_seen_items_and_counts_ties_against():
    scores = np.array([[9.0, 8.0, 7.0], [1.0, 1.0, 1.0]])
    assert metrics.recall_at_k(scores, [1, 0], k=1) == 0.0
    assert metrics.recall_at_k(scores, [1, 0], k=1, seen=([0], [0])) == 0.5
    assert metrics.recall_at_k(scores, [1, 0], k=3) == 1.0
    with pytest.raises(ValueError, match="k: expected 1 to 3, found 4"):
        metrics.recall_at_k(scores, [1, 0], k=4)


def test_tiers_add_up_over_parts_and_tables_and_since_takes_counts_only():
    tier = dict(rows=5, row_bytes=2048, resident_bytes=4096, hits=30, promotions=1, demotions=2)
    disk = dict(
        tier, name="ssdhash", hits=10, resident_bytes=0, stored_bytes=8192, device_read_bytes=512
    )
    part = dict(
        tiers=[dict(tier, name="dram"), disk],
        rows=5,
        absent=10,
        index_bytes=1000,
        filter_bytes=24,
    )
    stats = {"a": part, "b": {"parts": [part, part]}}
    totals = metrics.tier_totals(stats)
    assert list(totals) == ["dram", "ssdhash"]
    assert totals["dram"]["rows"] == 15 and totals["dram"]["memory"] == 3 * (4096 + 1024)
    assert totals["ssdhash"]["stored_bytes"] == 3 * 8192 and totals["ssdhash"]["memory"] == 0
    assert metrics.hit_rate(totals["dram"]) == 0.6 and metrics.hit_rate(totals["ssdhash"]) == 0.2
    changed = metrics.since(totals, metrics.tier_totals({"a": part}))
    assert (
        changed["dram"]["promotions"] == 2
        and changed["dram"]["rows"] == 15
        and changed["ssdhash"]["keys"] == 100
    )
    assert metrics.since(totals, {}) == totals
    text = metrics.format_table(*metrics.table_rows(stats)).splitlines()
    assert text[0].split()[:3] == ["table", "tier", "rows"]
    assert text[2].split() == "a dram 5 2.0 KiB 5.0 KiB 0 B 60.0% 1 2 0 B 0 B".split()
    assert text[5].split() == "b ssdhash 10 4.0 KiB 0 B 16.0 KiB 20.0% 2 4 1.0 KiB 0 B".split()
    assert text[6].split() == "total dram 15 6.0 KiB 15.0 KiB 0 B 60.0% 3 6 0 B 0 B".split()
    assert (
        "hit rate  20.0%   up         3  down         6   read   1.5 KiB"
        in metrics.format_tiers(totals)
    )


def test_a_progress_bar_ends_at_the_steps_that_were_taken(capsys):
    for total in (10, None):
        bar = metrics.ProgressBar(total=total, mininterval=100.0)
        for _ in range(3):
            bar.update()
        bar.end()
        assert " 3/3 " in capsys.readouterr().err.split("\r")[-1]


def test_totals_have_a_line_for_each_tier_and_no_table():
    tier = dict(
        rows=5, row_bytes=2048, resident_bytes=4096, hits=30, promotions=1, demotions=2, name="dram"
    )
    stats = {"a": dict(tiers=[tier], rows=5, absent=10, index_bytes=0, filter_bytes=0)}
    header, _, line = metrics.format_totals(stats).splitlines()
    assert header.split() == "tier rows row bytes memory disk hit rate".split()
    assert line.split() == "dram 5 2.0 KiB 4.0 KiB 0 B 75.0%".split()


def test_expected_ids_are_what_is_drawn():
    model = criteo.ClickModel(seed=5)
    _, _, cats = model.draw(20_000, np.random.default_rng(1))
    drawn = np.array([len(set(column) - {b""}) for column in cats.T])
    np.testing.assert_allclose(model.expected_ids(20_000), drawn, rtol=0.05, atol=3)
