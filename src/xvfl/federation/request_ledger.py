"""A party's limits on the coordinator's requests, and its count of the requests for each row.

The counts belong to an alignment: they cover all its runs and all restarts of the party, and are
kept in a memory-mapped file, which survives the end of the process.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xvfl.config import PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError, RunError, WireError
from xvfl.federation.privacy_accounting import PrivacyStatement, Release, composed_epsilon
from xvfl.system.files import atomic_write

Use = Literal["training", "evaluation"]
TRAINING_REQUESTS = 2
"""Requests of each kind for a row and epoch: PAGE needs two, and a batch may be repeated."""
EVALUATION_REQUESTS = 20
"""The same for evaluation, which predicts in every mode and for every party."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a party on what a coordinator may request."""

    max_epochs: int = 200
    """Largest number of epochs of a run."""
    max_runs: int = 5
    """Largest number of runs with one alignment."""
    max_views: int = 8
    """Largest number of views of a row in one request."""
    min_rows: int = 8
    """Smallest number of rows in a training request; a request for no row is allowed."""
    accept_gradients: bool = False
    """Accept gradients from the coordinator. With gradients of its choice, a coordinator can train
    this party's net to reveal features; needed for `label_protection` other than `no_gradients`."""
    max_epsilon: float | None = None
    """Largest ε of differential privacy of a row, over all runs with one alignment together. By
    default it is not limited, and runs without differential privacy are allowed."""
    max_delta: float = 1e-5
    """The δ at which `max_epsilon` applies."""

    def __post_init__(self) -> None:
        for name in ("max_epochs", "max_runs", "max_views", "min_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"limits.{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_epsilon is not None and self.max_epsilon <= 0:
            raise ConfigError(f"limits.max_epsilon: expected above 0, got {self.max_epsilon}")
        if not 0 < self.max_delta < 1:
            raise ConfigError(f"limits.max_delta: expected between 0 and 1, got {self.max_delta}")

    def budget(self, use: Use) -> int:
        """Return how many requests of each kind are allowed for a row."""
        per_epoch = TRAINING_REQUESTS if use == "training" else EVALUATION_REQUESTS
        return per_epoch * self.max_epochs * self.max_runs


UNLIMITED = RequestLimits(2**20, 2**10, 64, 1, accept_gradients=True)
"""For a party that trusts the coordinator, such as the coordinator's own."""

KINDS: tuple[tuple[Use, str], ...] = (
    ("training", "Embed"),
    ("training", "Complete"),
    ("evaluation", "Embed"),
    ("evaluation", "Complete"),
)
"""Rows of the array of counts."""


class RequestLedger:
    """Counts a coordinator's requests for each row and rejects those above the limits.

    Parameters
    ----------
    limits
        The party's limits.
    n_rows
        Number of matched rows.
    path
        File of the counts; by default they are in memory.
    """

    def __init__(self, limits: RequestLimits, n_rows: int, path: Path | None = None) -> None:
        self.limits = limits
        self._counts: NDArray[np.uint32] = np.zeros((len(KINDS), n_rows), dtype=np.uint32)
        self._runs: dict[str, Release | None] = {}
        self._statement: PrivacyStatement | None = None
        self._epsilon: float | None = None
        self._runs_path = path and path.with_suffix(".json")
        if path is not None:
            self._counts = open_counts(path, self._counts)
        if self._runs_path is not None and self._runs_path.is_file():
            self._runs = _read_runs(self._runs_path)

    def begin(
        self,
        run: str,
        train: TrainConfig,
        privacy: PrivacyConfig,
        statement: PrivacyStatement | None = None,
    ) -> None:
        """Check the settings of a run and count it, and its `statement` on differential privacy."""
        limits, self._statement = self.limits, statement
        if privacy.sends_gradients and not limits.accept_gradients:
            raise WireError(
                "Begin: this party accepts no gradients; expected label_protection 'no_gradients', "
                f"got {privacy.label_protection!r}. The party's operator can set "
                "limits.accept_gradients"
            )
        if train.epochs > limits.max_epochs:
            raise WireError(
                f"Begin: this party allows {limits.max_epochs} epochs, the run has {train.epochs}; "
                "lower `epochs`, or the party's operator can raise limits.max_epochs"
            )
        release = (statement.noise_multiplier, statement.n_releases) if statement else None
        self._check_epsilon({**self._runs, run: release})
        if statement is not None:
            self._epsilon = _total_epsilon({**self._runs, run: release}, statement.delta)
        if run in self._runs:
            if self._runs[run] != release:
                raise WireError(
                    f"Begin: the differential privacy of run {run!r} changed; choose another run"
                )
            return
        if len(self._runs) >= limits.max_runs:
            raise WireError(
                f"Begin: this party allows {limits.max_runs} runs with one alignment, and all were "
                "used; its operator can raise limits.max_runs"
            )
        self._runs[run] = release
        if self._runs_path is not None:
            with atomic_write(self._runs_path) as temporary:
                temporary.write_text(json.dumps({"runs": self._runs}), encoding="utf-8")

    def _check_epsilon(self, runs: Mapping[str, Release | None]) -> None:
        """Reject a run after which the ε of all runs together exceeds the limit."""
        limits = self.limits
        if limits.max_epsilon is None:
            return
        used = _total_epsilon(runs, limits.max_delta)
        if used is None or used > limits.max_epsilon:
            found = "a run without differential privacy" if used is None else f"{used:.3f}"
            raise WireError(
                f"Begin: this party allows ε up to {limits.max_epsilon:g} (δ = "
                f"{limits.max_delta:g}) over all runs with one alignment, got {found}; lower "
                "privacy.epsilon, or the party's operator can raise limits.max_epsilon"
            )

    def check_gradients(self) -> None:
        """Reject gradients if the party accepts none."""
        if self._statement is not None:
            raise WireError("gradients: not allowed with differential privacy")
        if not self.limits.accept_gradients:
            raise WireError("gradients: this party accepts none; see limits.accept_gradients")

    def count_embed(self, rows: NDArray[np.int64], views: Sequence[str], training: bool) -> None:
        """Check and count a request for embeddings of rows, given by their handles."""
        limits = self.limits
        if len(np.unique(rows)) < len(rows):
            raise WireError("handles: expected each row at most once")
        if len(views) > limits.max_views:
            raise WireError(
                f"Embed: this party allows {limits.max_views} views, got {len(views)}; lower "
                "`n_masks`, or the party's operator can raise limits.max_views"
            )
        if training and 0 < len(rows) < limits.min_rows:
            raise WireError(
                f"Embed: this party allows training requests for {limits.min_rows} rows or more, "
                f"got {len(rows)}"
            )
        self._count("training" if training else "evaluation", "Embed", rows)

    def count_complete(self, rows: NDArray[np.int64], training: bool) -> None:
        """Check and count a request for completed embeddings."""
        self._count("training" if training else "evaluation", "Complete", rows)

    def _count(self, use: Use, kind: str, rows: NDArray[np.int64]) -> None:
        counts, budget = self._counts[KINDS.index((use, kind))], self.limits.budget(use)
        exhausted = int((counts[rows] >= budget).sum())
        if exhausted:
            raise WireError(
                f"{kind}: {exhausted} rows have used their {budget} requests for {use} of this "
                "alignment; the party's operator can raise limits.max_epochs or limits.max_runs"
            )
        counts[rows] += 1

    def usage(self) -> dict[str, object]:
        """Return what was used of the limits, for monitoring."""
        highest = self._counts.max(1, initial=0).tolist()
        return {
            "runs_used": len(self._runs),
            "runs_allowed": self.limits.max_runs,
            "training_requests_used": max(highest[:2]),
            "training_requests_allowed": self.limits.budget("training"),
            "evaluation_requests_used": max(highest[2:]),
            "evaluation_requests_allowed": self.limits.budget("evaluation"),
            **self._privacy_usage(),
        }

    def _privacy_usage(self) -> dict[str, object]:
        """Return the ε of this run, and of all runs with this alignment together."""
        if self._statement is None:
            return {}
        return {
            **self._statement.status(),
            "privacy_epsilon_of_all_runs": self._epsilon,
            "privacy_epsilon_allowed": self.limits.max_epsilon,
        }


def _total_epsilon(runs: Mapping[str, Release | None], delta: float) -> float | None:
    """Return the ε of all runs together; None if one of them has no differential privacy."""
    releases = [release for release in runs.values() if release is not None]
    return composed_epsilon(releases, delta) if len(releases) == len(runs) else None


def open_counts(path: Path, zeros: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Map the file of counts; create it with all its bytes, so that a full disk is noticed here."""
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.save(file, zeros, allow_pickle=False)
        counts: NDArray[np.uint32] = np.lib.format.open_memmap(path, mode="r+")
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path}: the request counts cannot be used ({error}); restore the file, or match "
            "again with `xvfl align`"
        ) from error
    if counts.shape != zeros.shape or counts.dtype != zeros.dtype:
        raise RunError(
            f"{path}: expected counts {zeros.shape}, got {counts.shape}; restore the file, or "
            "match again with `xvfl align`"
        )
    return counts


def _read_runs(path: Path) -> dict[str, Release | None]:
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return {str(run): (float(r[0]), int(r[1])) if r else None for run, r in runs.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: the list of runs cannot be read ({error}); restore the file, or match again "
            "with `xvfl align`"
        ) from error
