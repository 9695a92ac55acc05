"""What both examples measure and print: AUC, log loss, recall, progress, tables.

NumPy only, so that each number can be checked by hand.
"""

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
            f"AUC: expected both classes, found {positives} positives and {negatives} negatives"
        )
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)  # ranks start at 1; ties share the average
    ranks = (last_rank - (counts - 1) / 2.0)[inverse]
    return float(
        (ranks[positive].sum() - positives * (positives + 1) / 2.0) / (positives * negatives)
    )


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
        raise ValueError(
            f"expected scores [users, items] and held_out [users], found "
            f"{scores.shape} and {held_out.shape}"
        )
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k: expected 1 to {scores.shape[1]}, found {k}")
    target = scores[np.arange(held_out.size), held_out]
    if seen is not None:
        scores[seen[0], seen[1]] = -np.inf
    better = (scores >= target[:, None]).sum(axis=1)
    better -= scores[np.arange(held_out.size), held_out] >= target  # not itself
    return float(np.mean(better < k))


# The counters of a tier and its current contents, which `tier_totals` adds up.
_COUNTS = ("hits", "promotions", "demotions", "device_read_bytes", "device_written_bytes")
_GAUGES = ("rows", "row_bytes", "resident_bytes", "stored_bytes")


def tier_totals(stats):
    """Statistics of all tables together, tier by tier.

    Args:
      stats: dict of a table's name to its statistics, `ev.stats()`.

    Returns:
      A dict, in order of tiers, of a tier's name to a dict of its counts and gauges, and of:
      "memory": bytes of memory, with the tables' index and filter at the first tier;
      "keys": unique keys of all lookups and updates, those that had no row included.
    """
    totals = {}
    for table in stats.values():
        for part in table.get("parts", [table]):
            keys = part["absent"] + sum(tier["hits"] for tier in part["tiers"])
            for position, tier in enumerate(part["tiers"]):
                total = totals.setdefault(
                    tier["name"], dict.fromkeys(_COUNTS + _GAUGES + ("memory", "keys"), 0)
                )
                for field in _COUNTS + _GAUGES:
                    total[field] += tier.get(field, 0)
                total["keys"] += keys
                total["memory"] += tier["resident_bytes"]
                if position == 0:
                    total["memory"] += part["index_bytes"] + part["filter_bytes"]
    return totals


def since(now, before):
    """`now` of tier_totals with counts less those of an earlier call ({}: none)."""
    counts = _COUNTS + ("keys",)
    return {
        name: {
            field: value - (before[name][field] if name in before and field in counts else 0)
            for field, value in tier.items()
        }
        for name, tier in now.items()
    }


def hit_rate(tier):
    """Share of the unique keys of all lookups and updates that were found in that tier, or None."""
    return tier["hits"] / tier["keys"] if tier["keys"] else None


def format_tiers(tiers):
    """tier_totals, or what changed since, as an indented line for each tier. Moves and I/O only if there were any."""
    lines = []
    for name, tier in tiers.items():
        line = (
            f"    {name:8}{tier['rows']:>12,} rows {format_bytes(tier['row_bytes']):>10}"
            f"   hit rate {_percent(hit_rate(tier)):>6}"
        )
        moved = ("promotions", "demotions", "device_read_bytes", "device_written_bytes")
        if any(tier[what] for what in moved):
            line += (
                f"   up {tier['promotions']:>9,}  down {tier['demotions']:>9,}"
                f"   read {format_bytes(tier['device_read_bytes']):>9}"
                f"  written {format_bytes(tier['device_written_bytes']):>9}"
            )
        lines.append(line)
    return "\n".join(lines)


def table_rows(stats):
    """Cells for `format_table` from table statistics: a line per table and tier, and totals.

    Args:
      stats: as of `tier_totals`.

    Returns:
      (header, lines), lists of strings. "hit rate" is the share of unique keys, of all lookups and
      updates since the table was made or restored, that were found in that tier; for what is
      missing to 100% there was no row yet. "memory" is what the tier takes from the machine, with
      the table's index and filter counted to its first tier, "disk" what its files take. "up" are
      rows promoted out of the tier, "down" rows demoted into it; "read" and "written" bytes of I/O.
    """
    header = [
        "table",
        "tier",
        "rows",
        "row bytes",
        "memory",
        "disk",
        "hit rate",
        "up",
        "down",
        "read",
        "written",
    ]
    lines = [
        _table_line(name, tier, total)
        for name, table in stats.items()
        for tier, total in tier_totals({name: table}).items()
    ]
    return header, lines + [
        _table_line("total", tier, total) for tier, total in tier_totals(stats).items()
    ]


def format_totals(stats):
    """A plain-text table of all tables together: a line for each tier. stats: as of `tier_totals`."""
    header, lines = table_rows(stats)
    keep = slice(1, header.index("up"))
    totals = [line[keep] for line in lines if line[0] == "total"]
    return format_table(header[keep], totals)


