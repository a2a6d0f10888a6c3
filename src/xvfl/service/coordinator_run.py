"""An interactive run of the coordinator: train with all parties, save, evaluate, release.

All parties must be online. A fault ends the run; started again, all sides continue from the last
common checkpoint. Random numbers are a function of (seed, step), so the weights are those of a run
without faults.
"""

import json
import secrets
import time
from dataclasses import asdict, replace
from threading import Event
from typing import Any

from torch import Tensor

from xvfl.dataset.splits import RowCounts, Splits
from xvfl.errors import ConfigError, PartyError, RunError
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.methods import Method, method_spec, protect_labels
from xvfl.methods.build import build_method
from xvfl.model.dashboard.curves import curves
from xvfl.model.missing_map import MISSING, rows_map
from xvfl.model.run_dir import CHECKPOINT, EVALUATION, MANIFEST, RunDir
from xvfl.model.run_recorder import epoch_line
from xvfl.model.run_summary import record_run
from xvfl.options import resolve_options
from xvfl.service.align import wait_for_party
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labeled_rows import LabeledRows, MatchedLabels
from xvfl.service.release_delivery import end_party, send_release
from xvfl.service.release_store import ReleaseStore
from xvfl.service.run_description import (
    RunOutcome,
    connected_parties,
    describe_run,
    evaluate_heads,
    progress_status,
)
from xvfl.service.secret import load_secret, run_seed
from xvfl.service.trained_heads import TrainedHeads
from xvfl.system.event_log import FINISHED, LogFunction
from xvfl.system.signals import stopped_event
from xvfl.training.loop import Record, Trainer
from xvfl.training.predict import BATCH, mean_score, mode_losses

NUMBER_BYTES = 4


