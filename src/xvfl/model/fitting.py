"""Train a model on a dataset: device, checkpoints, interruption, calibration."""

import json
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from xvfl.config import (
    COORDINATOR,
    NO_PROTECTION,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TrainConfig,
)
from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.overlap import Overlap
from xvfl.dataset.splits import RowCounts
from xvfl.errors import ConfigError, RunError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.upload.encoder_net import encoder_config, encoder_net_config
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.federation.upload.heads import build_heads
from xvfl.federation.upload.stored_party import StoredParty
from xvfl.methods import Mode, method_spec, protect_labels
from xvfl.model.build_report import build_report
from xvfl.model.cell_filler import FitCells, sample_cells
from xvfl.model.choose_classes import choose_classes
from xvfl.model.custom_nets import CustomNets
from xvfl.model.decision_rule import check_threshold
from xvfl.model.encoder_runs import LocalUploads, tables_on_disk
from xvfl.model.fit_report import FitReport
from xvfl.model.model import Model
from xvfl.model.run_dir import FORMAT, RunDir
from xvfl.model.run_recorder import RunRecorder
from xvfl.nets.party_net import PartyNet
from xvfl.nets.row_wise import has_hooks, row_wise
from xvfl.options import Options, resolve_options, resolve_privacy
from xvfl.primitives.layout import any_image
from xvfl.primitives.masks import unmasked_share
from xvfl.primitives.rows import PartyTable, Rows, RowSource
from xvfl.primitives.task import Task
from xvfl.system.signals import STOP_SIGNALS, stop_on_signals
from xvfl.training.calibration import CompletionLosses, calibrate
from xvfl.training.loop import Record, Trainer, pretraining_epochs
from xvfl.training.predict import mean_score, mode_losses
from xvfl.training.threads import limit_threads

Dataset = InMemoryDataset | OnDiskDataset
"""Prepared rows, in memory or on disk."""
ASSISTED: tuple[Mode, ...] = ("assisted",)
ASSISTED_ROWS = 1024
"""Validation rows whose assisted predictions are scored after every epoch."""


@dataclass(frozen=True)
class TrainingPlan:
    """Configuration of one training run."""

    options: Options
    custom_nets: CustomNets | None = None
    initial: Model | None = None
    """A trained model of the same nets whose weights are the first ones (warm start)."""
    threshold: float | str | None = None
    """How classes follow from probabilities; see `choose_classes`."""

    def __post_init__(self) -> None:
        check_threshold(self.threshold)


def resolve_for_dataset(
    dataset: Dataset,
    net: NetConfig,
    loss: LossConfig,
    train: TrainConfig,
    privacy: PrivacyConfig = NO_PROTECTION,
    custom_nets: CustomNets | None = None,
) -> Options:
    """Resolve the options of a run in one process on prepared rows."""
    return resolve_options(
        net,
        loss,
        train,
        privacy,
        federated=False,
        image=any_image(dataset.layouts),
        parties=len(dataset.layouts),
        rows=dataset.row_counts().labeled,
        numbers=max(len(layout.numbers) for layout in dataset.layouts.values()),
        custom_nets=custom_nets is not None and custom_nets.any(),
        keep_batch_size=dataset.row_counts().unlabeled > 0,
    )


@dataclass(frozen=True)
class ProgressUpdate:
    """State of a training run, for a progress display."""

    record: Record
    epochs: int
    batches: int
    label: str
    """The party whose encoder is trained; '' otherwise."""
    score_name: str = "log-loss"
    """What the validation score is the negative of."""


@dataclass(frozen=True)
class FitResult:
    """A trained model, its records, and how its training ended."""

    model: Model
    records: list[dict[str, Any]]
    rows: RowCounts
    overlap: Overlap
    interrupted: bool
    diverged: bool
    """No epoch ended with a finite validation score; those of pretraining have none."""
    epochs: int
    """Largest number of epochs; early stopping trains fewer."""
    best_epoch: int = 0
    """The epoch whose weights are kept, counted from 1."""
    report: FitReport | None = None
    """None of an interrupted training."""


