"""The status of a run in training, for `xvfl status`, metrics and health checks."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.party_monitor import PartyMonitor
from xvfl.federation.privacy_accounting import PrivacyStatement
from xvfl.service.config import CoordinatorConfig
from xvfl.service.outcome import absent_parties
from xvfl.service.run_checkpoints import RunCheckpoints
from xvfl.service.run_records import EpochRecords
from xvfl.service.status_server import ProgressClock
from xvfl.training.loop import Trainer


@dataclass(frozen=True)
class RunStatus:
    """What the status is computed from."""

    config: CoordinatorConfig
    federation: ElasticFederation
    monitor: PartyMonitor
    trainer: Trainer
    checkpoints: RunCheckpoints
    records: EpochRecords
    privacy: PrivacyStatement | None
    missing: Mapping[str, Any]
    """What is missing where, by party; see `rows_map`."""
    score_name: str
    _clock: ProgressClock = field(default_factory=ProgressClock)

    def to_dict(self, finished: bool) -> dict[str, Any]:
        """Return the status; numbers become metrics."""
        progress, members = self.trainer.progress, self.federation.members
        counts, monitor = self.federation.fault_counts, self.monitor
        names = self.federation.names
        now, timeouts = time.monotonic(), {m.party.name: m.party.timeout for m in members}
        traffic = {m.party.name: m.party.transport.traffic() for m in members}
        best = progress.best_score
        problem = None if finished else self._health_problem()
        return {
            "healthy": problem is None,
            "problem": problem or "",
            "side": "coordinator",
            "run": self.federation.terms.run,
            "epoch": progress.epoch,
            "epochs": self.config.train.epochs,
            "step": progress.step,
            "best_score": best if math.isfinite(best) else None,
            "checkpoint_step": self.checkpoints.saved_step,
            "batches_retried": counts.repeated_batches,
            "seconds": round(self.records.seconds, 1),
            "party_present": {m.party.name: int(m.present) for m in members},
            "batches": self.federation.batches,
            "party_batches": {m.party.name: m.batches for m in members},
            "party_anomalies": {name: monitor.counts.get(name, 0) for name in names},
            "party_last_anomaly": {name: monitor.last.get(name, "none") for name in names},
            "party_explained_loss": dict(monitor.explained),
            "party_embedding_rms": dict(monitor.rms),
            "party_departures": {name: counts.departures.get(name, 0) for name in names},
            "party_rejections": {name: counts.rejections.get(name, 0) for name in names},
            "party_excluded": {m.party.name: int(m.exclusion_reason is not None) for m in members},
            "party_lost_updates": {name: counts.lost_updates.get(name, 0) for name in names},
            "party_bytes_sent": {name: sent for name, (sent, _) in traffic.items()},
            "party_bytes_received": {name: received for name, (_, received) in traffic.items()},
            "party_timeout_seconds": {name: each.seconds for name, each in timeouts.items()},
            "party_latency_seconds": {
                name: each.latest for name, each in timeouts.items() if each.latest is not None
            },
            "party_last_seen_seconds": {
                name: round(now - each.observed_at, 1)
                for name, each in timeouts.items()
                if each.observed_at is not None
            },
            "party_absence": {m.party.name: m.absence or "" for m in members},
            **(self.privacy.status() if self.privacy else {}),
        }

    def details(self, finished: bool) -> dict[str, Any]:
        """Return what the page draws: curves, anomalies, and what is missing where."""
        return {
            "state": "finished" if finished else "training",
            "method": self.config.loss.method,
            "task": self.config.labels.task,
            "score_name": self.score_name,
            "warnings": list(self.monitor.recent),
            "curves": self.records.curves(),
            "missing": self.missing,
        }

    def _health_problem(self) -> str | None:
        """Return why a watchdog should act, or None."""
        present, needed = len(self.federation.present), self.config.min_parties
        if present < needed:
            absent = ", ".join(absent_parties(self.federation))
            return f"expected {needed} or more parties, got {present}; absent: {absent}"
        idle = self._clock.seconds_since_change(self.trainer.progress.step)
        limit = self.config.timeouts.progress
        return f"no training step for {idle:.0f} s" if idle > limit else None
