"""A party's limits on the coordinator's requests, and its count of the requests for each row.

The counts belong to an alignment: they cover all its runs and all restarts of the party, and are
kept in a memory-mapped file, which survives the end of the process. A JSON file beside it has the
runs of the alignment: a digest of the settings of each, and how often its batches were repeated.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from xvfl.errors import ConfigError, RunError, WireError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import BATCH
from xvfl.federation.privacy_accounting import PrivacyStatement, Release, composed_epsilon
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.settings_limits import (
    SettingsLimits,
    check_settings,
    settings_digest,
)
from xvfl.options import MASKING_METHODS
from xvfl.system.files import atomic_write

Use = Literal["training", "evaluation"]
TRAINING_REQUESTS = 2
"""Requests of each kind for a row and epoch: PAGE needs two, and a batch may be repeated."""
EVALUATION_REQUESTS = 20
"""The same for evaluation, which predicts in every mode and for every party."""
UPDATES_PER_REPEAT = 4
"""Updates of a run that allow one more repeated batch: the last part of a cosine schedule hardly
changes the weights."""
MIN_CHANGE = 3e-5
"""Relative change of the weights from which an update counts as one."""
MIN_NORM = 0.7
"""Smallest norm of a layer's weights over its first norm; the default weight decay leaves more."""


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
    min_training_share: float = 0.25
    """Smallest share of the matched rows that train; the party fits its encoder on them."""
    max_repeats: int = 20
    """Largest number of training batches in a run that are requested before the weights were
    updated since the previous batch, or after earlier weights were loaded; one more is allowed for
    every 4 updates. In an honest run this happens if an update is lost or a process restarts."""
    max_parameters: int = 25_000_000
    """Largest number of parameters of the party's nets."""
    max_batch_bytes: int = 2**31
    """Largest estimated memory of the copies of rows in one request, in bytes. Of images, the
    estimate counts two layers; deep nets take several times as much."""
    min_interaction: float = 0.01
    """Smallest share of interactions between features in the variance of a table's embeddings; the
    party leaves a run in which its net falls below. 0 = not measured. Runs with gradients are not
    measured."""
    settings: SettingsLimits | None = SettingsLimits()
    """Bounds of the settings that the coordinator chooses."""
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
        for name in ("max_repeats", "max_parameters", "max_batch_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"limits.{name}: expected 0 or more, got {getattr(self, name)}")
        for name in ("min_training_share", "min_interaction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"limits.{name}: expected 0 to 1, got {getattr(self, name)}")
        if self.max_epsilon is not None and self.max_epsilon <= 0:
            raise ConfigError(f"limits.max_epsilon: expected above 0, got {self.max_epsilon}")
        if not 0 < self.max_delta < 1:
            raise ConfigError(f"limits.max_delta: expected between 0 and 1, got {self.max_delta}")

    def check_parameters(self, count: int) -> None:
        """Refuse nets with too many parameters."""
        if count > self.max_parameters:
            raise WireError(
                f"Begin: this party allows nets of {self.max_parameters} parameters, got {count}; "
                "lower `hidden_dim`, `embedding_dim` or `members`, or the party's operator can "
                "raise limits.max_parameters"
            )

    def budget(self, use: Use) -> int:
        """Return how many requests of each kind are allowed for a row."""
        per_epoch = TRAINING_REQUESTS if use == "training" else EVALUATION_REQUESTS
        return per_epoch * self.max_epochs * self.max_runs


UNLIMITED = RequestLimits(
    2**20, 2**10, 64, 1, 0.0, 2**40, 2**40, 2**60, 0.0, settings=None, accept_gradients=True
)
"""For a party that trusts the coordinator, such as the coordinator's own."""

KINDS: tuple[tuple[Use, str], ...] = (
    ("training", "Embed"),
    ("training", "Complete"),
    ("evaluation", "Embed"),
    ("evaluation", "Complete"),
)
"""Rows of the array of counts."""


@dataclass
class RunRecord:
    """What a party stores about a run."""

    release: Release | None = None
    """Noise and number of releases of a row, with differential privacy."""
    digest: str = ""
    """Digest of the settings and the training rows; '' for a run of version 0.3.0."""
    updates: int = 0
    """Updates that arrived."""
    repeats: int = 0
    """Batches without an update since the batch before."""
    batch: str | None = field(default=None, compare=False)
    """The last training batch, until its update arrives; not stored."""
    rewound: bool = field(default=False, compare=False)
    """Whether earlier weights were loaded since the last batch; not stored."""
    updating: bool = field(default=False, compare=False)
    """Whether the update of the last batch is being applied; not stored."""
    stalled: bool = field(default=False, compare=False)
    """Whether the last update changed hardly anything; not stored."""


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
        self.full_threshold: float | None = None
        """The share of observed features of a full row, fixed by the first run."""
        self._n_rows = n_rows
        self._counts: NDArray[np.uint32] = np.zeros((len(KINDS), n_rows), dtype=np.uint32)
        self._runs: dict[str, RunRecord] = {}
        self._run, self._learning_rate = RunRecord(), 0.0
        self._masks, self._must_change = True, False
        self._statement: PrivacyStatement | None = None
        self._epsilon: float | None = None
        self._runs_path = path and path.with_suffix(".json")
        if path is not None:
            self._counts = open_counts(path, self._counts)
        if self._runs_path is not None and self._runs_path.is_file():
            self._runs, self.full_threshold = _read_runs(self._runs_path)

    def check(self, run: str, settings: RunSettings, training: Tensor) -> None:
        """Refuse a run that the limits do not allow; without any effect."""
        limits, bounds = self.limits, self.limits.settings
        if bounds is not None:
            check_settings(replace(settings, run=settings.run or run), bounds)
        if settings.privacy.sends_gradients and not limits.accept_gradients:
            raise WireError(
                "Begin: this party accepts no gradients; expected label_protection 'no_gradients', "
                f"got {settings.privacy.label_protection!r}. The party's operator can set "
                "limits.accept_gradients"
            )
        epochs = settings.train.epochs
        if epochs > limits.max_epochs:
            raise WireError(
                f"Begin: this party allows {limits.max_epochs} epochs, the run has {epochs}; "
                "lower `epochs`, or the party's operator can raise limits.max_epochs"
            )
        least, rows = limits.min_training_share * self._n_rows, len(np.unique(training.numpy()))
        if rows < len(training) or rows < least:
            raise WireError(
                f"Begin: this party expects each training row once, and {least:.0f} of its "
                f"{self._n_rows} matched rows or more, got {len(training)} handles of {rows} rows; "
                "hold out fewer rows, or the party's operator can lower limits.min_training_share"
            )
        if settings.full_threshold not in (None, self.full_threshold or settings.full_threshold):
            raise WireError(
                f"Begin: full_threshold: this party uses {self.full_threshold:g} for all runs with "
                f"this alignment, got {settings.full_threshold:g}: each further threshold would "
                "reveal more about missing cells; use the same one, or match again"
            )
        known = self._runs.get(run)
        if known is None and len(self._runs) >= limits.max_runs:
            raise WireError(
                f"Begin: this party allows {limits.max_runs} runs with one alignment, and all were "
                "used; its operator can raise limits.max_runs"
            )
        if known is not None:
            if known.digest not in ("", settings_digest(settings, training)):
                raise WireError(
                    f"Begin: the settings or training rows of run {run!r} changed; restore them, "
                    "or choose another run name"
                )
            self._check_repeats(known)

    def begin(
        self,
        run: str,
        settings: RunSettings,
        training: Tensor,
        statement: PrivacyStatement | None = None,
    ) -> None:
        """Check a run and count it, and its `statement` on differential privacy.

        A run that begins again returns to the weights of a checkpoint.
        """
        self.check(run, settings, training)
        release = (statement.noise_multiplier, statement.n_releases) if statement else None
        releases = {name: each.release for name, each in self._runs.items()} | {run: release}
        self._check_epsilon(releases)
        known = self._runs.get(run)
        if known is not None and known.release != release:
            raise WireError(
                f"Begin: the differential privacy of run {run!r} changed; choose another run name"
            )
        self._statement = statement
        if statement is not None:
            self._epsilon = _total_epsilon(releases, statement.delta)
        self._run = known or RunRecord(release)
        self._run.repeats += known is not None
        self._run.digest = settings_digest(settings, training)
        self._runs[run] = self._run
        self._learning_rate = settings.train.learning_rate
        self._masks = settings.method in MASKING_METHODS
        # Without masked copies, or with noise, a batch of the same net tells nothing new.
        private = settings.privacy.epsilon is not None
        self._must_change = self.limits.settings is not None and self._masks and not private
        self.save()

    def save(self) -> None:
        """Write the list of runs."""
        if self._runs_path is None:
            return
        runs = {name: each.release for name, each in self._runs.items()}
        kept = {
            name: {"digest": each.digest, "updates": each.updates, "repeats": each.repeats}
            for name, each in self._runs.items()
        }
        text = json.dumps({"runs": runs, "kept": kept, "full_threshold": self.full_threshold})
        with atomic_write(self._runs_path) as temporary:
            temporary.write_text(text, encoding="utf-8")

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

    def check_rate(self, rate: float) -> None:
        """Reject an update with a higher learning rate than that of the settings."""
        if self.limits.settings is not None and rate > self._learning_rate * (1 + 1e-6):
            raise WireError(
                f"update: expected a learning rate up to {self._learning_rate:g}, as in the "
                f"settings of the run, got {rate:g}"
            )

    def record_update(self, updated: bool, rewound: bool) -> None:
        """Record the update of the last training batch, or a return to earlier weights."""
        run = self._run
        run.updating = updated and run.batch is not None
        if run.updating:
            run.batch = None
        run.rewound |= rewound

    def record_change(self, change: float) -> None:
        """Record the relative change of the weights by the update; a small one does not count."""
        run = self._run
        if run.updating and self._must_change and not change >= MIN_CHANGE:
            run.stalled = True
        elif run.updating:
            run.updates += 1
        run.updating = False

    def measures(self, worker: PartyWorker, settings: RunSettings) -> bool:
        """Return whether the interactions of features in a run's net are measured."""
        layout = worker.net.layout
        if self.limits.min_interaction == 0 or settings.privacy.sends_gradients:
            return False
        # A single feature has no interactions; with differential privacy, noise protects columns.
        table = layout.image is None and layout.raw > 1 and len(worker.table) > 0
        return table and worker.private is None

    def check_net(self, share: float, norm: float) -> None:
        """Refuse a net in which features hardly interact, or soon will, because layers shrink.

        `share`: of interactions in the variance of embeddings; `norm`: smallest norm of a layer,
        over its first norm.
        """
        least, advice = self.limits.min_interaction, "lower `learning_rate`"
        found = f"features hardly interact in this party's net (share {share:.2g}, limit {least:g})"
        if not norm >= MIN_NORM:
            found = f"a layer of this party's net shrank to {norm:.2g} of its norm"
            advice = "lower `weight_decay`"
        elif share >= least:
            return
        raise WireError(
            f"update: {found}, so embeddings would reveal columns; this party leaves the run: "
            f"{advice} and start another run, or the party's operator can set "
            "limits.min_interaction = 0"
        )

    def count_batch(self, batch: str, updated: bool, rewound: bool) -> None:
        """Reject a training batch if too many had no update since the batch before.

        An equal batch, which another party's fault causes, tells nothing new. `updated` and
        `rewound` say what arrives with this batch.
        """
        run = self._run
        stays = run.stalled or run.rewound or rewound
        if stays or not (updated or run.batch in (None, batch)):
            self._check_repeats(run)
            run.repeats += 1
            # On a full disk the count stays in memory until the next checkpoint.
            with suppress(OSError):
                self.save()
        self.record_update(updated, False)
        run.batch, run.rewound, run.stalled = batch, False, False

    def _check_repeats(self, run: RunRecord) -> None:
        allowed = self.limits.max_repeats + run.updates // UPDATES_PER_REPEAT
        if run.repeats >= allowed:
            raise WireError(
                "expected an update of the last training batch first, which changes the weights: "
                f"this party allows {allowed} repeated batches after {run.updates} updates, and "
                "all were used; raise `learning_rate`, or the party's operator can raise "
                "limits.max_repeats"
            )

    def check_size(self, n_handles: int, n_bytes: int) -> None:
        """Reject a request with too many handles, or whose rows would take too much memory."""
        bounds = self.limits.settings
        most = n_handles if bounds is None else max(bounds.batch_size[1], BATCH)
        if n_handles > most:
            raise WireError(
                f"Embed: this party allows {most:g} handles, got {n_handles}; lower `batch_size`, "
                "or the party's operator can raise limits.settings.batch_size"
            )
        if n_bytes > self.limits.max_batch_bytes:
            raise WireError(
                f"Embed: the rows take about {n_bytes} bytes, this party allows "
                f"{self.limits.max_batch_bytes}; lower `batch_size`, `n_masks` or `hidden_dim`, or "
                "the party's operator can raise limits.max_batch_bytes"
            )

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
        if training and not self._masks and set(views) - {"plain"}:
            raise WireError(
                f"Embed: this run's method requests the view 'plain' alone in training, got "
                f"{tuple(views)}"
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


def _read_runs(path: Path) -> tuple[dict[str, RunRecord], float | None]:
    """Read the runs and the full threshold; version 0.3.0 wrote the names and releases alone."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kept, threshold = data.get("kept", {}), data.get("full_threshold")
        runs = {
            str(run): RunRecord(
                (float(release[0]), int(release[1])) if release else None, **kept.get(run, {})
            )
            for run, release in data["runs"].items()
        }
        return runs, None if threshold is None else float(threshold)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: the list of runs cannot be read ({error}); restore the file, or match again "
            "with `xvfl align`"
        ) from error
