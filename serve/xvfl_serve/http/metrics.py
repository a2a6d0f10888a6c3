"""Counters of requests, rows and unusual cells, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.encoders import EncodedRows, Encoder, ImageRows
from xvfl_serve.printable import printable

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, in seconds."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL = 100
"""Characters of a label's value that somebody else chose."""
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

    def text(self, info: Mapping[str, str]) -> str:
        """Write all counters; `info` describes the bundle."""
        with self._lock:
            return "\n".join(self._lines(info)) + "\n"

    def _missing_cells(self) -> Counter[Labels]:
        cells: Counter[Labels] = Counter()
        for (party, names), counts in self._missing.items():
            for name, count in zip(names, counts.tolist(), strict=True):
                cells[("party", party), ("column", name)] += count
        return cells

    def _lines(self, info: Mapping[str, str]) -> Iterator[str]:
        yield from _family("xvfl_bundle_info", "gauge", "The bundle.", {tuple(info.items()): 1})
        families = (
            ("xvfl_requests_total", "Requests by route and status.", self._requests),
            ("xvfl_rows_total", "Predicted rows by the mode used.", self._rows),
            ("xvfl_party_rows_total", "Rows of each party.", self._party_rows),
            (
                "xvfl_missing_cells_total",
                "Missing cells of each column; of images, missing pixels.",
                self._missing_cells(),
            ),
            (
                "xvfl_unusual_cells_total",
                "Cells outside the training range (range, pixels), of unseen categories (unseen), "
                "or unreadable (date, duration).",
                self._unusual,
            ),
            ("xvfl_reloads_total", "Replacements of the bundle.", self._reloads),
            (
                "xvfl_watch_errors_total",
                "Failed checks for a new bundle (bundle) or a revocation (release).",
                self._watch_errors,
            ),
        )
        for name, text, counts in families:
            yield from _family(name, "counter", text, counts)
        name = "xvfl_request_seconds"
        yield f"# HELP {name} Duration of requests."
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._latency, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._seconds:.6f}"
        yield f"{name}_count {total}"


def status_text(status: Mapping[str, Any]) -> str:
    """Write the numbers of a status, some of them by party or caller, as gauges."""
    lines = []
    for name, value in status.items():
        if isinstance(value, Mapping):
            label = "caller" if name.endswith("_by_caller") else "party"
            for key, each in value.items():
                if isinstance(each, int | float):
                    text = _escape(printable(str(key))[:MAX_LABEL])
                    lines.append(f'xvfl_{name}{{{label}="{text}"}} {float(each):g}')
        elif isinstance(value, int | float):
            lines.append(f"xvfl_{name} {float(value):.17g}")
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, counts: Mapping[Labels, int]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, count in sorted(counts.items()):
        pairs = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
        yield f"{name}{{{pairs}}} {count}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
