"""What a server counts, in Prometheus' text form."""

from __future__ import annotations

import collections

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Upper bounds of the histogram of latencies, in seconds.
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Requests by code, and the time from the last byte of a request to its answer. One thread uses it."""

    def __init__(self) -> None:
        self._codes: collections.Counter[int] = collections.Counter()
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def add_answer(self, code: int) -> None:
        self._codes[code] += 1

    def add_latency(self, seconds: float) -> None:
        """Of a request that ran."""
        above = sum(seconds > bound for bound in _BOUNDS)
        self._buckets[above] += 1
        self._seconds += seconds

    def text(self, gauges: dict[str, tuple[str, str, int]]) -> str:
        """The page. gauges: {name: (type, help, value)} of what others count."""
        lines = _head("requests_total", "counter", "Requests that were answered, by status code.")
        for code, count in sorted(self._codes.items()):
            lines.append(f'tf_multitier_requests_total{{code="{code}"}} {count}')
        name = "predict_seconds"
        lines += _head(name, "histogram", "Seconds from the body to the answer of predictions.")
        total = 0
        for bound, count in zip([*map(str, _BOUNDS), "+Inf"], self._buckets):
            total += count
            lines.append(f'tf_multitier_{name}_bucket{{le="{bound}"}} {total}')
        lines.append(f"tf_multitier_{name}_sum {self._seconds}")
        lines.append(f"tf_multitier_{name}_count {total}")
        for name, (kind, text, value) in gauges.items():
            lines += [*_head(name, kind, text), f"tf_multitier_{name} {value}"]
        return "\n".join(lines) + "\n"


def _head(name, kind, text):
    return [f"# HELP tf_multitier_{name} {text}", f"# TYPE tf_multitier_{name} {kind}"]