def _table_line(name, tier, total):
    sizes = [format_bytes(total[field]) for field in ("row_bytes", "memory", "stored_bytes")]
    device = [format_bytes(total[field]) for field in ("device_read_bytes", "device_written_bytes")]
    return [
        name,
        tier,
        f"{total['rows']:,}",
        *sizes,
        _percent(hit_rate(total)),
        f"{total['promotions']:,}",
        f"{total['demotions']:,}",
        *device,
    ]


def _percent(share):
    return "-" if share is None else f"{100.0 * share:.1f}%"


def format_table(header, rows):
    """A plain-text table: numbers to the right."""
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]

    def line(cells):
        return "  ".join(
            cell.ljust(width) if name in ("table", "tier") else cell.rjust(width)
            for name, cell, width in zip(header, cells, widths)
        ).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(header), rule] + [line(row) for row in rows])


def format_bytes(count):
    """1536 -> '1.5 KiB'."""
    count = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024


class ProgressBar(tqdm.tqdm):
    """A tqdm bar that shows steps per second."""

    def end(self):
        """Closes the bar at the steps that were taken: data may end before the steps asked for."""
        self.total = self.n
        self.refresh()
        self.close()


def progress_bar(total, unit="step", disable=False):
    """A ProgressBar on standard error, if that is a terminal; `total` None: the end is not known."""
    return ProgressBar(
        total=total, unit=unit, disable=disable or None, dynamic_ncols=True, smoothing=0.1
    )


def plot_history(path, history, title):
    """Draws the progress of a training run over its steps.

    Loss, AUC or recall, rows; and, of each tier, the hit rate, the bytes of its rows and files, and
    I/O.

    Args:
      path: file to write; its ending chooses the format (.png, .svg, .pdf).
      history: list of dicts with `step`, `train_loss`, `eval_loss`, `auc`, `rows`, and `tiers`:
        what `since` gives between one point and the next. `recall` may replace `auc` and
        `eval_loss`.
      title: text above the picture.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    steps = [point["step"] for point in history]
    tiers = list(history[-1]["tiers"])

    def draw(axes, label, lines):
        for name, style, values in lines:
            axes.plot(steps, values, marker=".", label=name, **style)
        axes.set_ylabel(label)
        if len(lines) > 1:
            axes.legend()

    def of_tiers(value, styles):
        return [
            (name, styles(i), [value(point["tiers"][name]) for point in history])
            for i, name in enumerate(tiers)
        ]

    figure, axes = pyplot.subplots(2, 3, figsize=(14, 7.2))
    (loss, quality, growth), (hits, size, device) = axes
    of_loss = {"train_loss": "training", "eval_loss": "held out"}
    losses = [
        (name, {}, [p[key] for p in history]) for key, name in of_loss.items() if key in history[-1]
    ]
    draw(loss, "log loss (nats)" if len(losses) > 1 else "training loss", losses)
    measure = "auc" if "auc" in history[-1] else "recall"
    label = {"auc": "AUC on held-out rows", "recall": "recall of held-out items"}[measure]
    draw(quality, label, [("", dict(color="tab:green"), [p[measure] for p in history])])
    if measure == "auc":
        quality.axhline(0.5, color="grey", linewidth=0.8, linestyle="--")
    total = [("all tiers", dict(color="black"), [p["rows"] for p in history])]
    draw(growth, "rows", total + of_tiers(lambda tier: tier["rows"], lambda i: dict(color=f"C{i}")))
    draw(
        hits,
        "keys found in the tier (%)",
        of_tiers(lambda tier: 100.0 * (hit_rate(tier) or 0.0), lambda i: dict(color=f"C{i}")),
    )
    hits.set_ylim(-3, 103)
    mebi = 1 << 20
    lines = [
        (f"{name}: rows", style, values)
        for name, style, values in of_tiers(
            lambda tier: tier["row_bytes"] / mebi, lambda i: dict(color=f"C{i}")
        )
    ]
    lines += [
        (f"{name}: files", style, values)
        for name, style, values in of_tiers(
            lambda tier: tier["stored_bytes"] / mebi, lambda i: dict(color=f"C{i}", linestyle="--")
        )
        if any(values)
    ]
    draw(size, "MiB", lines)
    gaps = np.diff([0] + steps)
    io = [
        (f"{name}: {what}", dict(style, linestyle=line), np.array(values) / gaps)
        for field, what, line in (
            ("device_read_bytes", "read", "-"),
            ("device_written_bytes", "written", "--"),
        )
        for name, style, values in of_tiers(
            lambda tier, field=field: tier[field] / 1024, lambda i: dict(color=f"C{i}")
        )
        if any(values)
    ]
    draw(device, "I/O (KiB a step)", io)
    for axes in (growth, size, device):
        axes.set_ylim(bottom=0)
    for axes in figure.axes:
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
        raise ValueError(
            f"expected two vectors of one length, found {labels.shape} and {scores.shape}"
        )
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).sum())} of {scores.size} scores are NaN")
    return labels, scores