class CoordinatorRun:
    """One run in a coordinator's state folder."""

    def __init__(
        self,
        config: CoordinatorConfig,
        matched: MatchedLabels,
        parties: list[RemoteParty],
        log: LogFunction,
    ) -> None:
        """Wait for the parties and begin, from the last checkpoint if there is one."""
        folder = RunDir(config.state_dir)
        if folder.has(MANIFEST):
            raise RunError(f"{folder.path}: this run is finished; choose another `state_dir`")
        self.folder, self.log = folder, log
        train, names = config.train, config.all_parties
        secret = load_secret(folder)
        # The split depends on labels, and parties learn it: nobody else may know its seed.
        split_seed = run_seed(secret, f"split {train.random_state}")
        splits = Splits(config.test_fraction, train.validation_fraction, split_seed)
        labeled = LabeledRows.load(matched, names, splits, config.labels.task)
        saved: dict[str, Tensor] = {}
        about: dict[str, Any] = {}
        if folder.has(CHECKPOINT):
            saved, about = folder.load_tensors(CHECKPOINT)
        run = str(about.get("run") or secrets.token_hex(6))
        join = config.timeouts.join
        hellos = [wait_for_party(each.name, each.transport, join) for each in parties]
        self._image = any(hello.image for hello in hellos)
        options = resolve_options(
            config.net,
            config.loss,
            train,
            config.privacy,
            federated=True,
            image=self._image,
            parties=len(names),
            rows=len(labeled.parts[0]),
        )
        net, loss, train, privacy = options.net, options.loss, options.train, options.privacy
        if not privacy.sends_gradients:
            raise ConfigError(
                "privacy.label_protection: interactive training sends gradients; expected 'off' or "
                f"'noise', got {privacy.label_protection!r}"
            )
        self.config = config = replace(config, net=net, loss=loss, train=train, privacy=privacy)
        seeds, self.task = [run_seed(secret, run)], labeled.task
        self.method: Method = build_method(
            len(names), self.task, self._image, net, loss, seeds, privacy
        )
        self.terms = make_terms(config, labeled, run)
        if about and (about["settings"], about["parties"]) != (self.terms.settings, list(names)):
            raise RunError(
                f"{folder.path}: the configuration changed since this run started; restore it, or "
                "choose another `state_dir`"
            )
        width = net.embedding_dim * method_spec(loss.method).branches
        self.federation = SplitFederation(parties, width, members=net.members)
        self._levels = {name: saved.pop(f"row_status/{name}") for name in names if saved}
        self._begin(about)
        rows, (training, validation, test) = labeled.rows(self._levels, train.class_weight)
        self.validation, self._test = rows.take(validation), rows.take(test)
        self._prior, self._missing = labeled.prior(training), rows_map(rows, list(names))
        method = protect_labels(self.method, privacy, self.task.n_outputs, seeds)
        self.trainer = Trainer(self.federation, method, rows.take(training), train)
        self._saved_step = 0
        if saved:
            self.trainer.restore(saved, about["progress"])
            progress = self.trainer.progress
            self._saved_step = progress.step
            folder.filter_records(lambda each: each["epoch"] <= progress.epoch)
            log({"event": "resumed", "step": progress.step, "run": run})
        else:
            log({"event": "run_started", "run": run, "rows": len(rows)})
        held = dict(zip(names, (rows.handles >= 0).sum(0).tolist(), strict=True))
        counts = RowCounts(len(training), 0, len(validation), len(test))
        self._about = describe_run(config, run, train.epochs, self.task, counts, held)
        self._started = time.monotonic()
        self._finished = False
        self._losses: dict[str, float] = {}
        """Validation loss of the last epoch by mode."""

    def run(self, stop: Event) -> RunOutcome:
        """Train until the run is finished or `stop` is set."""
        self.folder.write_json(MISSING, self._missing)
        with record_run(self.folder, self._about) as summary:
            try:
                if self._train(stop):
                    return self._finish()
            except PartyError as error:
                raise RunError(
                    f"{error}; when all parties are back, start this command again: it continues "
                    f"from step {self._saved_step}"
                ) from error
            self.log({**stopped_event(), "step": self.trainer.progress.step})
            summary["state"] = "stopped"
            return RunOutcome(self.trainer.progress.step)

    def _train(self, stop: Event) -> bool:
        """Train until the last epoch or `stop`; return whether training is finished."""
        trainer = self.trainer
        if not trainer.progress.step:
            self._save()
        for record in trainer.run(self._score):
            if record.kind == "epoch":
                self._record(record)
            steps = trainer.progress.step - self._saved_step
            if stop.is_set() or steps >= self.config.checkpoint_interval:
                self._save()
            if stop.is_set():
                return False
        return True

    def _score(self) -> float:
        self._losses = mode_losses(self.method, self.federation, self.validation, self.task)
        return mean_score(self._losses)

    def _record(self, record: Record) -> None:
        """Write the record of an epoch with its validation loss by mode."""
        line = epoch_line(record, self._losses, self._started)
        self.folder.append_record(line)
        self.log({"event": "epoch", **line})

    def _save(self, number: int | None = None) -> None:
        """Save a checkpoint at all parties and here, or nowhere; by default of this step."""
        step = self.trainer.progress.step
        number = step if number is None else number
        tensors, progress = self.trainer.state()
        about = {
            "run": self.terms.run,
            "step": number,
            "update": self.federation.counters.update,
            "progress": progress,
            "settings": self.terms.settings,
            "parties": list(self.federation.names),
        }
        status = {f"row_status/{name}": value for name, value in self._levels.items()}
        with self.folder.transaction():
            self.folder.save_tensors(CHECKPOINT, {**tensors, **status}, about)
            self.federation.flush(save=number)
        self._saved_step = step
        self.log({"event": "checkpoint", "step": step})

    def _begin(self, about: dict[str, Any]) -> None:
        """Wait for all parties, and let them begin from a checkpoint."""
        at = int(about.get("step", 0)), int(about.get("update", 0))
        levels = begin_run(self.federation, self.terms, *at, self.log)
        for name, known in self._levels.items():
            if not levels[name].equal(known):
                raise RunError(
                    f"party {name!r}: its rows changed since the run started; restore them, or "
                    "start another run"
                )
        self._levels = levels

    def _finish(self) -> RunOutcome:
        """Load the best weights, calibrate, evaluate, release and save the heads."""
        config, federation, task = self.config, self.federation, self.task
        step = self.trainer.progress.step
        self.trainer.load_best()
        # Another number than that of the last step, whose weights are others.
        self._save(step + 1)
        temperatures, evaluation = evaluate_heads(
            self.method, federation, self.validation, self._test, task
        )
        run, prior, names = self.terms.run, self._prior, federation.names
        heads = TrainedHeads(
            run, self.method, task, prior, temperatures, config.loss, config.net, names
        )
        store = ReleaseStore(self.folder, config.signing_key)
        heads.release(store, config.release_to)
        for party in federation.parties:
            if party.name in store.pending(config.release_to):
                send_release(store, party, self.log)
        self.folder.write_json(EVALUATION, evaluation.to_dict())
        heads.save(self.folder, self._image, config.train.random_state, {"step": step})
        for party in federation.parties:
            end_party(party)
        uninformed = tuple(store.pending(config.release_to))
        self._finished = True
        self.log({"event": FINISHED, "step": step, "uninformed": uninformed})
        return RunOutcome(step, evaluation, uninformed)

    def status(self) -> dict[str, Any]:
        """Return the status of the run; numbers become metrics."""
        parties = self.federation.parties
        present = connected_parties(parties)
        lost = [name for name, connected in present.items() if not (connected or self._finished)]
        traffic = {each.name: each.transport.traffic() for each in parties}
        latency = {each.name: each.latency for each in parties if each.latency is not None}
        return {
            "healthy": not lost,
            "problem": f"not connected: {', '.join(lost)}" if lost else "",
            "side": "coordinator",
            "state": "finished" if self._finished else "training",
            **progress_status(self._about, self.trainer.progress),
            "checkpoint_step": self._saved_step,
            "seconds": round(time.monotonic() - self._started, 1),
            "party_present": present,
            "party_bytes_sent": {name: sent for name, (sent, _) in traffic.items()},
            "party_bytes_received": {name: received for name, (_, received) in traffic.items()},
            "party_latency_seconds": latency,
            "details": {
                **self._about,
                "curves": curves(self.folder.records()),
                "missing": self._missing,
            },
        }


