"""Measure uploads for every setting of the dials: accuracy of heads and recovery of columns.

Needs torch and numpy only, and runs on any device. Shapes: n rows of a party, c masked copies, d
embedding width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from xvfl.audit.dials import CONFIGURED, Dial
from xvfl.audit.inference import label_attack, membership_attacks
from xvfl.audit.recovery import Columns, Measured, scored_columns, true_columns
from xvfl.audit.stolen_encoder import stolen_encoder_attack
from xvfl.audit.upload_attacks import (
    AttackOptions,
    attack_upload,
    collusion_attacks,
    two_version_attacks,
)
from xvfl.audit.upload_heads import HeadOptions, LabeledSplit, head_accuracy
from xvfl.config import EncoderConfig
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.privacy_accounting import state_privacy
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.federation.upload.views import ROWS_AT_ONCE, compute_views
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable
from xvfl.primitives.seeding import derive_seed

Report = Callable[[str, float], None]
"""Receives what is being done, and which share of it is done."""


@dataclass(frozen=True)
class UploadScenario:
    """Parties that upload, and the coordinator's labels if it has any.

    Parameters
    ----------
    tables : mapping of str to PartyTable
        Encoded rows of each party.
    encoders : mapping of str to EncoderConfig
        Each party's configuration.
    learned : mapping of str to Tensor
        Handles of the rows that each party learns from; all others are held out.
    split : LabeledSplit, optional
        The coordinator's rows; without it, accuracy is not measured.
    random_state : int, default=0
        Seed of all random numbers.
    """

    tables: Mapping[str, PartyTable]
    encoders: Mapping[str, EncoderConfig]
    learned: Mapping[str, Tensor]
    split: LabeledSplit | None = None
    random_state: int = 0


@dataclass(frozen=True)
class DialResult:
    """Accuracy and recovery with one setting of a dial."""

    dial: str
    accuracy: dict[str, float]
    """AUROC, or R² of numbers, in each mode; empty without labels."""
    measured: dict[str, list[Measured]]
    """What attacks reach, by party."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        measured = {name: [vars(each) for each in some] for name, some in self.measured.items()}
        return {"dial": self.dial, "accuracy": self.accuracy, "measured": measured}


@dataclass
class Encoders:
    """The trained encoders of a scenario; each configuration is trained once."""

    scenario: UploadScenario
    device: torch.device
    _trained: dict[tuple[str, EncoderConfig, int], PartyWorker] = field(default_factory=dict)

    def worker(self, name: str, config: EncoderConfig, version: int = 1) -> PartyWorker:
        """Return a party's trained encoder with its table."""
        config = replace(config, masked_copies=0)
        key = name, config, version
        if key not in self._trained:
            self._trained[key] = self._train(*key)
        return self._trained[key]

    def _train(self, name: str, config: EncoderConfig, version: int) -> PartyWorker:
        scenario = self.scenario
        seeds = [derive_seed(scenario.random_state, "audit", name, version)]
        table = scenario.tables[name].to(self.device)
        with torch.random.fork_rng(devices=[]):
            net = build_encoder(name, table.layout, config, seeds).to(self.device)
        privacy = state_privacy(config)
        if privacy is not None:
            return PrivateWorker(name, net, table, seeds, privacy.noise_std)
        rows = scenario.learned[name].to(self.device)
        training = EncoderTraining(name, net, table, rows, config, seeds)
        for _ in training.run():
            pass
        return PartyWorker(name, net, table, seeds)

    def views(self, name: str, dial: Dial, version: int = 1) -> Tensor:
        """Compute what a party uploads of all its rows. (n, 1 + c, d)"""
        config = replace(self.scenario.encoders[name], **dial.encoder)
        handles = torch.arange(len(self.scenario.tables[name]), device=self.device)
        worker = self.worker(name, config, version)
        views = compute_views(worker, handles, config.copies)
        if dial.transform is not None:
            rng = named_generator("cpu", self.scenario.random_state, "dial", name)
            views = dial.transform(views, rng).half()
        return views


@dataclass(frozen=True)
class SweepOptions:
    """Strength of the attacks, and how heads are trained."""

    attacks: AttackOptions = AttackOptions()
    heads: HeadOptions = HeadOptions()
    stolen: bool = True
    """Whether to run the attack with a stolen encoder, with every setting."""


