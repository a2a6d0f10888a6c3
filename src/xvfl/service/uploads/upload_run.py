"""A run of the coordinator on uploads: receive them, then train and evaluate without parties."""

import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from threading import Event
from typing import Any

from xvfl.dataset.splits import RowCounts, Splits
from xvfl.errors import ConfigError, RunError
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.upload.heads import build_heads, check_head_options
from xvfl.methods import method_spec
from xvfl.model.dashboard.curves import curves
from xvfl.model.dashboard.state_folder import TRAINING, WAITING, describe_coordinator
from xvfl.model.evaluation import Evaluation
from xvfl.model.fitting import choose_device
from xvfl.model.missing_map import MISSING, rows_map
from xvfl.model.registry import RETIRED, TRAINING_LOCK
from xvfl.model.run_dir import CHECKPOINT, EVALUATION, MANIFEST, MODEL, RunDir
from xvfl.model.run_recorder import RunRecorder
from xvfl.model.run_summary import SUMMARY, record_run
from xvfl.options import Options, resolve_options
from xvfl.relay import LentTransport
from xvfl.service.config import CoordinatorConfig
from xvfl.service.head_store import HeadStore
from xvfl.service.labeled_rows import LabeledRows, MatchedLabels
from xvfl.service.release_delivery import deliver_releases, end_party
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
from xvfl.service.uploads.receive import UploadReceiver, receive_uploads
from xvfl.service.uploads.upload_checks import find_problems
from xvfl.service.uploads.upload_store import UploadStore
from xvfl.system.event_log import FINISHED, LogFunction
from xvfl.system.locks import file_lock
from xvfl.system.signals import stopped_event
from xvfl.training.loop import Trainer
from xvfl.training.predict import mean_score, mode_losses
from xvfl.wire.in_process import OfflineTransport

RUN, SPLIT, VERSIONS = "run_name.json", "split.json", "upload_versions.json"
ABOUT = ("version", "part", "session", "rows", "width", "created", "epsilon", "delta", "terms")
"""What the manifest of a head repeats of the manifest of an upload."""
MAX_RESTARTS = 3
"""Trainings of a head that a party can make begin again by withdrawals."""
UNSTEADY = (
    "it has withdrawn rows or uploads in too many trainings of this head, which is trained without "
    "it; withdraw rows together, with one list, and train again with --retrain"
)


