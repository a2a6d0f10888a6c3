"""Counters of requests, rows and unusual cells, and the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from xvfl_serve.encoding.encoders import EncodedRows, Encoder, ImageRows
from xvfl_serve.printable import printable

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, in seconds."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL = 100
"""Characters of a label's value that somebody else chose."""
Values = float | Mapping[str, float]
"""The value of a metric, or its values by label."""
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters of a server since its start."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[Labels] = Counter()
        self._rows: Counter[Labels] = Counter()
        self._party_rows: Counter[Labels] = Counter()
        self._missing: dict[tuple[str, tuple[str, ...]], NDArray[np.int64]] = {}
        self._unusual: Counter[Labels] = Counter()
        self._reloads: Counter[Labels] = Counter()
        self._watch_errors: Counter[Labels] = Counter()
        self._latency = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def add_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        with self._lock:
            self._requests[("route", route), ("status", str(status))] += 1
            self._latency[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def add_answers(self, modes: list[str]) -> None:
        """Count predicted rows by the mode used."""
        with self._lock:
            for mode in modes:
                self._rows[(("mode", mode),)] += 1

    def add_rows(self, party: str, encoder: Encoder, rows: EncodedRows) -> None:
        """Count missing and unusual cells of a party's rows."""
        missing = len(rows.observed) - rows.observed.sum(0)
        key = party, encoder.feature_key
        if isinstance(encoder, ImageRows):
            missing = missing.sum(keepdims=True)
        with self._lock:
            self._party_rows[(("party", party),)] += len(rows.observed)
            self._missing[key] = self._missing.get(key, 0) + missing
            for notes in rows.notes:
                # Absent columns are among the missing cells.
                for kind, name in (each for each in notes if each[0] != "absent"):
                    self._unusual[("party", party), ("column", name), ("kind", kind)] += 1

    def add_reload(self, result: str) -> None:
        """Count a replacement of the bundle: loaded or rejected."""
        with self._lock:
            self._reloads[(("result", result),)] += 1

    def add_watch_error(self, check: str) -> None:
        """Count a failed check for a new bundle or a revocation."""
        with self._lock:
            self._watch_errors[(("check", check),)] += 1

    def text(self, info: Mapping[str, str], ready: bool | None = None) -> str:
        """Write all counters; `info` describes the bundle, `ready` is of the server."""
        with self._lock:
            metrics = [*self._metrics(info)]
        if ready is not None:
            text = "Whether requests can be answered: 1 or 0."
            metrics.append(GaugeMetricFamily("xvfl_ready", text, int(ready)))
        return to_text(metrics)

    def _missing_cells(self) -> Counter[Labels]:
        cells: Counter[Labels] = Counter()
        for (party, names), counts in self._missing.items():
            for name, count in zip(names, counts.tolist(), strict=True):
                cells[("party", party), ("column", name)] += count
        return cells

    def _metrics(self, info: Mapping[str, str]) -> Iterator[Metric]:
        bundle = GaugeMetricFamily("xvfl_bundle_info", "The bundle.", labels=[*info])
        bundle.add_metric([*info.values()], 1)
        yield bundle
        yield _counter("xvfl_requests", "Requests by route and status.", self._requests)
        yield _counter("xvfl_rows", "Predicted rows by the mode used.", self._rows)
        yield _counter("xvfl_party_rows", "Rows of each party.", self._party_rows)
        text = "Missing cells of each column; of images, missing pixels."
        yield _counter("xvfl_missing_cells", text, self._missing_cells())
        text = (
            "Cells outside the training range (range, pixels), of unseen categories (unseen), "
            "or unreadable (date, duration)."
        )
        yield _counter("xvfl_unusual_cells", text, self._unusual)
        yield _counter("xvfl_reloads", "Replacements of the bundle.", self._reloads)
        text = "Failed checks for a new bundle (bundle) or a revocation (release)."
        yield _counter("xvfl_watch_errors", text, self._watch_errors)
        sums = np.cumsum(self._latency).tolist()
        buckets = [*zip((*map(str, BUCKETS), "+Inf"), sums, strict=True)]
        yield HistogramMetricFamily(
            "xvfl_request_seconds", "Duration of requests.", buckets, self._seconds
        )


def to_text(metrics: Iterable[Metric]) -> str:
    """Write metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([*metrics]))
    return generate_latest(registry).decode()


def make_metric(name: str, kind: str, text: str, label: str, values: Values) -> Metric:
    """Make a gauge or counter from a value, or from values by a label that somebody else chose."""
    labels = [label] if isinstance(values, Mapping) else None
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric = family(name, text, labels=labels)
    if isinstance(values, Mapping):
        for key, value in values.items():
            metric.add_metric([printable(str(key))[:MAX_LABEL]], value)
    else:
        metric.add_metric([], values)
    return metric


class _Collected:
    """Metrics that were collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """Return the metrics."""
        return self._metrics


def _counter(name: str, text: str, counts: Mapping[Labels, int]) -> Metric:
    labels = [key for key, _ in next(iter(counts), ())]
    metric = CounterMetricFamily(name, text, labels=labels)
    for pairs, count in sorted(counts.items()):
        metric.add_metric([value for _, value in pairs], count)
    return metric
