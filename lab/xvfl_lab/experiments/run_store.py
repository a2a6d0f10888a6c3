"""Results of runs on disk: one JSON object a line, found by a hash of the run's configuration.

A file holds two kinds of lines: configurations (all fields explicit, shared by the runs that
differ in rate and seed alone) and results that refer to them. So a result can be given a new key
after a rename or a new option without guessing what its run was (`lab/scripts/rekey_runs.py`). A
file is only appended to: an interrupted command loses at most the run in progress. Numpy alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from xvfl.errors import RunError
from xvfl.primitives.metrics import METRICS
from xvfl.system.files import append_jsonl, read_jsonl
from xvfl_lab.experiments.figures import Job
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.stacked_runs import RunConfig

PROTOCOL = 2
"""Increased when a run of the same configuration would give other results, beyond rounding."""

Config = dict[str, Any]
"""A job as a mapping, every field explicit."""


class StoredJob(Protocol):
    """A run on a data set: a dataclass whose fields decide the result."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __hash__(self) -> int: ...

    @property
    def run(self) -> RunConfig:
        """The configuration that results report."""


J = TypeVar("J", bound=StoredJob)
EXAMPLE = Job("", 0, 0, 0, RunConfig("", 0.0, 0))


@cache
def run_key(job: StoredJob) -> str:
    """Hash the configuration of a run: every field, whether at its default or not."""
    return key_of(asdict(job))


def key_of(config: Mapping[str, Any]) -> str:
    """Hash a configuration."""
    text = json.dumps([PROTOCOL, config], sort_keys=True)
    return blake2b(text.encode(), digest_size=10).hexdigest()


def split_config(config: Config) -> tuple[Config, float, int]:
    """Take rate and seed out of a job's configuration; a `random_state` equal to the seed is null.

    What is left is the same for all rates and seeds of a method.
    """
    run = config["config"]
    rate, seed = run["rate"], run["seed"]
    shared = {**run, "rate": None, "seed": None}
    if "train" in run:
        state = run["train"]["random_state"]
        shared["train"] = {**run["train"], "random_state": None if state == seed else state}
    return {**config, "config": shared}, rate, seed


def join_config(shared: Config, rate: float, seed: int) -> Config:
    """Undo `split_config`."""
    run = shared["config"]
    state = run["train"]["random_state"]
    train = {**run["train"], "random_state": seed if state is None else state}
    return {**shared, "config": {**run, "rate": rate, "seed": seed, "train": train}}


class RunStore:
    """The results of one data set."""

    def __init__(self, path: Path, example: StoredJob = EXAMPLE) -> None:
        """Read the file; skip lines that are incomplete or neither configuration nor result.

        `example` is a job with the fields that the stored configurations must have.
        """
        self.path, self.example = path, example
        self.results: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, Config] = {}
        for record in read_jsonl(path):
            if "key" in record:
                self.results[record["key"]] = record
            elif "config_id" in record:
                self.configs[record["config_id"]] = record["config"]
        self._check_fields()

    def missing(self, jobs: Iterable[J], data: str = "") -> list[J]:
        """List the jobs without a result, or whose result is of other data than this digest."""
        return [job for job in jobs if not self._has(run_key(job), data)]

    def _has(self, key: str, data: str) -> bool:
        record = self.results.get(key)
        return record is not None and (not data or record.get("data", data) == data)

    def add(self, job: StoredJob, result: Result, hardware: str, data: str) -> None:
        """Append a result, with the hardware it was computed on and a digest of its data."""
        metrics = {
            way: [round(values[metric], 5) for metric in METRICS]
            for way, values in result.metrics.items()
        }
        about = {
            "seconds": round(result.seconds, 2),
            "hardware": hardware,
            "data": data,
            "majority": round(result.majority, 5),
            "metrics": metrics,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.append(asdict(job), about)

    def append(self, config: Config, about: Mapping[str, Any]) -> None:
        """Append what is known of a run under the key of its configuration."""
        shared, rate, seed = split_config(config)
        shared_id = key_of(shared)
        if shared_id not in self.configs:
            self.configs[shared_id] = shared
            append_jsonl(self.path, {"config_id": shared_id, "config": shared})
        key, name = key_of(config), config["config"]["name"]
        run = {"key": key, "config": shared_id, "name": name, "rate": rate, "seed": seed}
        self.results[key] = {**run, **about}
        append_jsonl(self.path, self.results[key])

    def get(self, jobs: Iterable[StoredJob]) -> list[Result]:
        """Return the results of those jobs that have one."""
        results = []
        for job in jobs:
            record = self.results.get(run_key(job))
            if record is not None:
                metrics = {
                    way: dict(zip(METRICS, values, strict=True))
                    for way, values in record["metrics"].items()
                }
                results.append(Result(job.run, metrics, record["seconds"], record["majority"]))
        return results

    def _check_fields(self) -> None:
        """Reject a file whose configurations have other fields than today's: it needs new keys."""
        old = any("config" not in record for record in self.results.values())
        known = set(_names(asdict(self.example)))
        stored = {name for config in self.configs.values() for name in _names(config)}
        if old or (self.configs and stored != known):
            changed = ", ".join(sorted(stored ^ known)) if self.configs else "every option"
            raise RunError(
                f"{self.path}: its runs were stored with other options than today's ({changed}); "
                "give them new keys with lab/scripts/rekey_runs.py"
            )


def _names(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield prefix + name