@dataclass(frozen=True)
class Uploads:
    """The encoders of all parties, each trained alone, and what they upload."""

    parties: dict[str, PartyNet]
    views: dict[str, Tensor]


ProgressCallback = Callable[[ProgressUpdate], None]


def fit(
    dataset: Dataset,
    plan: TrainingPlan,
    folder: RunDir | None = None,
    resume: bool = False,
    on_progress: ProgressCallback | None = None,
) -> FitResult:
    """Train, keep the best epoch and calibrate.

    Without gradients, every party's encoder is trained before, and heads are trained on uploads.
    The first Ctrl-C stops training after the current step. With a folder, where the run can be
    resumed, SIGTERM does the same.
    """
    on_progress = on_progress or (lambda update: None)
    signals = STOP_SIGNALS if folder is not None else (signal.SIGINT,)
    with (
        stop_on_signals(signals) as stop,
        torch.random.fork_rng(devices=[]),
        limit_threads(any_image(dataset.layouts), choose_device(plan.options.train.device)),
    ):
        uploads = _upload(dataset, plan, folder, resume, on_progress, stop)
        if uploads is not None and stop.is_set():
            return _interrupted(dataset, plan)
        result = _fit(dataset, plan, folder, resume, on_progress, stop, uploads)
    if result.diverged and not result.interrupted:
        raise RunError(
            "training diverged: no epoch had a finite validation score; lower learning_rate"
        )
    return result


def _unmasked_shares(dataset: Dataset, loss: LossConfig) -> dict[str, float]:
    """Return each party's share of masked copies that keep all features.

    With unlabeled rows every step has the row as observed too, so all copies are masked by default.
    """
    share = loss.unmasked_copies
    if share is None and dataset.row_counts().unlabeled:
        share = 0.0
    if share is not None:
        return dict.fromkeys(dataset.layouts, share)
    missing = dataset.missing_share
    return {name: unmasked_share(layout, missing[name]) for name, layout in dataset.layouts.items()}


def uses_unlabeled(loss: LossConfig, privacy: PrivacyConfig) -> bool:
    """Return whether a run in one process trains on rows without a label.

    Encoders are trained on all rows; heads, and nets that receive gradients, as the method can.
    """
    learns = resolve_privacy(privacy, federated=False).trains_encoders
    return learns or method_spec(loss.method).uses_unlabeled


def choose_device(name: str | None) -> torch.device:
    """Return the torch device for `cpu` or `cuda`; by default a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: expected a GPU for 'cuda', found none; use 'cpu'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _upload(
    dataset: Dataset,
    plan: TrainingPlan,
    folder: RunDir | None,
    resume: bool,
    on_progress: ProgressCallback,
    stop: threading.Event,
) -> Uploads | None:
    """Train every party's encoder alone and compute its upload; None with gradients."""
    options = plan.options
    if options.privacy.sends_gradients:
        return None
    if not isinstance(dataset, InMemoryDataset):
        raise tables_on_disk()
    model = _build_model(dataset, plan)
    if plan.initial is not None:
        if options.privacy.epsilon is not None and plan.initial.differential_privacy is None:
            raise ConfigError(
                "warm_start: expected a previous model with `epsilon`; trained encoders depend on "
                "other rows"
            )
        _copy_weights(plan.initial, model)
    for net in model.parties.values():
        net.to(choose_device(options.train.device))

    def show(name: str, training: EncoderTraining, record: Record) -> None:
        batches, label = training.trainer.batches_per_epoch, f"encoder of {name}"
        on_progress(ProgressUpdate(record, options.train.epochs, batches, label))

    local = LocalUploads(
        dataset, model, encoder_config(options), folder, _fingerprint(dataset, plan)
    )
    return Uploads(model.parties, local.run(resume, stop, show))


def _interrupted(dataset: Dataset, plan: TrainingPlan) -> FitResult:
    """Return the result of a run that was stopped before its heads."""
    model, epochs = _build_model(dataset, plan), plan.options.train.epochs
    counts, overlap = dataset.row_counts(), dataset.overlap()
    return FitResult(model, [], counts, overlap, interrupted=True, diverged=True, epochs=epochs)


