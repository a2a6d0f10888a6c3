"""A run of the coordinator on uploads: receive them, then train and evaluate without parties."""

import itertools
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from hashlib import blake2b
from threading import Event
from typing import Any

import pandas as pd

from xvfl.dataset.splits import Splits
from xvfl.federation.build import build_method
from xvfl.federation.calibration import calibrate
from xvfl.federation.predict import mean_score, mode_losses
from xvfl.federation.remote_party import RemoteParty
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.methods.members import member_seeds
from xvfl.model.evaluation import EVALUATION, evaluate, federation_predictions
from xvfl.model.fitting import RunRecorder, choose_device
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.options import Options, resolve_options
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labeled_rows import LabeledRows
from xvfl.service.log import FINISHED, LogFunction
from xvfl.service.outcome import RunOutcome
from xvfl.service.release_delivery import send_release
from xvfl.service.release_store import ReleaseStore
from xvfl.service.secret import load_secret, run_seed
from xvfl.service.trained_heads import TrainedHeads
from xvfl.service.uploads.receive import UploadReceiver, receive_uploads
from xvfl.service.uploads.upload_store import UploadStore
from xvfl.training.loop import Trainer
from xvfl.upload.stored_party import StoredParty, stored_federation
from xvfl.wire.messages import End

DEFAULT_HEADS = 4
"""Heads that are trained on one upload; predictions are averaged."""
RUN = "run_name.json"


