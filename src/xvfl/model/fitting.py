"""Train a model on prepared rows: device, λ search, checkpoints, interruption, calibration."""

import itertools
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from types import FrameType
from typing import Any

import torch

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.dataset.base import Dataset
from xvfl.errors import ConfigError, RunError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import calibrate, score
from xvfl.model.custom_nets import CustomNets
from xvfl.model.model import Model
from xvfl.model.run_dir import CHECKPOINT, FORMAT, RunDir
from xvfl.nets.row_wise import hooked, row_wise
from xvfl.primitives.rows import PartyTable, Rows, RowSource
from xvfl.training.loop import Record, Trainer
from xvfl.training.threads import limit_threads

CHECKPOINT_SECONDS = 15.0
"""Seconds between checkpoints, at the end of an epoch."""


@dataclass(frozen=True)
class Plan:
    """What to train and how."""

    net: NetConfig
    loss: LossConfig
    train: TrainConfig
    own: CustomNets | None = None


@dataclass(frozen=True)
class Update:
    """What a progress display is told."""

    record: Record
    epochs: int
    batches: int
    label: str
    """Which training this is, when λ are searched; '' otherwise."""


@dataclass(frozen=True)
class Fitted:
    """A trained model and how its training ended."""

    model: Model
    records: list[dict[str, Any]]
    interrupted: bool
    untrained: bool
    """No epoch ended with a finite validation score."""


Show = Callable[[Update], None]


def fit(
    prepared: Dataset,
    plan: Plan,
    folder: RunDir | None = None,
    resume: bool = False,
    show: Show | None = None,
) -> Fitted:
    """Search λ where several are given, then train, keep the best epoch and calibrate."""
    shown = show or (lambda update: None)
    kernels = limit_threads(prepared.layouts, choose_device(plan.train.device))
    with (
        _stoppable(terminable=folder is not None) as stop,
        torch.random.fork_rng(devices=[]),
        kernels,
    ):
        plan = replace(plan, loss=_search(prepared, plan, folder, shown, stop))
        # A stop before the first step leaves the folder as it is: no λ was chosen yet.
        place = None if stop.is_set() else folder
        fitted = _fit_one(prepared, plan, place, resume, shown, stop, "")
    if fitted.untrained and not fitted.interrupted:
        raise RunError(
            "training diverged: no epoch had a finite validation score; lower learning_rate"
        )
    return fitted


