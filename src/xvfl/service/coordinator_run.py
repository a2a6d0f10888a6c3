"""A run of the coordinator: train with the parties that are online, save, evaluate, release."""

import json
import secrets
from dataclasses import asdict, replace
from threading import Event
from typing import Any

import pandas as pd
from torch import Tensor

from xvfl.dataset.splits import Parts, RowCounts, Splits
from xvfl.errors import ConfigError, RunError
from xvfl.federation.build import build_method
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.party_monitor import PartyMonitor
from xvfl.federation.party_share import check_repeatability, check_validation
from xvfl.federation.predict import mean_score, mode_losses
from xvfl.federation.privacy_accounting import state_privacy
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.split import Counters
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.methods import Method, protect_labels
from xvfl.model.missing_map import rows_map
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.options import resolve_options
from xvfl.primitives.rows import Rows
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labeled_rows import LabeledRows
from xvfl.service.log import LogFunction
from xvfl.service.outcome import RunOutcome, restore_exclusions
from xvfl.service.run_checkpoints import (
    RunCheckpoints,
    load_checkpoint,
    restore_federation,
    row_status,
)
from xvfl.service.run_completion import RunCompletion, load_outcome
from xvfl.service.run_records import EpochRecords
from xvfl.service.run_snapshot import RunSnapshot
from xvfl.service.run_status import RunStatus
from xvfl.service.run_terms import image_parties, make_terms
from xvfl.service.secret import load_secret, run_seed
from xvfl.service.trained_heads import place_adapters
from xvfl.system.write_guard import WriteGuard
from xvfl.training.loop import Trainer


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
        labeled = LabeledRows.load(labels, alignment, names, splits, config.labels.task)
        self._outcome = load_outcome(folder)
        saved, about = load_checkpoint(folder)
        name = str(about.get("run") or secrets.token_hex(6))
        images = image_parties(parties, about.get("images", {}), config.timeouts.join)
        image = any(images.values())
        options = resolve_options(
            config.net,
            config.loss,
            train,
            config.privacy,
            federated=True,
            image=image,
            parties=len(names),
            rows=len(labeled.parts[0]),
        )
        net, loss, train, privacy = options.net, options.loss, options.train, options.privacy
        self.config = config = replace(config, net=net, loss=loss, train=train, privacy=privacy)
        statement = state_privacy(privacy, loss.method)
        if statement is not None and config.warm_start is not None:
            raise ConfigError("warm_start: expected none with `privacy.epsilon`")
        seeds, self.task = [run_seed(secret, name)], labeled.task
        n_outputs = self.task.n_outputs
        self.method: Method = build_method(
            len(names), n_outputs, image, net, loss, seeds, None, privacy, self.task
        )
        warm = str(json.loads(about["settings"])["warm"]) if saved else self._warm_start()
        terms = make_terms(config, labeled, name, warm)
        self.monitor = PartyMonitor(config.on_anomaly, log)
        self.federation = ElasticFederation(parties, terms, log, self.monitor)
        self.federation.counters = counters
        self._gather(saved, about)
        levels = row_status(self.federation)
        rows, parts = labeled.rows(levels, train.class_weight)
        training, validation, test = parts
        missing = rows_map(rows, list(names))
        self.validation = rows.take(validation)
        method = protect_labels(self.method, privacy, n_outputs, seeds)
        self.trainer = Trainer(self.federation, method, rows.take(training), train)
        if saved:
            self.trainer.restore(saved, about["progress"])
            self.monitor.epoch = self.trainer.progress.epoch
            log({"event": "resumed", "step": self.trainer.progress.step, "run": name})
        else:
            log({"event": "run_started", "run": name, "rows": len(rows)})
        if statement is not None:
            log({"event": "differential_privacy", **statement.to_dict()})
        writes = WriteGuard(log)
        self._completion = RunCompletion(
            config,
            folder,
            self.federation,
            self.method,
            image,
            self.task,
            labeled.prior(training),
            self.validation,
            rows.take(test),
            statement,
            writes,
            log,
        )
        self._records = EpochRecords(folder, self.federation, writes, log)
        step = self.trainer.progress.step
        self._checkpoints = RunCheckpoints(folder, self.federation, images, writes, log, step)
        self._status = RunStatus(
            config,
            self.federation,
            self.monitor,
            self.trainer,
            self._checkpoints,
            self._records,
            statement,
            missing,
            self.task.score_name,
        )
        self._snapshot = RunSnapshot(folder, writes, self._describe(rows, parts), missing)
        self._excluded = self.federation.excluded
        self._losses: dict[str, float] = {}
        """Validation loss of the last epoch by mode."""

    def run(self, stop: Event) -> RunOutcome:
        """Train until the run is finished or `stop` is set, with common checkpoints."""
        if self._outcome is not None:
            self.method.heads.load_state_dict(self.folder.load_tensors(MODEL)[0])
            return self._completion.deliver(self._outcome, stop)
        trainer, checkpoints = self.trainer, self._checkpoints
        self._snapshot.start()
        if not trainer.progress.step:
            checkpoints.save(trainer)
        check_repeatability(self.method, self.federation, self.validation)
        for record in trainer.run(self._score):
            progress = record.progress
            if record.kind == "epoch":
                self._records.add(record, self._losses)
                self._snapshot.write(self._status.to_dict(finished=False))
            if stop.is_set():
                break
            # Save the best weights at once: a party that is killed later must load the same ones.
            best = record.kind == "epoch" and progress.best_epoch == progress.epoch - 1
            steps = trainer.progress.step - checkpoints.attempted_step
            if best or steps >= self.config.checkpoint_interval:
                checkpoints.save(trainer)
        checkpoints.save(trainer)
        if stop.is_set():
            self.log({"event": "stopped", "step": trainer.progress.step})
            self._snapshot.write(self._status.to_dict(finished=False), "stopped")
            return RunOutcome(trainer.progress.step)
        self._outcome = self._completion.finish(trainer, self._records)
        self._snapshot.write(self._status.to_dict(finished=True), "ended")
        return self._completion.deliver(self._outcome, stop)

    def status(self) -> dict[str, Any]:
        """Return the status of the run; numbers become metrics."""
        finished = self._outcome is not None
        return {**self._status.to_dict(finished), "details": self._status.details(finished)}

    def _describe(self, rows: Rows, parts: Parts) -> dict[str, Any]:
        """Describe the run for `run.json`."""
        counts = (rows.handles >= 0).sum(0).tolist()
        parties = dict(zip(self.config.all_parties, counts, strict=True))
        return {
            "side": "coordinator",
            "run": self.federation.terms.run,
            "method": self.config.loss.method,
            "task": self.config.labels.task,
            "label": self.config.labels.column,
            "score_name": self.task.score_name,
            "epochs": self.config.train.epochs,
            "rows": asdict(RowCounts(len(parts[0]), 0, len(parts[1]), len(parts[2]))),
            "parties": {name: {"rows": count} for name, count in parties.items()},
        }

    def _score(self) -> float:
        """Check each party's share of the loss, and score the epoch."""
        check_validation(self.method, self.federation, self.validation, self.task)
        if self.federation.excluded != self._excluded:
            # Scores with and without a party cannot be compared.
            self._excluded = self.federation.excluded
            self.trainer.forget_best()
        self._losses = mode_losses(self.method, self.federation, self.validation, self.task)
        return mean_score(self._losses)

    def _warm_start(self) -> str:
        """Load the heads of a finished run; return its name for the parties to do the same."""
        if self.config.warm_start is None:
            return ""
        folder = RunDir(self.config.warm_start)
        manifest, (tensors, _) = folder.manifest(), folder.load_tensors(MODEL)
        run, heads = str(manifest["run"]), self.method.heads
        try:
            heads.load_state_dict(
                place_adapters(heads, tensors, manifest["parties"], self.config.all_parties)
            )
        except RuntimeError as error:
            raise RunError(
                f"warm_start: the heads in {folder.path} do not fit this run ({error}); use a run "
                "of the same method and net sizes"
            ) from error
        self.log({"event": "warm_start", "run": run})
        return run

    def _gather(self, saved: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Wait for all parties of a new run, or for `min_parties` of a resumed one."""
        required = len(self.config.all_parties)
        if saved:
            restore_federation(self.federation, self.folder, saved, about)
            required = self.config.min_parties
        if self._outcome is not None:
            restore_exclusions(self.federation, self._outcome.absent)
            self.federation.counters.update = self.folder.manifest()["update"]
            required = 0
        self.federation.wait_for(required)
