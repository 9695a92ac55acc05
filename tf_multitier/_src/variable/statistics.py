"""Statistics of tables over time: rates between two readings, and TensorBoard.

`StatisticsWriter` takes readings of engine tables or of embedding variables; `tf_multitier.train.StatisticsHook` takes them in a
MonitoredTrainingSession. docs/statistics.md describes the fields of a reading.
"""

from __future__ import annotations

import json
import os
import time
import typing
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import fetched_as

# Fields of a reading that only grow, and what their growth per second is called.
_RATES = {
    "lookups": "lookups_per_s",
    "updates": "updates_per_s",
    "created": "created_per_s",
    "removed": "removed_per_s",
    "expired": "expired_per_s",
    "dropped": "dropped_per_s",
}
_TIER_RATES = {
    "promotions": "promotions_per_s",
    "demotions": "demotions_per_s",
    "device_read_bytes": "read_bytes_per_s",
    "device_written_bytes": "written_bytes_per_s",
}
_LEVELS = ("rows", "index_bytes", "prefetched")
_TIER_LEVELS = ("rows", "row_bytes", "resident_bytes", "stored_bytes")
_OF_A_ROW = ("row_bytes", "stride_bytes")  # the same in all parts of a variable
_OF_THE_LARGEST = ("applies", "snapshot_held_us")  # parts take part in the same steps and saves
_ALL = "all"


class OfGraph:
    """What `stats()` of a variable is in a v1 graph. session.run gives the dict for it. text: string scalar of JSON."""

    def __init__(self, text: tf.Tensor) -> None:
        self.text = text


def read(text: str | bytes) -> dict:
    """The dict of statistics from their JSON: that of a table, or the list of a variable's parts."""
    found = json.loads(text)
    if isinstance(found, dict):
        return found
    alike = {name: found[0][name] for name in _OF_A_ROW}
    alike |= {name: max(part[name] for part in found) for name in _OF_THE_LARGEST}
    errors = {"sticky_error": next((e for part in found if (e := part["sticky_error"])), "")}
    return {**merged(found), **alike, **errors, "parts": found}


fetched_as(OfGraph, lambda its: its.text, read)
# So that it is a tensor where one is expected: in tf.cond, tf.print.
tf.register_tensor_conversion_function(OfGraph, lambda its, *_, **__: its.text)


def of(text: tf.Tensor) -> typing.Any:
    """What `stats()` returns for this JSON: see Queries.stats."""
    if tf.executing_eagerly():
        return read(text.numpy())
    return text if tf.inside_function() else OfGraph(text)


def merged(readings: list[dict]) -> dict:
    """The sum of readings: of the parts of a variable, or of several variables.

    Args:
      readings: dicts as `stats()` gives them.

    Returns:
      A dict of the sums of their numbers; "tiers" has one dict for each name of a tier, fastest first.
    """
    total: dict[str, typing.Any] = {}
    tiers: dict[str, dict] = {}
    for reading in readings:
        _add(total, reading)
        for tier in reading.get("tiers", []):
            _add(tiers.setdefault(tier["name"], {"name": tier["name"]}), tier)
    total["tiers"] = list(tiers.values())
    return total


def _add(total, reading):
    for name, value in reading.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            total[name] = total.get(name, 0) + value
        elif isinstance(value, str) and name != "sticky_error":
            total[name] = value if total.get(name, value) == value else "several"
        elif name.endswith("_log2"):
            old = total.get(name, [])
            length = max(len(old), len(value))
            total[name] = [sum(h[i] for h in (old, value) if i < len(h)) for i in range(length)]


def scalars(now: dict, before: dict | None = None, seconds: float = 0.0) -> dict[str, float]:
    """What to plot of a reading: levels, and what changed since an earlier reading.

    Args:
      now: a reading, as `stats()` or `merged` gives it.
      before: an earlier reading of the same table; without it the changes are left out. Counts that are lower now belong to a new
        table (after a restore): then they have changed by what they are.
      seconds: the time between the two.

    Returns:
      {name: value}: rows, bytes, rates per second, shares from 0 to 1, 99th percentiles in microseconds. Names of a tier's values
      begin with the tier's name.
    """
    found = {name: now[name] for name in _LEVELS if name in now}
    changed = _changes(now, before) if before is not None and seconds > 0 else {}
    found |= {name: changed[f] / seconds for f, name in _RATES.items() if f in changed}
    if changed.get("lookups"):
        found["absent_share"] = changed["absent"] / changed["lookups"]
    old_tiers = {tier["name"]: tier for tier in (before or {}).get("tiers", [])}
    for tier in now.get("tiers", []):
        name = tier["name"]
        found |= {f"{name}_{level}": tier[level] for level in _TIER_LEVELS if level in tier}
        if changed:
            changes = _changes(tier, old_tiers.get(name, {}))
            found |= {f"{name}_{k}": v for k, v in _of_tier(changes, seconds).items()}
    return {name: float(value) for name, value in found.items()}