def choose_device(name: str) -> torch.device:
    """Turn `auto`, `cpu` or `cuda` into a device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: expected a GPU for 'cuda', found none; use 'auto' or 'cpu'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _fit_one(
    prepared: Dataset,
    plan: Plan,
    folder: RunDir | None,
    resume: bool,
    show: Show,
    stop: threading.Event,
    label: str,
) -> Fitted:
    device = choose_device(plan.train.device)
    model = Model(
        prepared.encoders,
        prepared.full_threshold,
        prepared.classes,
        prepared.prior(),
        plan.net,
        plan.loss,
        plan.train.random_state,
        plan.own,
    )
    for net in model.holders.values():
        net.to(device)
    federation = _federation(model, prepared, plan, device)
    validation = prepared.validating(device)
    rows = prepared.training(device)
    captured = device.type == "cuda" and capturable(federation, rows, plan.own)
    trainer = Trainer(federation, model.method, rows, plan.train, captured=captured)
    keeper = _Keeper(folder, trainer, _fingerprint(prepared, plan))
    if resume:
        keeper.resume()
    records = []
    for record in trainer.run(lambda: score(model.method, federation, validation)):
        show(Update(record, plan.train.epochs, trainer.batches, label))
        if record.kind == "epoch":
            records.append(keeper.note(record))
        if stop.is_set():
            break
    interrupted = stop.is_set()
    keeper.save()
    if not interrupted or folder is None:
        trainer.load_best()
        model.temperatures = calibrate(model.method, federation, validation)
    for net in model.holders.values():
        net.to("cpu").eval()
    return Fitted(model, records, interrupted, trainer.progress.best_epoch < 0)


def _federation(
    model: Model, prepared: Dataset, plan: Plan, device: torch.device
) -> FusedFederation:
    weight = plan.loss.reconstruction_weight
    sides = [
        PartyWorker(name, net, prepared.tables[name].to(device), [plan.train.random_state], weight)
        for name, net in model.parties.items()
    ]
    return FusedFederation(sides)


def capturable(federation: FusedFederation, rows: RowSource, own: CustomNets | None) -> bool:
    """Say whether steps on a GPU can be captured: all rows lie there, and every net is known."""
    tables = [worker.table for worker in federation.workers]
    resident = isinstance(rows, Rows) and all(isinstance(table, PartyTable) for table in tables)
    heads = [own.head] if own is not None and own.head is not None else []
    known = all(map(row_wise, heads)) and all(worker.row_wise for worker in federation.workers)
    nets = [*heads, *(worker.net for worker in federation.workers)]
    return resident and known and not any(map(hooked, nets))


def _search(
    prepared: Dataset, plan: Plan, folder: RunDir | None, show: Show, stop: threading.Event
) -> LossConfig:
    pairs = list(itertools.product(_several(plan.loss.lambda1), _several(plan.loss.lambda2)))
    if len(pairs) == 1:
        return replace(plan.loss, lambda1=pairs[0][0], lambda2=pairs[0][1])
    fingerprint = _fingerprint(prepared, plan)
    known = {
        (each["lambda1"], each["lambda2"]): _score(each)
        for each in (folder.records() if folder else [])
        if each.get("kind") == "search" and each.get("fingerprint") == fingerprint
    }
    for at, (l1, l2) in enumerate(pairs):
        if (l1, l2) in known or stop.is_set():
            continue
        label = f"λ1={l1:g} λ2={l2:g} ({at + 1}/{len(pairs)})"
        one = replace(plan, loss=replace(plan.loss, lambda1=l1, lambda2=l2))
        fitted = _fit_one(prepared, one, None, False, show, stop, label)
        if stop.is_set():
            break
        known[l1, l2] = max(_score(record) for record in fitted.records)
        if folder is not None:
            found = {"lambda1": l1, "lambda2": l2, "score": known[l1, l2]}
            folder.append_record({"kind": "search", **found, "fingerprint": fingerprint})
    best = max(pairs, key=lambda pair: known.get(pair, float("-inf")))
    return replace(plan.loss, lambda1=best[0], lambda2=best[1])


def _score(record: Mapping[str, Any]) -> float:
    score = record["score"]
    return score if score is not None and math.isfinite(score) else -math.inf


def _several(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


class _Keeper:
    """Write a run's records and checkpoints, and take them up again."""

    def __init__(self, folder: RunDir | None, trainer: Trainer, fingerprint: str) -> None:
        self.folder, self.trainer, self.fingerprint = folder, trainer, fingerprint
        self.started = self.saved = time.monotonic()

    def note(self, record: Record) -> dict[str, Any]:
        progress = record.progress
        line = {
            "kind": "epoch",
            "epoch": progress.epoch,
            "step": progress.step,
            "best_epoch": progress.best_epoch + 1,
            **record.values,
            "seconds": round(time.monotonic() - self.started, 3),
        }
        if self.folder is not None:
            self.folder.append_record(line)
            if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                self.save()
        return line

    def save(self) -> None:
        if self.folder is None:
            return
        tensors, progress = self.trainer.state()
        about = {"progress": progress, "fingerprint": self.fingerprint}
        self.folder.save_tensors(CHECKPOINT, tensors, about)
        self.saved = time.monotonic()

    def resume(self) -> None:
        if self.folder is None:
            return
        if not self.folder.has(CHECKPOINT):
            self.folder.keep_records(lambda each: each.get("kind") == "search")
            return
        tensors, about = self.folder.load_tensors(CHECKPOINT)
        if about.get("fingerprint") != self.fingerprint:
            raise RunError(
                f"{self.folder.path}: the configuration or the tables changed since this run "
                "began; give it what it began with, or train into another folder"
            )
        self.trainer.restore(tensors, about["progress"])
        ended = self.trainer.progress.epoch
        self.folder.keep_records(lambda each: each.get("epoch", 0) <= ended)


def _fingerprint(prepared: Dataset, plan: Plan) -> str:
    train = asdict(plan.train)
    train.pop("device")
    said: Mapping[str, Any] = {
        "format": FORMAT,
        "net": asdict(plan.net),
        "loss": asdict(plan.loss),
        "train": train,
        "encoders": {name: each.to_dict() for name, each in prepared.encoders.items()},
        "classes": [str(label) for label in prepared.classes],
        "rows": prepared.identity(),
    }
    return blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextmanager
def _stoppable(terminable: bool) -> Iterator[threading.Event]:
    """Turn the first Ctrl-C (or, where the run can be resumed, SIGTERM) into a wish to stop."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signals = [signal.SIGINT, *([signal.SIGTERM] if terminable else [])]
    before = {each: signal.signal(each, ask) for each in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
