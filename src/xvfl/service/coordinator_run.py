"""A run of the coordinator: train with the parties that are online, save, evaluate, release."""

import json
import math
import secrets
import time
from dataclasses import replace
from threading import Event
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from xvfl.dataset.splits import Splits
from xvfl.errors import ConfigError, RunError
from xvfl.federation.build import build_method, choose_private_width, default_widths
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.party_monitor import PartyMonitor
from xvfl.federation.party_share import check_repeatability, check_validation
from xvfl.federation.predict import Temperatures, calibrate, score
from xvfl.federation.privacy_accounting import state_privacy
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.split import Counters
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.methods import Method, protect_labels
from xvfl.model.evaluation import EVALUATION, Evaluation, evaluate, federation_predictions
from xvfl.model.run_dir import CHECKPOINT, MANIFEST, MODEL, RECORDS, RunDir
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labeled_rows import LabeledRows
from xvfl.service.log import FINISHED, LogFunction
from xvfl.service.outcome import (
    RunOutcome,
    absent_parties,
    deliver_outcome,
    participation,
    restore_exclusions,
    restore_participation,
    uninformed_parties,
)
from xvfl.service.run_terms import image_parties, make_terms
from xvfl.service.secret import load_secret, run_seed
from xvfl.service.status_server import ProgressClock
from xvfl.service.trained_heads import TrainedHeads
from xvfl.system.write_guard import WriteGuard
from xvfl.training.loop import Record, Trainer


