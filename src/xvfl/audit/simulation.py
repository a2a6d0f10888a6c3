"""Simulate interactive training in one process, and record everything that would be sent."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from xvfl.audit.traffic import RecordingFederation, Traffic
from xvfl.config import (
    NO_PROTECTION,
    Config,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TrainConfig,
)
from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import protect_labels
from xvfl.methods.build import build_method, build_parties
from xvfl.methods.members import member_seeds
from xvfl.nets.party_net import PartyNet
from xvfl.options import Options, resolve_options, resolve_privacy
from xvfl.primitives.layout import any_image
from xvfl.primitives.masks import choose_unmasked_share
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.primitives.task import Classification
from xvfl.training.loop import Record, Trainer
from xvfl.training.predict import score


@dataclass(frozen=True)
class Protection:
    """What protects labels and features in interactive training."""

    name: str
    privacy: PrivacyConfig
    private_seeds: bool
    """Each party draws its random numbers from its own secret; otherwise all have one seed."""

    @property
    def description(self) -> str:
        """Describe the protection in words."""
        if not self.private_seeds:
            return "none, as in version 0.1: one seed for all"
        return f"label_protection = {self.privacy.label_protection!r}, private seeds"


OFF = Protection("off", NO_PROTECTION, private_seeds=False)


def configured_protection(privacy: PrivacyConfig) -> Protection:
    """Return the protection of interactive training with this configuration."""
    resolved = resolve_privacy(privacy, federated=True)
    return Protection("configured", resolved, private_seeds=True)


@dataclass(frozen=True)
class Scenario:
    """The rows and settings that are simulated."""

    dataset: InMemoryDataset
    net: NetConfig
    loss: LossConfig
    train: TrainConfig
    privacy: PrivacyConfig = PrivacyConfig()
    max_epochs: int | None = None
    """Largest number of epochs, even if the options ask for more."""

    @classmethod
    def of(
        cls, config: Config, dataset: InMemoryDataset, max_epochs: int | None = None
    ) -> "Scenario":
        """Take the settings of a configuration, as in a federation; of several λ, the first."""
        loss = replace(
            config.loss, lambda1=_first(config.loss.lambda1), lambda2=_first(config.loss.lambda2)
        )
        train = replace(config.train, device="cpu", precision="float32")
        return cls(dataset, config.net, loss, train, config.privacy, max_epochs)

    @property
    def names(self) -> list[str]:
        """Names of the parties."""
        return list(self.dataset.tables)

    def table(self, name: str) -> PartyTable:
        """Return a party's encoded rows."""
        return self.dataset.tables[name]

    def options(self, protection: Protection) -> Options:
        """Resolve the options of a federation with this protection."""
        options = resolve_options(
            self.net,
            self.loss,
            self.train,
            protection.privacy,
            federated=True,
            image=any_image(self.dataset.layouts),
            parties=len(self.dataset.layouts),
            rows=self.dataset.row_counts().labeled,
        )
        if self.max_epochs is None:
            return options
        epochs = min(options.train.epochs, self.max_epochs)
        return replace(options, train=replace(options.train, epochs=epochs))

    def first_net(self, name: str, protection: Protection, seed: int) -> PartyNet:
        """Build a party's net with the first weights that a seed gives."""
        layouts = {name: self.table(name).layout}
        with torch.random.fork_rng(devices=[]):
            nets = build_parties(
                layouts,
                self.options(protection).net,
                self.loss,
                [seed],
                privacy=protection.privacy,
            )
        return nets[name]

    def party_seed(self, name: str, protection: Protection) -> int:
        """Return the seed of a party; a private one stands for its secret."""
        if not protection.private_seeds:
            return self.train.random_state
        key = f"audit/{self.train.random_state}/{name}".encode()
        return int.from_bytes(blake2b(key, digest_size=32).digest(), "big") | 1 << 255

    def make_worker(self, name: str, protection: Protection) -> PartyWorker:
        """Create a party with its first weights."""
        table, options = self.table(name), self.options(protection)
        seed = self.party_seed(name, protection)
        handles = self.dataset.training_rows(torch.device("cpu")).handles
        training = handles[:, self.names.index(name)]
        observed = table.observed[training[training >= 0]]
        unmasked = choose_unmasked_share(table.layout, observed, options.loss.unmasked_copies)
        return PartyWorker(
            name,
            self.first_net(name, protection, seed),
            table,
            member_seeds([seed], options.net.members),
            options.loss.reconstruction_weight,
            unmasked=unmasked,
        )


def _first(value: float | tuple[float, ...]) -> float:
    return value[0] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Simulation:
    """A finished training run and everything that was sent in it."""

    scenario: Scenario
    protection: Protection
    workers: dict[str, PartyWorker]
    traffic: dict[str, Traffic]
    """What each party sent and received."""
    rows: Rows
    """The training rows."""
    epochs: int

    def labels(self, name: str) -> Tensor:
        """Return the class number of each row of a party, −1 if it is no training row. (n,)"""
        labels = torch.full((len(self.scenario.table(name)),), -1)
        handles = self.rows.handles[:, self.scenario.names.index(name)]
        labels[handles[handles >= 0]] = self.rows.y[handles >= 0]
        return labels

    def peer_handles(self, name: str, peer: str) -> Tensor:
        """Return the row number at a peer of each row of a party, −1 if unknown. (n,)"""
        own, other = (self.scenario.names.index(each) for each in (name, peer))
        found = torch.full((len(self.scenario.table(name)),), -1)
        held = self.rows.handles[:, own] >= 0
        found[self.rows.handles[held, own]] = self.rows.handles[held, other]
        return found


def simulate(
    scenario: Scenario,
    protection: Protection,
    on_record: Callable[[Record, Trainer], None] = lambda record, trainer: None,
) -> Simulation:
    """Train with honest participants and record what they send."""
    cpu = torch.device("cpu")
    dataset, options = scenario.dataset, scenario.options(protection)
    workers = {name: scenario.make_worker(name, protection) for name in scenario.names}
    traffic = {name: Traffic(len(scenario.table(name))) for name in scenario.names}
    rows, validation = dataset.training_rows(cpu), dataset.validation_rows(cpu)
    seeds = [scenario.train.random_state]
    federation = RecordingFederation(list(workers.values()), traffic)
    with torch.random.fork_rng(devices=[]):
        method = build_method(
            len(workers),
            Classification(dataset.classes),
            any_image(dataset.layouts),
            options.net,
            options.loss,
            seeds,
            privacy=options.privacy,
        )
        trained = protect_labels(method, protection.privacy, len(dataset.classes), seeds)
        trainer = Trainer(federation, trained, rows, options.train)
        for record in trainer.run(lambda: score(method, federation, validation)):
            on_record(record, trainer)
        trainer.load_best()
    return Simulation(scenario, protection, workers, traffic, rows, trainer.progress.epoch)