def _build_model(dataset: Dataset, plan: TrainingPlan) -> Model:
    """Build the untrained nets of a run."""
    options, uploads = plan.options, not plan.options.privacy.sends_gradients
    return Model(
        dataset.encoders,
        dataset.full_threshold,
        dataset.task,
        dataset.prior(),
        encoder_net_config(encoder_config(options)) if uploads else options.net,
        options.loss,
        options.train.random_state,
        plan.custom_nets,
        options.privacy,
        options.net if uploads else None,
    )


def _federation(
    dataset: Dataset, plan: TrainingPlan, model: Model, uploads: Uploads | None
) -> FusedFederation:
    """Combine the parties of a run on its device; the heads of uploads are built anew."""
    options, device = plan.options, choose_device(plan.options.train.device)
    names = [*model.parties, COORDINATOR]
    if uploads is not None:
        model.parties, names = uploads.parties, [COORDINATOR]
        seeds, image = [options.train.random_state], any_image(dataset.layouts)
        head = plan.custom_nets.head if plan.custom_nets else None
        with torch.random.fork_rng(devices=[]):
            model.method, federation = build_heads(
                uploads.views, options, seeds, model.task, image, head
            )
    if plan.initial is not None:
        _copy_weights(plan.initial, model, names)
    for module in model.modules.values():
        module.to(device)
    if uploads is not None:
        return federation
    return model.federation(
        dataset.tables,
        options.loss.reconstruction_weight,
        options.train.image_shift,
        _unmasked_shares(dataset, options.loss),
    )


def _fit(
    dataset: Dataset,
    plan: TrainingPlan,
    folder: RunDir | None,
    resume: bool,
    on_progress: ProgressCallback,
    stop: threading.Event,
    uploads: Uploads | None,
) -> FitResult:
    options = plan.options
    device = choose_device(options.train.device)
    model = _build_model(dataset, plan)
    federation = _federation(dataset, plan, model, uploads)
    validation = dataset.validation_rows(device)
    rows: RowSource = dataset.training_rows(device)
    if uploads is not None and not method_spec(options.loss.method).uses_unlabeled:
        assert isinstance(rows, Rows)
        rows = rows.only_labeled()
    if model.differential_privacy is not None:
        assert isinstance(rows, Rows)
        rows, validation = rows.hide_missing(), validation.hide_missing()
    captured = device.type == "cuda" and can_capture(federation, rows, plan.custom_nets)
    method = protect_labels(
        model.method, options.privacy, model.task.n_outputs, [options.train.random_state]
    )
    image = any_image(dataset.layouts) and uploads is None
    pretraining = pretraining_epochs(rows, options.loss, options.train, image)
    trainer = Trainer(
        federation,
        method,
        rows,
        options.train,
        cuda_graph=captured,
        pretraining=pretraining if uploads is None else 0,
        image=image,
    )
    # Without a folder nothing is resumed, and the hash of wide tables takes seconds.
    recorder = RunRecorder(folder, trainer, _fingerprint(dataset, plan) if folder else "")
    if resume:
        recorder.resume()
    scores = ValidationScores(model, federation, validation, assisted=folder is not None)
    records = []
    for record in trainer.run(scores.score):
        on_progress(
            ProgressUpdate(
                record,
                options.train.epochs,
                trainer.batches_per_epoch,
                "",
                model.task.score_name,
            )
        )
        if record.kind == "epoch":
            records.append(recorder.add(record, scores.take_losses()))
        if stop.is_set():
            break
    interrupted = stop.is_set()
    recorder.save_checkpoint()
    report, diverged = None, trainer.progress.best_epoch < 0
    if not interrupted or folder is None:
        trainer.load_best()
        losses: CompletionLosses = {}
        model.temperatures = calibrate(model.method, federation, validation, model.task, losses)
        choose_classes(model, federation, validation, plan.threshold)
        if not (interrupted or diverged):
            report = build_report(
                dataset, model, federation, validation, losses, records, options.train.epochs
            )
        if options.privacy.epsilon is None:
            model.cells = _sample_cells(dataset, options.train.random_state)
    for module in model.modules.values():
        module.to("cpu").eval()
    return FitResult(
        model,
        records,
        dataset.row_counts(),
        dataset.overlap(),
        interrupted,
        diverged,
        options.train.epochs,
        trainer.progress.best_epoch + 1,
        report,
    )