def sweep(
    scenario: UploadScenario,
    dials: Sequence[Dial],
    options: SweepOptions | None = None,
    device: torch.device | str = "cpu",
    report: Report = lambda text, share: None,
) -> list[DialResult]:
    """Measure the accuracy of heads and the recovery of columns for each setting of the dials.

    Parameters
    ----------
    scenario : UploadScenario
        Tables, configurations and labels.
    dials : sequence of Dial
        Settings to measure. All attacks are run on the one named `configured`; on the others, those
        that need only the upload or the encoder.
    options : SweepOptions, optional
        Strength of the attacks, and how heads are trained.
    device : torch.device or str, default="cpu"
        Device of training and attacks.
    report : callable, optional
        Receives the progress.

    Returns
    -------
    list of DialResult
        One for each setting.
    """
    options = options or SweepOptions()
    encoders = Encoders(scenario, torch.device(device))
    results = []
    for place, dial in enumerate(dials):

        def progress(text: str, share: float, place: int = place, dial: Dial = dial) -> None:
            report(f"{dial}: {text}", (place + share) / len(dials))

        results.append(_measure(encoders, dial, options, progress))
    report("done", 1.0)
    return results


def _measure(encoders: Encoders, dial: Dial, options: SweepOptions, report: Report) -> DialResult:
    """Train, upload, attack and predict with one setting."""
    scenario, names = encoders.scenario, list(encoders.scenario.tables)
    views, measured = {}, {}
    for place, name in enumerate(names):
        report(f"encoder of {name}", 0.4 * place / len(names))
        views[name] = encoders.views(name, dial)
    for place, name in enumerate(names):
        report(f"attacks on {name}", 0.4 + 0.4 * place / len(names))
        measured[name] = _attack(encoders, name, dial, views[name], options)
    accuracy: dict[str, float] = {}
    if scenario.split is not None:
        report("heads", 0.8)
        accuracy = head_accuracy(views, scenario.split, options.heads, encoders.device)
    return DialResult(str(dial), accuracy, measured)


def _attack(
    encoders: Encoders, name: str, dial: Dial, views: Tensor, options: SweepOptions
) -> list[Measured]:
    table = encoders.scenario.tables[name].to(encoders.device)
    places = scored_columns(table)
    columns = true_columns(table, places)
    found = attack_upload(views, columns, options.attacks)
    config = replace(encoders.scenario.encoders[name], **dial.encoder)
    net = encoders.worker(name, config).net
    if options.stolen and net.completes and not dial.invertible:
        found += stolen_encoder_attack(net, views[:, 0], table, columns, places, options.attacks)
    if dial.name == CONFIGURED:
        found += _further_attacks(encoders, name, dial, views, columns, options.attacks)
    return found


def _further_attacks(
    encoders: Encoders,
    name: str,
    dial: Dial,
    views: Tensor,
    columns: Columns,
    options: AttackOptions,
) -> list[Measured]:
    """Run the other attacks: collusion, two versions, membership and labels."""
    scenario = encoders.scenario
    held_out = torch.ones(len(views), dtype=torch.bool, device=views.device)
    held_out[scenario.learned[name].to(views.device)] = False
    worker = encoders.worker(name, scenario.encoders[name])
    errors = reconstruction_errors(worker) if worker.net.completes else None
    second = encoders.views(name, replace(dial, encoder={"masked_copies": 0}), 2)
    found = [
        *collusion_attacks(views, columns, options),
        *two_version_attacks(views, second, columns, options),
        *membership_attacks(views, ~held_out, errors, options),
    ]
    y = _labels(scenario, name)
    return found if y is None else [*found, *label_attack(held_out.cpu(), y, options)]


def _labels(scenario: UploadScenario, name: str) -> Tensor | None:
    """Return the class number of each row of a party, −1 without a label. (n,)"""
    split = scenario.split
    if split is None or split.task.kind == "regression":
        return None
    party = list(scenario.tables).index(name)
    y = torch.full((len(scenario.tables[name]),), -1)
    for rows in (split.training, split.validation, split.test):
        handles = rows.handles[:, party].cpu()
        y[handles[handles >= 0]] = rows.y.cpu()[handles >= 0]
    return y


@torch.no_grad()
def reconstruction_errors(worker: PartyWorker) -> Tensor:
    """Return the mean squared reconstruction error of each row by the party's own decoder. (n,)"""
    net, errors = worker.net.eval(), []
    every = torch.arange(len(worker.table), device=worker.table.device)
    for handles in torch.split(every, ROWS_AT_ONCE):
        rows = worker.table.take(handles)
        x, observed = net.encode(rows), rows.observed
        E = net.embed(x, observed)
        nothing = torch.zeros_like(observed)
        restored = net.completer(*net.completer_inputs(x, nothing, E))
        weight = net.spread(observed).expand_as(x).flatten(1).float()
        error = (restored.view_as(x) - x).flatten(1).square() * weight
        errors.append(error.sum(1) / weight.sum(1).clamp(min=1))
    return torch.cat(errors)