class UploadRun:
    """The training of one head (of `net.heads` nets) in a coordinator's state folder.

    Parameters
    ----------
    config
        The coordinator's configuration.
    matched
        The labels and the matched rows; some rows may have no label.
    parties
        The parties; those whose upload is stored need not be connected.
    log
        Receives log events.
    retrain
        Train another head, although one is finished.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        matched: MatchedLabels,
        parties: Sequence[RemoteParty],
        log: LogFunction,
        retrain: bool = False,
    ) -> None:
        folder = RunDir(config.state_dir)
        self._config, self._folder, self._log, self._matched = config, folder, log, matched
        self._parties = {party.name: party for party in parties}
        self._secret, self._heads = load_secret(folder), HeadStore(folder)
        self._head = self._heads.in_training(retrain)
        self._releases = ReleaseStore(folder, config.signing_key)
        if self._head is None and not self._pending():
            raise RunError(
                f"{folder.path}: the head is trained already; predict with --serve, train another "
                "head on the stored uploads with --retrain, or choose another `state_dir`"
            )
        matches = matched.alignment.matches
        self._receivers = {
            name: UploadReceiver(party, matches[name], config, log)
            for name, party in self._parties.items()
        }
        self._state: dict[str, Any] = {}
        """What the status reports of the training."""
        self._details: dict[str, Any] = {}
        self._problems: dict[str, str] = {}
        """Parties whose upload is suspicious, and why."""
        self._without: dict[str, str] = {}
        """Parties without which the head is trained, before their upload is examined, and why."""
        self._changes = Counter[str]()
        """Trainings that were discarded because of each party."""
        self._outcome: RunOutcome | None = None

    def run(self, stop: Event) -> RunOutcome:
        """Receive the uploads and train until the head is finished or `stop` is set."""
        if self._head is None:
            head = self._heads.current
            evaluation, manifest = Evaluation.from_dict(head.read_json(EVALUATION)), head.manifest()
            problems = manifest.get("suspicious", {})
            return self._deliver(RunOutcome(manifest["step"], evaluation, (), problems), stop)
        with file_lock(
            self._head / TRAINING_LOCK, "another process trains this head; wait for its end"
        ):
            if self._head.has(RETIRED):
                raise RunError(
                    f"{self._head.path}: this head was retired; start the training again"
                )
            outcome: RunOutcome | None = None
            while outcome is None:
                outcome = self._train_once(self._head, stop)
        return outcome if outcome.evaluation is None else self._deliver(outcome, stop)

    def _train_once(self, head: RunDir, stop: Event) -> RunOutcome | None:
        """Receive the uploads and train; None if rows may not be used any more, to begin again."""
        # A training that is resumed needs the parties and the versions that it began with.
        began = head.read_json(VERSIONS) if head.has(CHECKPOINT) else {}
        versions = {name: each["version"] for name, each in began.items()}
        if began:
            known = head.read_json(SUMMARY).get("suspicious", {})
            self._without |= {name: each for name, each in known.items() if name not in began}
        labeled = self._load_rows([name for name in self._receivers if name not in self._without])
        receivers = {name: self._receivers[name] for name in labeled.names}
        leave_out = self._config.on_anomaly == "leave_out"
        rejected = self._without if leave_out else None
        held_out = labeled.held_out_handles()
        stores = receive_uploads(receivers, held_out, stop, versions, rejected)
        if not {*receivers} <= {*stores, *self._without}:
            return RunOutcome(0)
        if len(stores) < len(receivers):
            labeled = self._load_rows(tuple(stores))
        used = {name: _about(store) for name, store in stores.items()}
        if began and began != used:
            # A part was stored meanwhile; the one that the training began with is deleted.
            (head / CHECKPOINT).unlink()
            self._log({"event": "upload_changed", "step": 0})
        head.write_json(VERSIONS, used)
        found = find_problems(stores, labeled, self._folder)
        self._problems = {**self._without, **found}
        for name, problem in self._problems.items():
            self._log({"event": "upload_suspicious", "party": name, "reason": problem})
        if found and leave_out:
            labeled = self._load_rows([name for name in stores if name not in found])
        return self._train(head, {name: stores[name] for name in labeled.names}, labeled, stop)

    def _load_rows(self, names: Sequence[str]) -> LabeledRows:
        if not names:
            raise RunError(
                "on_anomaly: no upload is left, because all are suspicious or rejected; the log "
                "has the reasons; to train with suspicious ones, set on_anomaly = 'warn'"
            )
        return load_labeled_rows(self._config, self._matched, names)

    def _train(
        self,
        head: RunDir,
        stores: Mapping[str, UploadStore],
        labeled: LabeledRows,
        stop: Event,
    ) -> RunOutcome | None:
        config, names, task = self._config, tuple(stores), labeled.task
        device = choose_device(config.train.device)
        image = any(store.manifest.image for store in stores.values())
        levels = {name: store.row_status() for name, store in stores.items()}
        labeled = labeled.without({name: store.withdrawn for name, store in stores.items()})
        rows, (training, validation, test) = labeled.rows(levels, config.train.class_weight)
        n_labeled = int(labeled.known[training].sum())
        if not method_spec(config.loss.method).uses_unlabeled:
            training = training[labeled.known[training]]
        check_head_options(config.net, config.loss, config.privacy)
        width = max(store.manifest.width for store in stores.values())
        options = resolve_options(
            replace(config.net, embedding_dim=width),
            config.loss,
            config.train,
            config.privacy,
            federated=True,
            image=image,
            parties=len(names),
            rows=n_labeled,
        )
        run = _run_name(head)
        uploads = {name: store.views() for name, store in stores.items()}
        seeds = [run_seed(self._secret, run)]
        method, federation = build_heads(uploads, options, seeds, task, image)
        method.heads.to(device)
        missing = rows_map(rows, list(names))
        head.write_json(MISSING, missing)
        rows = rows.to(device)
        held_out = rows.take(validation.to(device))
        trainer = Trainer(federation, method, rows.take(training.to(device)), options.train)
        recorder = RunRecorder(head, trainer, _fingerprint(options, stores, labeled))
        recorder.resume()
        started = "resumed" if trainer.progress.step else "run_started"
        self._log({"event": started, "run": run, "head": head.path.name, "rows": len(rows)})
        counts = RowCounts(n_labeled, len(training) - n_labeled, len(validation), len(test))
        sizes = {name: store.manifest.rows for name, store in stores.items()}
        about = describe_run(config, run, options.train.epochs, task, counts, sizes)
        left_out = [name for name in config.all_parties if name not in names]
        about |= {"suspicious": self._problems, "left_out": left_out}
        self._details = {**about, "missing": missing, "curves": curves(head.records())}
        losses: dict[str, float] = {}

        def score() -> float:
            losses.update(mode_losses(method, federation, held_out, task))
            return mean_score(losses)

        with record_run(head, about) as summary:
            for record in trainer.run(score):
                self._state = progress_status(about, record.progress)
                if record.kind == "epoch":
                    self._log({"event": "epoch", **recorder.add(record, losses)})
                    self._details["curves"] = curves(head.records())
                if stop.is_set() or _any_changed(stores):
                    break
            if _any_changed(stores):
                return self._discard(head, stores, trainer.progress.step, stop)
            recorder.save_checkpoint()
            if stop.is_set():
                summary["state"] = "stopped"
                self._log({**stopped_event(), "step": trainer.progress.step})
                return RunOutcome(trainer.progress.step)
            trainer.load_best()
            test_rows = rows.take(test.to(device))
            temperatures, evaluation = evaluate_heads(method, federation, held_out, test_rows, task)
            head.write_json(EVALUATION, evaluation.to_dict())
            encoders = {name: _about(store) for name, store in stores.items()}
            prior = labeled.prior(training)
            trained = TrainedHeads(
                run, method, task, prior, temperatures, options.loss, options.net, names, encoders
            )
            outcome = {
                "step": trainer.progress.step,
                "rows": asdict(counts),
                "suspicious": self._problems,
                "left_out": left_out,
            }
            trained.save(head, image, config.train.random_state, outcome)
            # A withdrawal before this lists no head; one after it lists this one.
            if _any_changed(stores):
                return self._discard(head, stores, trainer.progress.step, stop)
        self._heads.use(head)
        trained.release(self._releases, config.release_to)
        self._log({"event": FINISHED, "head": head.path.name, "run": run, **outcome})
        return RunOutcome(trainer.progress.step, evaluation, (), self._problems)

    def _discard(
        self, head: RunDir, stores: Mapping[str, UploadStore], step: int, stop: Event
    ) -> RunOutcome | None:
        """Discard a training: it has learned from rows that may not be used any more."""
        self._changes.update(name for name, store in stores.items() if store.changed)
        unsteady = (name for name, count in self._changes.items() if count > MAX_RESTARTS)
        self._without |= dict.fromkeys(unsteady, UNSTEADY)
        for name in (MANIFEST, MODEL, CHECKPOINT, EVALUATION):
            (head / name).unlink(missing_ok=True)
        reason = "rows of an upload may not be used any more; the training starts again"
        self._log({"event": "upload_changed", "reason": reason, "step": step})
        return RunOutcome(step) if stop.is_set() else None

    def _pending(self) -> list[str]:
        return self._releases.pending(self._config.release_to)

    def _deliver(self, outcome: RunOutcome, stop: Event) -> RunOutcome:
        """Send releases and the end of the run; wait for parties that expect a release."""
        waiting = {name: self._parties[name] for name in self._pending()}
        elsewhere = (OfflineTransport, LentTransport)
        for name, party in list(waiting.items()):
            if isinstance(party.transport, elsewhere) and party.transport.hello() is None:
                # The process that listens delivers it when the party is back.
                del waiting[name]
        if any(party.transport.hello() is None for party in waiting.values()):
            seconds = self._config.timeouts.outcome
            event = {"event": "waiting_for_absent", "parties": list(waiting), "seconds": seconds}
            self._log(event)
        deadline = time.monotonic() + self._config.timeouts.outcome
        deliver_releases(waiting, self._releases, deadline, stop, self._log)
        for name, party in self._parties.items():
            if name not in self._config.release_to and party.transport.hello() is not None:
                end_party(party)
        self._outcome = replace(outcome, uninformed=tuple(self._pending()))
        return self._outcome

    def status(self) -> dict[str, Any]:
        """Return the status of the run; numbers become metrics."""
        needed = (each for name, each in self._receivers.items() if name not in self._without)
        problem = next((each.problem for each in needed if each.problem), "")
        finished = self._outcome is not None
        stored = describe_coordinator(self._folder.path, self._parties)
        trained = TRAINING if self._state else WAITING
        return {
            "healthy": not problem or finished,
            "problem": problem,
            "side": "coordinator",
            **stored,
            "state": "finished" if finished else trained,
            "finished": finished,
            **self._state,
            "party_present": connected_parties(self._parties.values()),
            "party_encoder_progress": {n: r.progress for n, r in self._receivers.items()},
            "party_upload_suspicious": self._problems or dict(self._without),
            "details": {**stored["details"], **self._details},
        }


def load_labeled_rows(
    config: CoordinatorConfig, matched: MatchedLabels, names: Sequence[str]
) -> LabeledRows:
    """Load labels and split rows; reject other fractions than before.

    The parties' encoders have learned from the rows that are not held out.
    """
    folder = RunDir(config.state_dir)
    fractions = {"test": config.test_fraction, "validation": config.train.validation_fraction}
    if not folder.has(SPLIT):
        folder.write_json(SPLIT, fractions)
    elif (fixed := folder.read_json(SPLIT)) != fractions:
        raise ConfigError(
            f"test_fraction, validation_fraction: expected {fixed['test']} and "
            f"{fixed['validation']} as before, got {fractions['test']} and "
            f"{fractions['validation']}: the parties' encoders have learned from the rows that "
            "were not held out; restore them, or choose another `state_dir`"
        )
    splits = Splits(**fractions, seed=run_seed(load_secret(folder), "split"))
    return LabeledRows.load(matched, names, splits, config.labels.task, by_id=True)


def _any_changed(stores: Mapping[str, UploadStore]) -> bool:
    return any(store.changed for store in stores.values())


def _run_name(head: RunDir) -> str:
    if not head.has(RUN):
        head.write_json(RUN, {"run": secrets.token_hex(6)})
    return str(head.read_json(RUN)["run"])


def _fingerprint(options: Options, stores: Mapping[str, UploadStore], labeled: LabeledRows) -> str:
    """Hash what determines the weights."""
    identity = {
        "net": asdict(options.net),
        "loss": asdict(options.loss),
        "train": {**asdict(options.train), "device": None},
        "uploads": {
            name: [store.manifest.digest, len(store.withdrawn)] for name, store in stores.items()
        },
        "y": labeled.y.nan_to_num(nan=math.pi).tolist(),
    }
    return blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


def _about(store: UploadStore) -> dict[str, Any]:
    manifest = asdict(store.manifest)
    about = {name: manifest[name] for name in ABOUT}
    return {**about, "digest": store.manifest.digest, "withdrawn": len(store.withdrawn)}