def _sample_cells(dataset: Dataset, seed: int) -> FitCells:
    cpu = torch.device("cpu")
    rows = dataset.training_rows(cpu), dataset.validation_rows(cpu)
    return sample_cells(dataset.encoders, dataset.tables, *rows, seed)


def _copy_weights(source: Model, target: Model, names: Collection[str] | None = None) -> None:
    """Copy the weights of the named modules; by default all."""
    try:
        for name, module in target.modules.items():
            if names is None or name in names:
                module.load_state_dict(source.modules[name].state_dict())
    except (KeyError, RuntimeError) as error:
        raise ConfigError(
            "warm_start: expected nets of the same parties and sizes as before; fit a new model, "
            "or restore the parameters"
        ) from error


def can_capture(
    federation: FusedFederation, rows: RowSource, custom_nets: CustomNets | None
) -> bool:
    """Return whether training steps can be captured as a CUDA graph.

    All rows must be in GPU memory, and every net must treat rows independently, without hooks.
    """
    workers = federation.workers
    stored = [isinstance(worker, StoredParty) for worker in workers]
    tables = [each.table for each, has_none in zip(workers, stored, strict=True) if not has_none]
    resident = isinstance(rows, Rows) and all(isinstance(table, PartyTable) for table in tables)
    heads = [custom_nets.head] if custom_nets and custom_nets.head is not None else []
    independent = all(map(row_wise, heads)) and all(worker.row_wise for worker in workers)
    nets = [*heads, *(worker.net for worker in workers)]
    return resident and independent and not any(map(has_hooks, nets))


class ValidationScores:
    """Scores epochs, and keeps the loss of each mode for the records.

    With `assisted`, the loss of assisted predictions of at most `ASSISTED_ROWS` rows is recorded as
    well. It does not count in the score.
    """

    def __init__(
        self, model: Model, federation: FusedFederation, rows: Rows, assisted: bool
    ) -> None:
        self._model, self._federation, self._rows = model, federation, rows
        self._assisted = assisted and "assisted" in model.method.modes
        self._losses: dict[str, float] = {}

    def score(self) -> float:
        """Return minus the mean validation loss of local and collaborative prediction."""
        method, federation, task = self._model.method, self._federation, self._model.task
        losses = mode_losses(method, federation, self._rows, task)
        self._losses = dict(losses)
        if self._assisted:
            some = torch.arange(min(len(self._rows), ASSISTED_ROWS), device=self._rows.device)
            sample = self._rows.take(some)
            self._losses |= mode_losses(method, federation, sample, task, ASSISTED)
        return mean_score(losses)

    def take_losses(self) -> dict[str, float]:
        """Return the losses of the last score by mode, once; epochs of pretraining have none."""
        losses, self._losses = self._losses, {}
        return losses


def _target(task: Task) -> dict[str, Any]:
    """Return what tells models of the same nets and different numbers apart."""
    return {} if task.classes else task.to_dict()


def _fingerprint(dataset: Dataset, plan: TrainingPlan) -> str:
    """Hash everything that determines the weights of a run; the device may change."""
    options = plan.options
    train = asdict(options.train)
    train.pop("device")
    identity: Mapping[str, Any] = {
        "format": FORMAT,
        "net": asdict(options.net),
        "loss": asdict(options.loss),
        "train": train,
        "privacy": asdict(options.privacy),
        "encoders": {name: each.to_dict() for name, each in dataset.encoders.items()},
        "classes": [str(label) for label in dataset.classes],
        **_target(dataset.task),
        "rows": dataset.fingerprint(),
    }
    return blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()