def make_terms(config: CoordinatorConfig, labeled: LabeledRows, run: str) -> RunTerms:
    """Collect what every party receives, and what its replies must match.

    The options of `config` are resolved.
    """
    check_message_size(config, len(labeled.parts[0]))
    settings = RunSettings(
        config.loss.method,
        config.net,
        # The coordinator's seed is not sent: it initializes the heads.
        replace(config.train, random_state=0),
        config.loss.reconstruction_weight,
        config.loss.unmasked_copies,
        config.loss.full_threshold,
        run,
        config.privacy,
    )
    text, training, rows = (
        json.dumps(asdict(settings)),
        labeled.training_handles(),
        labeled.matched_rows(),
    )
    return RunTerms(run, text, training, rows, config.timeouts.join)


def check_message_size(config: CoordinatorConfig, training_rows: int) -> None:
    """Reject resolved options with which the embeddings of a batch do not fit into a message."""
    net, loss, branches = config.net, config.loss, method_spec(config.loss.method).branches
    views = 1 + 2 * loss.n_masks if loss.self_completion_weight else 1
    rows = max(config.train.batch_size_for(training_rows) * views, BATCH * min(views, 2))
    size = rows * net.members * net.embedding_dim * branches * NUMBER_BYTES
    if size > config.max_message_bytes:
        raise ConfigError(
            f"max_message_bytes: expected {size} or more for the embeddings of a batch, got "
            f"{config.max_message_bytes}; lower net.members, net.embedding_dim or train.batch_size"
        )