class CoordinatorRun:
    """One run in a coordinator's state folder."""

    def __init__(
        self,
        config: CoordinatorConfig,
        folder: RunDir,
        labels: pd.Series,
        alignment: CoordinatorAlignment,
        parties: list[RemoteParty],
        counters: Counters,
        log: LogFunction,
    ) -> None:
        """Wait for the parties and resume from the last checkpoint, if there is one."""
        self.config, self.folder, self.log = config, folder, log
        train, names = config.train, config.all_parties
        # A warm start keeps the secret: it must not train on the test rows of the earlier run.
        earlier = RunDir(config.warm_start) if config.warm_start is not None else None
        secret = load_secret(folder, earlier)
        # The split depends on labels, and parties learn it: nobody else may know its seed.
        split_seed = run_seed(secret, f"split {train.random_state}")
        splits = Splits(config.test_fraction, train.validation_fraction, split_seed)
        labeled = LabeledRows.load(labels, alignment, names, splits)
        self.classes = labeled.classes
        saved, about = self._load_checkpoint()
        self.name = str(about.get("run") or secrets.token_hex(6))
        self.images = image_parties(parties, about.get("images", {}), config.timeouts.join)
        image = any(self.images.values())
        privacy = config.privacy.resolve(federated=True)
        self.privacy = state_privacy(privacy, config.loss.method)
        if self.privacy is not None and config.warm_start is not None:
            raise ConfigError("warm_start: expected none with `privacy.epsilon`")
        net = choose_private_width(config.net, privacy)
        embedding_dim, hidden_dim = default_widths(image, net, privacy.bounded)
        self.net = replace(net, embedding_dim=embedding_dim, hidden_dim=hidden_dim)
        seeds = [run_seed(secret, self.name)]
        self.method: Method = build_method(
            len(names), len(self.classes), image, self.net, config.loss, seeds
        )
        warm = str(json.loads(about["settings"])["warm"]) if saved else self._warm_start()
        terms = make_terms(config, self.net, labeled, self.name, warm)
        self.monitor = PartyMonitor(config.on_anomaly, log)
        self.federation = ElasticFederation(parties, terms, log, self.monitor)
        self.federation.counters = counters
        self._gather(saved, about)
        rows, (training, validation, test) = labeled.rows(self._row_status(), train.class_weight)
        self.validation, self.test = rows.take(validation), rows.take(test)
        self.prior = torch.bincount(rows.y[training], minlength=len(self.classes)).double()
        self.prior /= self.prior.sum()
        method = protect_labels(self.method, privacy, len(self.classes), seeds)
        self.trainer = Trainer(self.federation, method, rows.take(training), train)
        if saved:
            self.trainer.restore(saved, about["progress"])
            self.monitor.epoch = self.trainer.progress.epoch
            log({"event": "resumed", "step": self.trainer.progress.step, "run": self.name})
        else:
            log({"event": "run_started", "run": self.name, "rows": len(rows)})
        if self.privacy is not None:
            log({"event": "differential_privacy", **self.privacy.to_dict()})
        self._started, self._saved_step = time.monotonic(), self.trainer.progress.step
        self._attempted_step = self._saved_step
        self._unwritten: list[dict[str, Any]] = []
        self._writes = WriteGuard(log)
        self._clock, self._excluded = ProgressClock(), self._excluded_parties()
        self._epoch_batches = self._party_batches()

    def run(self, stop: Event) -> RunOutcome:
        """Train until the run is finished or `stop` is set, with common checkpoints."""
        if self._finished is not None:
            self.method.heads.load_state_dict(self.folder.load_tensors(MODEL)[0])
            return self._deliver(self._finished, stop)
        if not self.trainer.progress.step:
            self._checkpoint()
        check_repeatability(self.method, self.federation, self.validation)
        for record in self.trainer.run(self._score):
            progress = record.progress
            if record.kind == "epoch":
                self._record(record)
            if stop.is_set():
                break
            # Save the best weights at once: a party that is killed later must load the same ones.
            best = record.kind == "epoch" and progress.best_epoch == progress.epoch - 1
            steps = self.trainer.progress.step - self._attempted_step
            if best or steps >= self.config.checkpoint_interval:
                self._checkpoint()
        self._checkpoint()
        if stop.is_set():
            self.log({"event": "stopped", "step": self.trainer.progress.step})
            return RunOutcome(self.trainer.progress.step)
        return self._deliver(self._finish(), stop)

    def status(self) -> dict[str, Any]:
        """Return the status of the run; numbers become metrics."""
        progress, members = self.trainer.progress, self.federation.members
        counts = self.federation.fault_counts
        traffic = {m.party.name: m.party.transport.traffic() for m in members}
        best = progress.best_score
        names, monitor = self.federation.names, self.monitor
        problem = self._health_problem()
        return {
            "healthy": problem is None,
            "problem": problem or "",
            "side": "coordinator",
            "run": self.name,
            "epoch": progress.epoch,
            "epochs": self.config.train.epochs,
            "step": progress.step,
            "best_score": best if math.isfinite(best) else None,
            "checkpoint_step": self._saved_step,
            "batches_retried": counts.repeated_batches,
            "seconds": round(time.monotonic() - self._started, 1),
            "party_present": {m.party.name: int(m.present) for m in members},
            "batches": self.federation.batches,
            "party_batches": {m.party.name: m.batches for m in members},
            "party_anomalies": {name: monitor.counts.get(name, 0) for name in names},
            "party_last_anomaly": {name: monitor.last.get(name, "none") for name in names},
            "party_explained_loss": dict(monitor.explained),
            "party_embedding_rms": dict(monitor.rms),
            "party_departures": {name: counts.departures.get(name, 0) for name in traffic},
            "party_rejections": {name: counts.rejections.get(name, 0) for name in traffic},
            "party_excluded": {m.party.name: int(m.exclusion_reason is not None) for m in members},
            "party_lost_updates": {name: counts.lost_updates.get(name, 0) for name in traffic},
            "party_bytes_sent": {name: sent for name, (sent, _) in traffic.items()},
            "party_bytes_received": {name: received for name, (_, received) in traffic.items()},
            "party_timeout_seconds": {m.party.name: m.party.timeout.seconds for m in members},
            **(self.privacy.status() if self.privacy else {}),
        }

    def _health_problem(self) -> str | None:
        """Return why a watchdog should act, or None."""
        federation, limit = self.federation, self.config.timeouts.progress
        if self._finished is not None:
            return None
        present, needed = len(federation.present), self.config.min_parties
        if present < needed:
            absent = ", ".join(absent_parties(federation))
            return f"expected {needed} or more parties, got {present}; absent: {absent}"
        idle = self._clock.seconds_since_change(self.trainer.progress.step)
        return f"no training step for {idle:.0f} s" if idle > limit else None

    def _score(self) -> float:
        """Check each party's share of the loss, and score the epoch."""
        check_validation(self.method, self.federation, self.validation)
        if (excluded := self._excluded_parties()) != self._excluded:
            # Scores with and without a party cannot be compared.
            self._excluded = excluded
            self.trainer.forget_best()
        return score(self.method, self.federation, self.validation)

    def _excluded_parties(self) -> set[str]:
        members = self.federation.members
        return {m.party.name for m in members if m.exclusion_reason is not None}

    def _warm_start(self) -> str:
        """Load the heads of a finished run; return its name for the parties to do the same."""
        if self.config.warm_start is None:
            return ""
        folder = RunDir(self.config.warm_start)
        run = str(folder.manifest()["run"])
        tensors, _ = folder.load_tensors(MODEL)
        try:
            self.method.heads.load_state_dict(tensors)
        except RuntimeError as error:
            raise RunError(
                f"warm_start: the heads in {folder.path} do not fit this run ({error}); use a run "
                "of the same method and net sizes"
            ) from error
        self.log({"event": "warm_start", "run": run})
        return run

    def _load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._finished: RunOutcome | None = None
        if self.folder.has(MANIFEST):
            self._finished = self._load_outcome()
        if not self.folder.has(CHECKPOINT):
            return {}, {}
        return self.folder.load_tensors(CHECKPOINT)

    def _gather(self, saved: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Wait for all parties of a new run, or for `min_parties` of a resumed one."""
        federation = self.federation
        required = len(self.config.all_parties)
        if saved:
            unchanged = about["settings"] == federation.terms.settings
            if not unchanged or about["parties"] != list(federation.names):
                raise RunError(
                    f"{self.folder.path}: the configuration changed since this run started; "
                    "restore it, or choose another `state_dir`"
                )
            federation.counters.update, federation.step = about["update"], about["step"]
            federation.restore_best_state(about["keep"])
            restore_participation(federation, about["participation"])
            for member in federation.members:
                member.row_status = saved.pop(f"row_status/{member.party.name}")
            required = self.config.min_parties
        if self._finished is not None:
            restore_exclusions(federation, self._finished.absent)
            federation.counters.update = self.folder.manifest()["update"]
            required = 0
        federation.wait_for(required)

    def _row_status(self) -> dict[str, Tensor]:
        row_status = {}
        for member in self.federation.members:
            assert member.row_status is not None
            row_status[member.party.name] = member.row_status
        return row_status

    def _checkpoint(self) -> None:
        """Save a checkpoint of this step at all parties and here; nowhere if it fails here."""
        step = self._attempted_step = self.trainer.progress.step
        tensors, progress = self.trainer.state()
        tensors |= {f"row_status/{name}": value for name, value in self._row_status().items()}
        about = {
            "run": self.name,
            "step": step,
            "update": self.federation.counters.update,
            "keep": self.federation.best_state(),
            "progress": progress,
            "settings": self.federation.terms.settings,
            "parties": list(self.federation.names),
            "images": self.images,
            "participation": participation(self.federation),
        }

        def save() -> None:
            with self.folder.transaction():
                self.folder.save_tensors(CHECKPOINT, tensors, about)
                self.federation.flush(save=step)

        if self._writes.attempt(CHECKPOINT, save):
            self._saved_step = step
            self.log({"event": "checkpoint", "step": step})

    def _record(self, record: Record) -> None:
        progress = record.progress
        before, batches = self._epoch_batches, self._party_batches()
        self._epoch_batches = batches
        line = {
            "kind": "epoch",
            "epoch": progress.epoch,
            "step": progress.step,
            "best_epoch": progress.best_epoch + 1,
            **record.values,
            "parties": len(self.federation.present),
            "batches": {name: n - before.get(name, 0) for name, n in batches.items()},
            "seconds": round(time.monotonic() - self._started, 3),
        }
        self._unwritten.append(line)
        self._writes.attempt(RECORDS, self._write_records)
        self.log({"event": "epoch", **line})

    def _write_records(self) -> None:
        """Append the records that are not in the file yet."""
        while self._unwritten:
            self.folder.append_record(self._unwritten[0])
            del self._unwritten[0]

    def _finish(self) -> RunOutcome:
        """Load the best weights, calibrate, evaluate, release and save the heads."""
        step = self.trainer.progress.step
        if self.federation.best_weights_agree:
            self.trainer.load_best()
        else:
            reason = "a party was absent at the best epoch"
            self.log({"event": "best_weights_unavailable", "reason": reason})
        self.federation.flush(save=step)
        temperatures = calibrate(self.method, self.federation, self.validation)
        split = "test" if len(self.test) else "validation"
        rows = self.test if len(self.test) else self.validation
        federation = self.federation
        predictions = federation_predictions(
            self.method, federation, rows, lambda: federation.contributors
        )
        evaluation = evaluate(predictions, split)
        absent = absent_parties(federation)
        heads = self._heads(temperatures)
        heads.release(self.folder, federation, self.config.release_to, self.log)
        seed, outcome = self.config.train.random_state, self._outcome(absent)
        for file, write in (
            (RECORDS, self._write_records),
            (EVALUATION, lambda: self.folder.write_json(EVALUATION, evaluation.to_dict())),
            (MODEL, lambda: heads.save(self.folder, federation.names, self.net, seed, outcome)),
        ):
            self._writes.insist(file, write, self.config.timeouts.join)
        federation.end(FINISHED)
        self.log({"event": FINISHED, **outcome, "uninformed": uninformed_parties(federation)})
        self._finished = RunOutcome(step, evaluation, absent, uninformed_parties(federation))
        return self._finished

    def _outcome(self, absent: dict[str, str]) -> dict[str, Any]:
        """Describe who took part, for the manifest; before the end, nobody knows the outcome."""
        return {
            "step": self.trainer.progress.step,
            "update": self.federation.counters.update,
            "participation": participation(self.federation),
            "absent": absent,
            "uninformed": list(self.federation.names),
            "differential_privacy": self.privacy and self.privacy.to_dict(),
        }

    def _heads(self, temperatures: Temperatures) -> TrainedHeads:
        return TrainedHeads(
            self.name, self.method, self.classes, self.prior, temperatures, self.config.loss
        )

    def _load_outcome(self) -> RunOutcome:
        """Load the outcome of a finished run that some parties have not received."""
        manifest = self.folder.manifest()
        if not manifest.get("uninformed"):
            raise RunError(f"{self.folder.path}: this run is finished; choose another `state_dir`")
        evaluation = Evaluation.from_dict(self.folder.read_json(EVALUATION))
        uninformed = tuple(manifest["uninformed"])
        return RunOutcome(manifest["step"], evaluation, manifest["absent"], uninformed)

    def _deliver(self, outcome: RunOutcome, stop: Event) -> RunOutcome:
        """Inform parties that come back, for a while; write who was not informed."""
        manifest = self.folder.manifest()
        heads, release_to = self._heads(manifest["temperatures"]), self.config.release_to

        def release(names: list[str]) -> None:
            chosen = [name for name in names if name in release_to]
            heads.release(self.folder, self.federation, chosen, self.log)

        uninformed = deliver_outcome(
            self.federation,
            outcome.uninformed,
            release,
            self.config.timeouts.outcome,
            stop,
            self.log,
        )
        changed = {**manifest, "uninformed": list(uninformed)}
        self._writes.attempt(MANIFEST, lambda: self.folder.write_json(MANIFEST, changed))
        return replace(outcome, uninformed=uninformed, privacy=str(self.privacy or ""))

    def _party_batches(self) -> dict[str, int]:
        return {member.party.name: member.batches for member in self.federation.members}
