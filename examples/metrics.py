"""What both examples measure and print: AUC, log loss, recall, progress, tables.

NumPy only, so that each number can be checked by hand.
"""

import json

import numpy as np
import tqdm


def auc(labels, scores):
    """Exact area under the ROC curve.

    It is the share of (positive, negative) pairs that the scores put in the right order, a tie
    counting one half (the Mann-Whitney statistic), from average ranks: O(n log n).

    Args:
      labels: [n], 1 (or True) for a positive, 0 for a negative.
      scores: [n], any real scale.

    Returns:
      A float in [0, 1].

    Raises:
      ValueError: shapes differ, a score is NaN, or one of the classes is missing.
    """
    labels, scores = _check_pair(labels, scores)
    positive = labels > 0.5
    positives = int(positive.sum())
    negatives = positive.size - positives
    if positives == 0 or negatives == 0:
        raise ValueError(
            f"AUC needs both classes; got {positives} positives and {negatives} negatives")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)  # ranks start at 1; ties share the average
    ranks = (last_rank - (counts - 1) / 2.0)[inverse]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2.0)
                 / (positives * negatives))


def log_loss(labels, logits):
    """Mean binary cross entropy in nats, from logits, without overflow. labels, logits: [n]."""
    labels, logits = _check_pair(labels, logits)
    return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


def recall_at_k(scores, held_out, k, seen=None):
    """Share of users whose held-out item is among their k best items.

    Args:
      scores: [users, items], higher is better.
      held_out: [users] integer, the column of each user's one held-out item.
      k: how many items are recommended; at most `items`.
      seen: (rows, columns), two [m] integer arrays: pairs never recommended because the user
        trained on them. None: every item may be recommended.

    Returns:
      A float in [0, 1]. Items whose score ties with the held-out one rank before it, so that a
      constant score does not look good.

    Raises:
      ValueError: k or a shape is out of range.
    """
    scores = np.array(scores, dtype=np.float64)  # a copy: seen pairs are struck out below
    held_out = np.asarray(held_out)
    if scores.ndim != 2 or held_out.shape != scores.shape[:1]:
        raise ValueError(f"expected scores [users, items] and held_out [users], got "
                         f"{scores.shape} and {held_out.shape}")
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must be between 1 and {scores.shape[1]}, got {k}")
    target = scores[np.arange(held_out.size), held_out]
    if seen is not None:
        scores[seen[0], seen[1]] = -np.inf
    better = (scores >= target[:, None]).sum(axis=1)
    better -= scores[np.arange(held_out.size), held_out] >= target  # not itself
    return float(np.mean(better < k))


def table_rows(stats):
    """Cells for `format_table` from table statistics: a line per table and tier, and a total.

    Args:
      stats: dict of a table's name to what `ev.stats()` gives when run: a JSON object, or a JSON
        list of one object per part, which are added up.

    Returns:
      (header, lines), lists of strings. "hit rate" is the share of unique keys, of all lookups and
      updates since the table was made or restored, that were found in that tier; for what is
      missing to 100% there was no row yet. "memory" is what the tier takes from the machine, with
      the table's index and filter counted to its first tier.
    """
    header = ["table", "tier", "rows", "row bytes", "memory", "hit rate"]
    lines, total = [], dict(rows=0, row_bytes=0, memory=0, hits=0, keys=0)
    for name, text in stats.items():
        parts = json.loads(text)
        parts = parts if isinstance(parts, list) else [parts]
        keys = sum(part["absent"] + sum(tier["hits"] for tier in part["tiers"]) for part in parts)
        total["keys"] += keys
        for position, tiers in enumerate(zip(*(part["tiers"] for part in parts))):
            tier = {field: sum(each[field] for each in tiers)
                    for field in ("rows", "row_bytes", "hits")}
            tier["memory"] = sum(each["resident_bytes"] for each in tiers)
            if position == 0:
                tier["memory"] += sum(part["index_bytes"] + part["filter_bytes"] for part in parts)
            lines.append(_table_line(name, tiers[0]["name"], keys=keys, **tier))
            for field, value in tier.items():
                total[field] += value
    lines.append(_table_line("total", "", **total))
    return header, lines


def _table_line(name, tier, rows, row_bytes, memory, hits, keys):
    return [name, tier, f"{rows:,}", format_bytes(row_bytes), format_bytes(memory),
            f"{100.0 * hits / keys:.1f}%" if keys else "-"]


def format_table(header, rows):
    """A plain-text table: first two columns to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
    def line(cells):
        return "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                         for i, (cell, width) in enumerate(zip(cells, widths))).rstrip()
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(header), rule] + [line(row) for row in rows])


def format_bytes(count):
    """1536 -> '1.5 KiB'."""
    count = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024


def progress_bar(total, unit="step", disable=False):
    """A tqdm bar that shows steps per second; `total` None when the end is not known."""
    return tqdm.tqdm(total=total, unit=unit, disable=disable, dynamic_ncols=True, smoothing=0.1)


def plot_history(path, history, title):
    """Writes loss, AUC and rows in the tables over steps as one picture.

    Args:
      path: file to write; its ending chooses the format (.png, .svg, .pdf).
      history: list of dicts with `step`, `train_loss`, `eval_loss`, `auc`, `rows`.
      title: text above the picture.
    """
    import matplotlib
    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    steps = [point["step"] for point in history]
    figure, (loss, quality, growth) = pyplot.subplots(1, 3, figsize=(13, 3.8))
    loss.plot(steps, [point["train_loss"] for point in history], marker=".", label="training")
    loss.plot(steps, [point["eval_loss"] for point in history], marker=".", label="held out")
    loss.set_ylabel("log loss (nats)")
    loss.legend()
    quality.plot(steps, [point["auc"] for point in history], marker=".", color="tab:green")
    quality.axhline(0.5, color="grey", linewidth=0.8, linestyle="--")
    quality.set_ylabel("AUC on held-out rows")
    growth.plot(steps, [point["rows"] for point in history], marker=".", color="tab:orange")
    growth.set_ylabel("rows in all tables")
    growth.set_ylim(bottom=0)
    for axes in (loss, quality, growth):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _check_pair(labels, scores):
    labels = np.asarray(labels, dtype=np.float64)
    scores = np.asarray(scores, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise ValueError(f"expected two vectors of one length, got {labels.shape} "
                         f"and {scores.shape}")
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).sum())} of {scores.size} scores are NaN")
    return labels, scores
