"""Simulate a federation in one process: real endpoints, messages and limits, recorded traffic."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from xvfl.audit.traffic import RecordingTransport, Traffic
from xvfl.config import (
    NO_PROTECTION,
    Config,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TrainConfig,
)
from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.errors import WireError
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import score
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.methods import method_spec, protect_labels
from xvfl.methods.members import member_seeds
from xvfl.nets.party_net import PartyNet
from xvfl.options import Options, resolve_options, resolve_privacy
from xvfl.primitives.layout import any_image
from xvfl.primitives.masks import choose_unmasked_share
from xvfl.primitives.rows import PartyTable, Rows, observation_levels
from xvfl.training.loop import Record, Trainer
from xvfl.wire.messages import Backward, CueGradient, Gradient, Hello, Instruction

RUN = "audit"


@dataclass(frozen=True)
class Protection:
    """What protects labels and features in a simulated federation."""

    name: str
    privacy: PrivacyConfig
    private_seeds: bool
    """Each party draws its random numbers from its own secret; otherwise all have one seed."""

    @property
    def description(self) -> str:
        """Describe the protection in words."""
        if not self.private_seeds:
            return "none, as in version 0.1: one seed for all, gradients"
        return f"label_protection = {self.privacy.label_protection!r}, private seeds"


OFF = Protection("off", NO_PROTECTION, private_seeds=False)


def configured_protection(privacy: PrivacyConfig) -> Protection:
    """Return the protection of a federation with this configuration; its parties use defaults."""
    resolved = resolve_privacy(privacy, federated=True)
    return Protection("configured", resolved, private_seeds=True)


class UnprotectedWorker(PartyWorker):
    """A party of version 0.1: the gradient of a cue includes its reconstruction loss."""

    def _complete(
        self, cue: Tensor, observed: Tensor, used: Tensor | None, own_cue: bool
    ) -> Tensor:
        return super()._complete(cue, observed, used, own_cue=True)


class GradientFreeFederation(SplitFederation):
    """A federation that sends no gradients: parties train by reconstruction."""

    def _leaf(self, values: Tensor) -> Tensor:
        return values

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss at the coordinator."""
        torch.autograd.backward(loss)


class GradientFreeEndpoint(Endpoint):
    """A party that accepts no gradients."""

    def _backward(self, message: Backward) -> CueGradient:
        raise WireError("gradients: this party accepts none")

    def _check_pending(
        self, gradients: tuple[Gradient, ...], instructions: tuple[Instruction, ...]
    ) -> tuple[Gradient, ...]:
        if gradients:
            raise WireError("gradients: this party accepts none")
        return super()._check_pending(gradients, instructions)


class _NoCheckpoints:
    """Stores nothing: a simulated run is not resumed."""

    def save(self, run: str, step: int, tensors: Any, last_update: int) -> None:
        """Do nothing."""

    def newest(self, run: str, step: int) -> None:
        """Find nothing."""


@dataclass
class SimulatedParty:
    """A party in this process, with its log and its traffic."""

    name: str
    endpoint: Endpoint
    traffic: Traffic
    transport: RecordingTransport
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def net(self) -> PartyNet:
        """The party's nets, once a run has started."""
        return self.endpoint.worker.net

    @property
    def rejections(self) -> list[str]:
        """Reasons of the rejected requests in the party's log."""
        return [each["reason"] for each in self.events if each["event"] == "request_rejected"]


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
        """Resolve the options of the federation that is simulated with this protection."""
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

    def training_handles(self) -> dict[str, Tensor]:
        """Return each party's handles of the training rows."""
        handles = self.dataset.training_rows(torch.device("cpu")).handles.int()
        return {name: each[each >= 0] for name, each in zip(self.names, handles.T, strict=True)}

    def settings(self, protection: Protection) -> RunSettings:
        """Return the settings that the coordinator sends to every party."""
        options = self.options(protection)
        return RunSettings(
            options.loss.method,
            options.net,
            options.train,
            options.loss.reconstruction_weight,
            options.loss.unmasked_copies,
            run=RUN,
            privacy=options.privacy,
        )

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

    def make_party(self, name: str, protection: Protection) -> SimulatedParty:
        """Create a party that waits for a coordinator."""
        table, events = self.table(name), list[dict[str, Any]]()

        def start_run(settings: RunSettings, training: Tensor) -> PartyRun:
            seed = self.party_seed(name, protection)
            net = self.first_net(name, protection, seed)
            worker_type = PartyWorker if protection.private_seeds else UnprotectedWorker
            seeds = member_seeds([seed], settings.net.members)
            unmasked = choose_unmasked_share(
                table.layout, table.observed[training], settings.unmasked_copies
            )
            worker = worker_type(
                name, net, table, seeds, settings.reconstruction, unmasked=unmasked
            )
            levels = observation_levels(table.observed, self.dataset.full_threshold[name])
            return PartyRun(worker, levels)

        image = table.layout.image is not None
        hello = Hello(0, f"audit-{name}", image, len(table), "", "")
        kind = Endpoint if protection.privacy.sends_gradients else GradientFreeEndpoint
        endpoint = kind(hello, start_run, _NoCheckpoints(), events.append)
        traffic = Traffic(len(table))
        return SimulatedParty(
            name, endpoint, traffic, RecordingTransport(endpoint, traffic), events
        )


def _first(value: float | tuple[float, ...]) -> float:
    return value[0] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Simulation:
    """A finished training run and everything that was sent in it."""

    scenario: Scenario
    protection: Protection
    parties: dict[str, SimulatedParty]
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
    """Train with honest participants and record all messages."""
    cpu = torch.device("cpu")
    parties = {name: scenario.make_party(name, protection) for name in scenario.names}
    dataset, options = scenario.dataset, scenario.options(protection)
    settings = scenario.settings(protection)
    rows, validation = dataset.training_rows(cpu), dataset.validation_rows(cpu)
    seeds = [scenario.train.random_state]
    terms = RunTerms(RUN, json.dumps(asdict(settings)), scenario.training_handles())
    remote = [RemoteParty(name, party.transport) for name, party in parties.items()]
    kind = SplitFederation if protection.privacy.sends_gradients else GradientFreeFederation
    width = settings.net.embedding_dim * method_spec(scenario.loss.method).branches
    federation = kind(remote, width, members=settings.net.members)
    with torch.random.fork_rng(devices=[]):
        method = build_method(
            len(parties),
            len(dataset.classes),
            any_image(dataset.layouts),
            options.net,
            options.loss,
            seeds,
            privacy=options.privacy,
        )
        begin_run(federation, terms)
        trained = protect_labels(method, protection.privacy, len(dataset.classes), seeds)
        trainer = Trainer(federation, trained, rows, options.train)
        for record in trainer.run(lambda: score(method, federation, validation)):
            on_record(record, trainer)
        trainer.load_best()
        federation.flush()
    return Simulation(scenario, protection, parties, rows, trainer.progress.epoch)