def _changes(now, before):
    counts = {f: v - before.get(f, 0) for f, v in now.items() if isinstance(v, (int, float))}
    if any(counts.get(f, 0) < 0 for f in (*_RATES, *_TIER_RATES, "hits", "misses")):
        return _changes(now, {})
    for name, value in now.items():
        if name.endswith("_log2"):
            old = np.zeros(len(value), np.int64)
            old[: len(before.get(name, []))] = before.get(name, [])
            counts[name] = np.array(value) - old
    return counts


def _of_tier(changes, seconds):
    found = {name: changes[f] / seconds for f, name in _TIER_RATES.items() if f in changes}
    looked = changes.get("hits", 0) + changes.get("misses", 0)
    if looked:
        found["hit_rate"] = changes["hits"] / looked
    for kind in ("read", "write"):
        histogram = changes.get(f"{kind}_latency_us_log2", [])
        if np.sum(histogram) > 0:
            share = np.cumsum(histogram) / np.sum(histogram)
            found[f"{kind}_p99_us"] = 2.0 ** int(np.searchsorted(share, 0.99))
    return found


class StatisticsWriter:
    """Writes statistics to TensorBoard's event files.

        writer = tf_multitier.StatisticsWriter("logs")
        writer.write(step, {"user": table})          # a variable in eager execution, an engine.Table, or what session.run(ev.stats()) gives

    A value `<name>/<table>` is written for each table, and `<name>/all` for all of them together; see `scalars`. TensorBoard shows
    the values of one name next to each other. It needs neither Keras nor a graph, and is not thread-safe.

    Args:
      logdir: directory of the event files.
      per_table: False: only the values of all tables together.
    """

    def __init__(self, logdir: str | os.PathLike, per_table: bool = True) -> None:
        with tf.Graph().as_default():  # in eager mode there is no FileWriter
            self._writer = tf.compat.v1.summary.FileWriter(os.fspath(logdir))
        self._per_table = boolean("StatisticsWriter: per_table", per_table)
        self._before: dict[str, dict] = {}
        self._seconds = 0.0

    def write(self, step: int, tables: Mapping[str, typing.Any]) -> dict[str, float]:
        """Writes the values of a step.

        Args:
          step: the global step.
          tables: {name: a variable in eager execution, an `engine.Table`, a dict of its `stats()`, the JSON that it gives in a
            tf.function, or a list of these}.

        Returns:
          {tag: value}, what was written.

        Raises:
          TypeError: statistics in a graph, which have no value yet.
        """
        readings = {name: _reading(table) for name, table in tables.items()}
        readings[_ALL] = merged(list(readings.values()))
        now = time.monotonic()
        written = {
            f"{value_name}/{name}": value
            for name, reading in readings.items()
            if self._per_table or name == _ALL
            for value_name, value in scalars(
                reading, self._before.get(name), now - self._seconds
            ).items()
        }
        self._before, self._seconds = readings, now
        summary = tf.compat.v1.Summary()
        for tag, value in written.items():
            summary.value.add(tag=tag, simple_value=value)
        self._writer.add_summary(summary, step)
        self._writer.flush()
        return written

    def close(self) -> None:
        """Writes what is buffered and closes the file."""
        self._writer.close()


def _reading(table):
    if hasattr(table, "stats"):
        table = table.stats()
    table = table.text if isinstance(table, OfGraph) else table
    if tf.is_tensor(table):
        if not hasattr(table, "numpy"):
            raise TypeError(
                "statistics: expected a variable in eager execution, or what session.run(ev.stats()) gives; "
                f"found the tensor '{table.name}' of a graph"
            )
        table = table.numpy()
    table = table.tolist() if isinstance(table, np.ndarray) else table
    if isinstance(table, list):
        return merged([_reading(each) for each in table])
    return table if isinstance(table, dict) else read(table)