class UploadRun:
    """One run in a coordinator's state folder."""

    def __init__(
        self,
        config: CoordinatorConfig,
        folder: RunDir,
        labels: pd.Series,
        alignment: CoordinatorAlignment,
        parties: list[RemoteParty],
        log: LogFunction,
    ) -> None:
        self.config, self.folder, self.log = config, folder, log
        self._parties, self._alignment = parties, alignment
        self._secret = load_secret(folder)
        self.labeled = load_labeled_rows(config, folder, labels, alignment)
        sessions = {name: alignment.matches[name].session.hex() for name in config.all_parties}
        matched = {
            name: int((alignment.matches[name].handles >= 0).sum()) for name in config.all_parties
        }
        # From the clock, so that the numbers increase across restarts.
        self._request_ids = itertools.count(time.time_ns() // 1_000)
        self._receivers = {
            party.name: UploadReceiver(
                party, folder, sessions[party.name], matched[party.name], self._request_ids, log
            )
            for party in parties
        }
        self._trainer: Trainer | None = None
        self._outcome: RunOutcome | None = None

    def run(self, stop: Event) -> RunOutcome:
        """Receive the uploads and train until the run is finished or `stop` is set."""
        stores = receive_uploads(self._receivers, self.labeled.held_out_handles(), stop)
        if len(stores) < len(self._receivers):
            return RunOutcome(0)
        return self._train(stores, stop)

    def _train(self, stores: Mapping[str, UploadStore], stop: Event) -> RunOutcome:
        names, labeled = self.config.all_parties, self.labeled
        device = choose_device(self.config.train.device)
        image = any(stores[name].manifest.image for name in names)
        options = self._options(stores, image)
        run = self._run_name()
        seeds = [run_seed(self._secret, run)]
        method = build_method(
            len(names),
            labeled.task.n_outputs,
            image,
            options.net,
            options.loss,
            seeds,
            None,
            options.privacy,
            labeled.task,
            [stores[name].manifest.width for name in names],
        )
        method.heads.to(device)
        heads, width = options.net.heads, options.net.embedding_dim
        shares = [options.loss.unmasked_copies or 0.0] * heads
        federation = stored_federation(
            [
                StoredParty(name, stores[name].views(), member_seeds(seeds, heads), shares, width)
                for name in names
            ]
        )
        levels = {name: stores[name].row_status() for name in names}
        labeled = labeled.without({name: stores[name].withdrawn for name in names})
        rows, (training, validation, test) = labeled.rows(levels, options.train.class_weight)
        rows = rows.to(device)
        held_out = rows.take(validation.to(device))
        trainer = self._trainer = Trainer(
            federation, method, rows.take(training.to(device)), options.train
        )
        recorder = RunRecorder(self.folder, trainer, self._fingerprint(options, stores))
        recorder.resume()
        self.log({"event": "run_started", "run": run, "rows": len(rows)})
        losses: dict[str, float] = {}

        def score() -> float:
            losses.update(mode_losses(method, federation, held_out, labeled.task))
            return mean_score(losses)

        for record in trainer.run(score):
            if record.kind == "epoch":
                recorder.add(record, losses)
            if stop.is_set() or any(each.changed for each in stores.values()):
                break
        if any(each.changed for each in stores.values()):
            # The heads have learned from rows that may not be used any more: start again.
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
            self.log({"event": "upload_changed", "step": trainer.progress.step})
            return self.run(stop)
        recorder.save_checkpoint()
        if stop.is_set():
            return RunOutcome(trainer.progress.step)
        trainer.load_best()
        temperatures = calibrate(method, federation, held_out, labeled.task)
        split = ("test", rows.take(test.to(device))) if len(test) else ("validation", held_out)
        predictions = federation_predictions(method, federation, split[1], None, labeled.task)
        evaluation = evaluate(predictions, split[0], labeled.task)
        self.folder.write_json(EVALUATION, evaluation.to_dict())
        trained = TrainedHeads(
            run,
            method,
            labeled.task,
            labeled.prior(training),
            temperatures,
            options.loss,
            {name: _about(stores[name]) for name in names},
            options.net,
        )
        about = {
            "step": trainer.progress.step,
            "update": 0,
            "participation": {},
            "absent": {},
            "uninformed": [],
            "differential_privacy": None,
        }
        seed = self.config.train.random_state
        trained.save(self.folder, names, options.net, image, seed, about)
        self._release(trained)
        self._end()
        self.log({"event": FINISHED, "step": trainer.progress.step})
        self._outcome = RunOutcome(trainer.progress.step, evaluation)
        return self._outcome

    def _options(self, stores: Mapping[str, UploadStore], image: bool) -> Options:
        """Resolve the options of the heads; the parties have chosen their encoders."""
        config = self.config
        width = max(store.manifest.width for store in stores.values())
        heads = config.net.heads or DEFAULT_HEADS
        net = replace(config.net, embedding_dim=width, members=1, heads=heads)
        return resolve_options(
            net,
            replace(config.loss, cross_completion=False),
            config.train,
            config.privacy,
            federated=True,
            image=image,
            parties=len(stores),
            rows=len(self.labeled.parts[0]),
        )

    def _run_name(self) -> str:
        if not self.folder.has(RUN):
            self.folder.write_json(RUN, {"run": secrets.token_hex(6)})
        return str(self.folder.read_json(RUN)["run"])

    def _fingerprint(self, options: Options, stores: Mapping[str, UploadStore]) -> str:
        """Hash what determines the weights."""
        train = asdict(options.train)
        train.pop("device")
        identity = {
            "net": asdict(options.net),
            "loss": asdict(options.loss),
            "train": train,
            "uploads": {
                name: [store.manifest.digest, len(store.withdrawn)]
                for name, store in stores.items()
            },
            "y": self.labeled.y.tolist(),
        }
        return blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _release(self, heads: TrainedHeads) -> None:
        """Sign the heads of the parties that may predict alone; send them to those online."""
        store = ReleaseStore(self.folder, self.config.signing_key)
        heads.release(store, self.config.all_parties, self.config.release_to)
        for party in self._parties:
            if party.name in self.config.release_to and party.transport.hello() is not None:
                send_release(store, party, next(self._request_ids), self.log)

    def _end(self) -> None:
        """Tell the parties that are online that the run is finished."""
        for party in self._parties:
            if party.transport.hello() is not None:
                party.transport.request(End(next(self._request_ids), FINISHED))

    def status(self) -> dict[str, Any]:
        """Return the status of the run."""
        trainer = self._trainer
        return {
            "healthy": True,
            "problem": "",
            "side": "coordinator",
            "finished": self._outcome is not None,
            "step": trainer.progress.step if trainer else 0,
            "encoder_progress": {n: round(r.progress, 3) for n, r in self._receivers.items()},
        }


def load_labeled_rows(
    config: CoordinatorConfig, folder: RunDir, labels: pd.Series, alignment: CoordinatorAlignment
) -> LabeledRows:
    """Split the labeled rows without looking at labels, always in the same way for a folder."""
    seed = run_seed(load_secret(folder), f"split {config.train.random_state}")
    splits = Splits(config.test_fraction, config.train.validation_fraction, seed)
    return LabeledRows.load(
        labels, alignment, config.all_parties, splits, config.labels.task, stratified=False
    )


def _about(store: UploadStore) -> dict[str, Any]:
    manifest = store.manifest
    return {
        "version": manifest.version,
        "digest": manifest.digest,
        "session": manifest.session,
        "rows": manifest.rows,
        "withdrawn": len(store.withdrawn),
        "width": manifest.width,
        "created": manifest.created,
        "terms": asdict(manifest.terms),
    }
