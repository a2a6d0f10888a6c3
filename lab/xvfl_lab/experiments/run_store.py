"""Results of runs on disk: one line of JSON for each, found again by what the run was.

A file only grows, a line at a time, so a cut run loses at most what it was doing. Numpy alone.
"""

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from xvfl.primitives.metrics import METRICS
from xvfl_lab.experiments.jobs import Job
from xvfl_lab.experiments.runner import Result

PROTOCOL = 2
"""Changes when runs of one configuration would give other results, but for how sums are rounded."""


def key(job: Job) -> str:
    """Name a run by all that decides its result but the data; defaults go unsaid.

    So an option that comes later does not change the names of earlier runs.
    """
    text = json.dumps([PROTOCOL, said(job)], sort_keys=True)
    return blake2b(text.encode(), digest_size=10).hexdigest()


def said(data: Any) -> Any:
    """Give a dataclass as a mapping without the fields that are at their defaults."""
    if not is_dataclass(data):
        return data
    return {
        each.name: said(getattr(data, each.name))
        for each in fields(data)
        if each.default is MISSING or getattr(data, each.name) != each.default
    }


class Store:
    """The results of one data set."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a last line cut short is left out."""
        self.path = path
        self.results: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if isinstance(record, dict) and "key" in record:
                    self.results[record["key"]] = record

    def missing(self, jobs: Iterable[Job], data: str = "") -> list[Job]:
        """List the jobs without a result, or with one of other data than these, where they say."""
        return [job for job in jobs if not self._has(key(job), data)]

    def _has(self, name: str, data: str) -> bool:
        record = self.results.get(name)
        return record is not None and (not data or record.get("data", data) == data)

    def add(self, job: Job, result: Result, hardware: str, data: str) -> None:
        """Keep a result, and what data it is of."""
        name = key(job)
        record = {
            "key": name,
            "name": job.setting.method,
            "rate": job.setting.rate,
            "seed": job.setting.seed,
            "seconds": round(result.seconds, 2),
            "hardware": hardware,
            "data": data,
            "majority": round(result.majority, 5),
            "metrics": {
                way: [round(found[metric], 5) for metric in METRICS]
                for way, found in result.metrics.items()
            },
        }
        self.results[name] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + json.dumps(record) + "\n")

    def get(self, jobs: Iterable[Job]) -> list[Result]:
        """Give the results of those jobs that have one."""
        found = []
        for job in jobs:
            record = self.results.get(key(job))
            if record is not None:
                metrics = {
                    way: dict(zip(METRICS, values, strict=True))
                    for way, values in record["metrics"].items()
                }
                found.append(Result(job.setting, metrics, record["seconds"], record["majority"]))
        return found
