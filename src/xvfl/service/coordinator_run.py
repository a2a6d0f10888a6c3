"""A coordinator's run: train with whoever is there, checkpoint together, evaluate, release."""

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from xvfl.dataset.splits import Splits
from xvfl.errors import RunError
from xvfl.federation.build import build_method, default_widths
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.predict import calibrate, score
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.split import Counters
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.methods.base import Method
from xvfl.model.evaluation import EVALUATION, Evaluation, evaluate, federation_predictions
from xvfl.model.run_dir import CHECKPOINT, MANIFEST, MODEL, RunDir
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labelled_rows import labelled
from xvfl.service.party import FINISHED
from xvfl.service.result import Result
from xvfl.service.run_terms import image_parties, terms
from xvfl.training.loop import Record, Trainer

Note = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    finished: bool
    step: int
    evaluation: Evaluation | None = None


class Run:
    """One run of a coordinator's folder."""

    def __init__(
        self,
        config: CoordinatorConfig,
        folder: RunDir,
        labels: pd.Series,
        alignment: CoordinatorAlignment,
        peers: list[RemoteParty],
        counters: Counters,
        note: Note,
    ) -> None:
        """Wait for the parties it needs, and take up the last checkpoint."""
        self.config, self.folder, self.note = config, folder, note
        names = config.all_parties
        self.labelled = labelled(
            labels,
            alignment,
            names,
            Splits(
                config.test_fraction, config.train.validation_fraction, config.train.random_state
            ),
        )
        saved, about = self._saved()
        self.name = str(about.get("run") or secrets.token_hex(6))
        self.images = image_parties(peers, about.get("images", {}), config.timeouts.join)
        image = any(self.images.values())
        embedding, hidden = default_widths(image, config.net)
        self.net = replace(config.net, embedding_dim=embedding, hidden_dim=hidden)
        self.method: Method = build_method(
            len(names),
            len(self.labelled.classes),
            image,
            self.net,
            config.loss,
            [config.train.random_state],
        )
        self.warm = str(json.loads(about["settings"])["warm"]) if saved else self._warm_start()
        demanded = terms(config, self.net, self.labelled, self.name, self.warm)
        self.roster = ElasticFederation(peers, demanded, note)
        self.roster.counters = counters
        self._take_up(saved, about)
        rows, (train, validation, test) = self.labelled.rows(
            self._holdings(), config.train.class_weight
        )
        self.validation, self.test = rows.take(validation), rows.take(test)
        self.prior = torch.bincount(rows.y[train], minlength=len(self.labelled.classes)).double()
        self.prior /= self.prior.sum()
        self.trainer = Trainer(self.roster, self.method, rows.take(train), config.train)
        if saved:
            self.trainer.restore(saved, about["progress"])
            note({"event": "resumed", "step": self.trainer.progress.step, "run": self.name})
        else:
            note({"event": "run_started", "run": self.name, "rows": len(rows)})
        self._started, self._saved_at = time.monotonic(), self.trainer.progress.step

    def run(self, stop: Event) -> Outcome:
        """Train to the end or until asked to stop, with common checkpoints on the way."""
        if not self.trainer.progress.step:
            self._checkpoint()
        for record in self.trainer.run(self._score):
            step = self.trainer.progress.step
            if record.kind == "epoch":
                self._record(record)
            if stop.is_set():
                break
            # What is best is kept at once: a party killed later must not come back with another.
            best = (
                record.kind == "epoch" and record.progress.best_epoch == record.progress.epoch - 1
            )
            if best or step - self._saved_at >= self.config.checkpoint_interval:
                self._checkpoint()
        self._checkpoint()
        if stop.is_set():
            self.note({"event": "stopped", "step": self.trainer.progress.step})
            return Outcome(False, self.trainer.progress.step)
        return self._finish()

    def status(self) -> dict[str, Any]:
        """Say where the run stands; numbers become metrics."""
        progress = self.trainer.progress
        members = self.roster.members
        traffic = {m.peer.name: m.peer.transport.traffic() for m in members}
        best = progress.best_score
        return {
            "healthy": len(self.roster.present) >= self.config.min_parties,
            "side": "coordinator",
            "run": self.name,
            "epoch": progress.epoch,
            "epochs": self.config.train.epochs,
            "step": progress.step,
            "best_score": best if math.isfinite(best) else None,
            "checkpoint_step": self._saved_at,
            "batches_begun_again": self.roster.fault_counts.batches,
            "seconds": round(time.monotonic() - self._started, 1),
            "party_present": {m.peer.name: int(m.present) for m in members},
            "party_left": {n: self.roster.fault_counts.left.get(n, 0) for n in traffic},
            "party_refusals": {n: self.roster.fault_counts.refusals.get(n, 0) for n in traffic},
            "party_kept_out": {m.peer.name: int(m.barred is not None) for m in members},
            "party_lost_updates": {n: self.roster.fault_counts.updates.get(n, 0) for n in traffic},
            "party_bytes_sent": {name: sent for name, (sent, _) in traffic.items()},
            "party_bytes_received": {name: got for name, (_, got) in traffic.items()},
            "party_deadline_seconds": {m.peer.name: m.peer.deadline.seconds for m in members},
        }

    def _score(self) -> float:
        return score(self.method, self.roster, self.validation)

    def _warm_start(self) -> str:
        """Take the heads of a finished run, and name it for the parties to do the same."""
        if self.config.warm_start is None:
            return ""
        folder = RunDir(self.config.warm_start)
        said = folder.manifest()
        tensors, _ = folder.load_tensors(MODEL)
        try:
            self.method.heads.load_state_dict(tensors)
        except RuntimeError as error:
            raise RunError(
                f"warm_start: the heads in {folder.path} do not fit this run ({error}); they must "
                "be of the same method and widths"
            ) from error
        self.note({"event": "warm_start", "run": said["run"]})
        return str(said["run"])

    def _saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.folder.has(MANIFEST):
            raise RunError(f"{self.folder.path}: this run is finished; choose another folder")
        if not self.folder.has(CHECKPOINT):
            return {}, {}
        return self.folder.load_tensors(CHECKPOINT)

    def _take_up(self, saved: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Gather all_parties for a new run; for an old one, as many as are needed to go on."""
        wanted = len(self.config.all_parties)
        if saved:
            said = about["settings"]
            if said != self.roster.terms.settings or about["parties"] != list(self.roster.names):
                raise RunError(
                    f"{self.folder.path}: the configuration changed since this run began; "
                    "put it back, or choose another folder"
                )
            self.roster.counters.update, self.roster.step = about["update"], about["step"]
            self.roster.restore_keep(about["keep"])
            for member in self.roster.members:
                member.holdings = saved.pop(f"holdings/{member.peer.name}")
            wanted = self.config.min_parties
        self.roster.gather(wanted)

    def _holdings(self) -> dict[str, Tensor]:
        found = {}
        for member in self.roster.members:
            assert member.holdings is not None
            found[member.peer.name] = member.holdings
        return found

    def _checkpoint(self) -> None:
        """Have all_parties keep a checkpoint of this step, then keep this side's."""
        step = self.trainer.progress.step
        self.roster.flush(save=step)
        tensors, progress = self.trainer.state()
        tensors |= {f"holdings/{name}": value for name, value in self._holdings().items()}
        about = {
            "run": self.name,
            "step": step,
            "update": self.roster.counters.update,
            "keep": self.roster.keep_state(),
            "progress": progress,
            "settings": self.roster.terms.settings,
            "parties": list(self.roster.names),
            "images": self.images,
        }
        self.folder.save_tensors(CHECKPOINT, tensors, about)
        self._saved_at = step
        self.note({"event": "checkpoint", "step": step})

    def _record(self, record: Record) -> None:
        progress = record.progress
        line = {
            "kind": "epoch",
            "epoch": progress.epoch,
            "step": progress.step,
            "best_epoch": progress.best_epoch + 1,
            **record.values,
            "parties": len(self.roster.present),
            "seconds": round(time.monotonic() - self._started, 3),
        }
        self.folder.append_record(line)
        self.note({"event": "epoch", **line})

    def _finish(self) -> Outcome:
        if self.roster.agreed:
            self.trainer.load_best()
        else:
            self.note(
                {"event": "last_weights_used", "reason": "a party was absent at the best epoch"}
            )
        self.roster.flush(save=self.trainer.progress.step)
        temperatures = calibrate(self.method, self.roster, self.validation)
        rows, rows_are = (self.test, "test") if len(self.test) else (self.validation, "validation")
        predictions = federation_predictions(self.method, self.roster, rows)
        evaluation = evaluate(predictions, rows_are)
        result = Result(
            self.name,
            self.method,
            self.labelled.classes,
            self.prior,
            temperatures,
            self.config.loss,
        )
        result.release(self.folder, self.roster, self.config.release_to, self.note)
        result.keep(self.folder, self.roster.names, self.net, self.config.train.random_state)
        self.folder.write_json(EVALUATION, evaluation.to_dict())
        self.roster.end(FINISHED)
        self.note({"event": FINISHED, "step": self.trainer.progress.step})
        return Outcome(True, self.trainer.progress.step, evaluation)
