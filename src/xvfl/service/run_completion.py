"""The end of a run: best weights, evaluation, release, and the outcome for every party."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from xvfl.errors import RunError
from xvfl.federation.calibration import Temperatures, calibrate
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.privacy_accounting import PrivacyStatement
from xvfl.methods import Method
from xvfl.model.evaluation import EVALUATION, Evaluation, evaluate, federation_predictions
from xvfl.model.run_dir import MANIFEST, MODEL, RECORDS, RunDir
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Task
from xvfl.service.config import CoordinatorConfig
from xvfl.service.log import FINISHED, LogFunction
from xvfl.service.outcome import (
    RunOutcome,
    absent_parties,
    deliver_outcome,
    participation,
    uninformed_parties,
)
from xvfl.service.release_delivery import deliver_to_members
from xvfl.service.release_store import ReleaseStore
from xvfl.service.run_records import EpochRecords
from xvfl.service.trained_heads import TrainedHeads
from xvfl.system.write_guard import WriteGuard
from xvfl.training.loop import Trainer


@dataclass(frozen=True)
class RunCompletion:
    """What the end of a run needs."""

    config: CoordinatorConfig
    """With resolved options."""
    folder: RunDir
    federation: ElasticFederation
    method: Method
    image: bool
    """Whether a party holds images."""
    task: Task
    prior: Sequence[float]
    """Shares of the classes in the training rows, or the mean number."""
    validation: Rows
    test: Rows
    privacy: PrivacyStatement | None
    writes: WriteGuard
    log: LogFunction

    def finish(self, trainer: Trainer, records: EpochRecords) -> RunOutcome:
        """Load the best weights, calibrate, evaluate, release and save the heads."""
        step, federation = trainer.progress.step, self.federation
        if federation.best_weights_agree:
            trainer.load_best()
        else:
            reason = "a party was absent at the best epoch"
            self.log({"event": "best_weights_unavailable", "reason": reason})
        federation.flush(save=step)
        heads = self._heads(calibrate(self.method, federation, self.validation, self.task))
        split, rows = ("test", self.test) if len(self.test) else ("validation", self.validation)
        predictions = federation_predictions(
            self.method, federation, rows, lambda: federation.contributors, self.task
        )
        evaluation = evaluate(predictions, split, self.task)
        absent = absent_parties(federation)
        release_to, store = self.config.release_to, self._store()
        heads.release(store, federation.names, release_to)
        deliver_to_members(store, federation, release_to, self.log)
        seed, manifest = self.config.train.random_state, self._manifest(step, absent)

        def save_heads() -> None:
            heads.save(self.folder, federation.names, self.config.net, self.image, seed, manifest)

        for file, write in (
            (RECORDS, records.write),
            (EVALUATION, lambda: self.folder.write_json(EVALUATION, evaluation.to_dict())),
            (MODEL, save_heads),
        ):
            self.writes.insist(file, write, self.config.timeouts.join)
        federation.end(FINISHED)
        uninformed = uninformed_parties(federation)
        self.log({"event": FINISHED, **manifest, "uninformed": uninformed})
        return RunOutcome(step, evaluation, absent, uninformed)

    def deliver(self, outcome: RunOutcome, stop: Event) -> RunOutcome:
        """Inform parties that come back, for a while; write who was not informed."""
        manifest = self.folder.manifest()
        store = self._store()

        def release(names: list[str]) -> None:
            deliver_to_members(store, self.federation, names, self.log)

        uninformed = deliver_outcome(
            self.federation,
            outcome.uninformed,
            release,
            self.config.timeouts.outcome,
            stop,
            self.log,
        )
        changed = {**manifest, "uninformed": list(uninformed)}
        self.writes.attempt(MANIFEST, lambda: self.folder.write_json(MANIFEST, changed))
        return replace(outcome, uninformed=uninformed, privacy=str(self.privacy or ""))

    def _manifest(self, step: int, absent: dict[str, str]) -> dict[str, Any]:
        """Describe who took part, for the manifest; before the end, nobody knows the outcome."""
        return {
            "step": step,
            "update": self.federation.counters.update,
            "participation": participation(self.federation),
            "absent": absent,
            "uninformed": list(self.federation.names),
            "differential_privacy": self.privacy and self.privacy.to_dict(),
        }

    def _store(self) -> ReleaseStore:
        return ReleaseStore(self.folder, self.config.signing_key)

    def _heads(self, temperatures: Temperatures) -> TrainedHeads:
        run, loss = self.federation.terms.run, self.config.loss
        return TrainedHeads(run, self.method, self.task, self.prior, temperatures, loss)


def load_outcome(folder: RunDir) -> RunOutcome | None:
    """Load the outcome of a finished run that some parties have not received; None without one."""
    if not folder.has(MANIFEST):
        return None
    manifest = folder.manifest()
    if not manifest.get("uninformed"):
        raise RunError(f"{folder.path}: this run is finished; choose another `state_dir`")
    evaluation = Evaluation.from_dict(folder.read_json(EVALUATION))
    uninformed = tuple(manifest["uninformed"])
    return RunOutcome(manifest["step"], evaluation, manifest["absent"], uninformed)
