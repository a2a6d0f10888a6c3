"""Attack interactive training: with the configured label protection, and without any."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xvfl.audit.feature_attacks import decoder_attack, embed_rows, fill_missing, invert
from xvfl.audit.findings import Finding, Key, Reached, combine
from xvfl.audit.hijack import hijack
from xvfl.audit.label_attacks import (
    direction_attack,
    model_completion,
    norm_attack,
    spectral_attack,
)
from xvfl.audit.scoring import FeatureScore, score_features
from xvfl.audit.simulation import OFF, Scenario, Simulation, configured_protection, simulate
from xvfl.audit.traffic import RowVectors, Traffic
from xvfl.primitives.layout import any_image
from xvfl.primitives.rows import PartyTable
from xvfl.training.loop import Record, Trainer
from xvfl.training.threads import limit_threads

GRADIENT_ATTACKS = {
    "norm": norm_attack,
    "direction": direction_attack,
    "spectral": spectral_attack,
}
Report = Callable[[str, float], None]
"""Receives what is being done, and which share of it is done."""


@dataclass(frozen=True)
class AuditOptions:
    """Strength of the attacks."""

    n_labels: int = 40
    """Labels that a party knows."""
    n_rows: int = 200
    """Rows whose features an attacker knows."""
    draws: int = 10
    """Draws of the known labels."""
    inversion_rows: int = 32
    inversion_steps: int = 100
    hijack_steps: int = 400
    max_rows: int = 2000
    """Rows on which an attack is scored."""


QUICK = AuditOptions(draws=3, inversion_rows=16, inversion_steps=40, hijack_steps=150, max_rows=500)


@dataclass(frozen=True)
class AuditResult:
    """All findings, and what was simulated."""

    findings: list[Finding]
    about: dict[str, Any]


def audit(
    scenario: Scenario,
    options: AuditOptions | None = None,
    report: Report = lambda text, share: None,
) -> AuditResult:
    """Simulate interactive training with and without protection and run every attack on both."""
    with limit_threads(any_image(scenario.dataset.layouts), torch.device("cpu")):
        return _audit(scenario, options or AuditOptions(), report)


def _audit(scenario: Scenario, options: AuditOptions, report: Report) -> AuditResult:
    started = time.monotonic()
    protection = configured_protection(scenario.privacy)
    reached: dict[str, dict[Key, Reached]] = {}
    about: dict[str, Any] = {}
    for each in (protection, OFF):
        words = "configured protection" if each is protection else "no protection"

        def on_record(record: Record, trainer: Trainer, words: str = words) -> None:
            epochs = record.progress.epoch + record.progress.batch / trainer.batches_per_epoch
            report(f"train with {words}", min(epochs / trainer.config.epochs, 1.0))

        simulation = simulate(scenario, each, on_record)
        attacks = Attacks(simulation, options)
        reached[each.name] = attacks.run(
            lambda text, share, words=words: report(f"{text} ({words})", share)  # type: ignore[misc]
        )
        about[each.name] = {
            "protection": each.description,
            "epochs": simulation.epochs,
            "gradients_received": {
                name: traffic.n_gradients for name, traffic in simulation.traffic.items()
            },
        }
    about |= {
        "parties": {name: len(scenario.table(name)) for name in scenario.names},
        "training_rows": len(scenario.dataset.train),
        "classes": [str(each) for each in scenario.dataset.classes],
        "known_labels": options.n_labels,
        "known_rows": options.n_rows,
        "seconds": round(time.monotonic() - started, 1),
    }
    return AuditResult(combine(reached[protection.name], reached[OFF.name]), about)


class Attacks:
    """All attacks on one simulation."""

    def __init__(self, simulation: Simulation, options: AuditOptions) -> None:
        self.simulation, self.options = simulation, options
        self.scenario, self.protection = simulation.scenario, simulation.protection
        self.members = self.scenario.options(self.protection).net.members
        self.found: dict[Key, Reached] = {}
        self._baselines: dict[str, FeatureScore] = {}

    def run(self, report: Report) -> dict[Key, Reached]:
        """Run every attack by and on every party."""
        names = self.scenario.names
        steps: list[tuple[str, Callable[[str], None]]] = [
            ("labels from gradients", self._gradients),
            ("labels from cues and bottoms", self._model_completion),
            ("features from embeddings", self._decoders),
            ("features from cues", self._cues),
            ("inversion with a known net", self._inversions),
            ("hijacked training", self._hijacking),
        ]
        for place, (text, step) in enumerate(steps):
            for number, name in enumerate(names):
                report(text, (place + number / len(names)) / len(steps))
                step(name)
        report("done", 1.0)
        return self.found

    def _gradients(self, name: str) -> None:
        """Guess labels from the gradients of the first step, and from their mean over all steps."""
        traffic = self.simulation.traffic[name]
        own = self._own_features(name)
        for when in ("single step", "all steps"):
            vectors = _gradients(traffic, first=when == "single step")
            y = self._labels(name, vectors.handles)
            vectors, y = _labeled(vectors, y)
            for attack, function in GRADIENT_ATTACKS.items():
                value = function(vectors.values.numpy(), y.numpy())
                base = self._own_features_auc(name, own, function)
                key = Key(f"gradient {attack}, {when}", name, "labels", "AUC")
                self.found[key] = Reached(value, base, 0.5)

    def _own_features_auc(
        self, name: str, own: RowVectors, function: Callable[..., float]
    ) -> float:
        rows, y = _labeled(own, self._labels(name, own.handles))
        at = torch.arange(len(rows))[: self.options.max_rows]
        return function(rows.values[at].numpy(), y[at].numpy())

    def _model_completion(self, name: str) -> None:
        """Train a classifier with a few labels on own features, own embeddings, received cues."""
        worker, own = self.simulation.workers[name], self._own_features(name)
        table = self.scenario.table(name)
        E = embed_rows(worker.net, table, self.members)
        every = torch.arange(len(table))
        baseline = self._completion_auc(name, own)
        both = torch.cat([own.values, E], 1)
        best = max(self._completion_auc(name, RowVectors(every, x)) for x in (E, both))
        key = Key("model completion, own bottom", name, "labels", "AUC")
        self.found[key] = Reached(best, baseline, 0.5)
        cues = self.simulation.traffic[name].cues.last
        if not len(cues):
            return
        restricted = RowVectors(cues.handles, own.values[cues.handles])
        baseline = self._completion_auc(name, restricted)
        both = torch.cat([restricted.values, cues.values], 1)
        best = max(
            self._completion_auc(name, RowVectors(cues.handles, x)) for x in (cues.values, both)
        )
        key = Key("model completion, received cues", name, "labels", "AUC")
        self.found[key] = Reached(best, baseline, 0.5)
        rows, y = _labeled(cues, self._labels(name, cues.handles))
        rows_own, _ = _labeled(restricted, self._labels(name, cues.handles))
        for attack, function in GRADIENT_ATTACKS.items():
            at = slice(self.options.max_rows)
            value = function(rows.values[at].numpy(), y[at].numpy())
            base = function(rows_own.values[at].numpy(), y[at].numpy())
            key = Key(f"cue {attack}", name, "labels", "AUC")
            self.found[key] = Reached(value, base, 0.5)

    def _completion_auc(self, name: str, vectors: RowVectors) -> float:
        rows, y = _labeled(vectors, self._labels(name, vectors.handles))
        n_known, draws = self.options.n_labels, self.options.draws
        if len(rows) <= n_known:
            return 0.5
        at = slice(n_known + self.options.max_rows)
        return model_completion(rows.values[at].numpy(), y[at].numpy(), n_known, draws)

    def _decoders(self, name: str) -> None:
        """Decode a party's features from what it sent, with some known rows.

        Of the last embedding of each row, its mean over all epochs, and the mean of its masked
        copies, the best counts.
        """
        traffic = self.simulation.traffic[name]
        channels = {
            "embeddings": (
                traffic.embeddings.last,
                traffic.embeddings.mean,
                traffic.masked_embeddings.mean,
            ),
            "completed embeddings": (traffic.completions.last,),
        }
        for title, recorded in channels.items():
            tries = []
            for vectors in (_limited(each, self._n_scored()) for each in recorded if len(each)):
                table = self.scenario.table(name).take(vectors.handles)
                tries.append(decoder_attack(vectors.values, table, self._n_known(table))[0])
            if tries:
                best = max(tries, key=lambda each: each.total)
                base = self._label_baseline(name)
                self._add(f"decoder, {title}", "coordinator", name, best, base)

    def _cues(self, name: str) -> None:
        """Decode the peers' features from the cues that a party receives."""
        cues = self.simulation.traffic[name].cues.last
        own = self._own_features(name)
        for peer in self.scenario.names:
            at_peer = self.simulation.peer_handles(name, peer)[cues.handles]
            shared = (at_peer >= 0).nonzero().flatten()[: self._n_scored()]
            if peer == name or len(shared) < 20:
                continue
            table = self.scenario.table(peer).take(at_peer[shared])
            known = self._n_known(table)
            features = own.values[cues.handles[shared]]
            both = torch.cat([features, cues.values[shared]], 1)
            tries = [decoder_attack(x, table, known)[0] for x in (cues.values[shared], both)]
            base, _ = decoder_attack(features, table, known)
            best = max(tries, key=lambda each: each.total)
            self._add("decoder, cues", name, peer, best, base)

    def _inversions(self, name: str) -> None:
        """Invert embeddings with the party's true net, and with one built from a guessed seed."""
        options, scenario = self.options, self.scenario
        net = self.simulation.workers[name].net
        table = scenario.table(name).take(torch.arange(options.inversion_rows))
        E = embed_rows(net, table, self.members)
        steps, members = options.inversion_steps, self.members
        found = score_features(invert(net, E, table.observed, steps, members), table)
        base = self._label_baseline(name)
        self._add("inversion, stolen net", "coordinator", name, found, base)
        guess = scenario.first_net(name, self.protection, scenario.train.random_state)
        traffic = self.simulation.traffic[name]
        sent = traffic.embeddings if len(traffic.embeddings.first) else traffic.masked_embeddings
        first = _limited(sent.first, options.inversion_rows)
        rows = scenario.table(name).take(first.handles)
        inverted = invert(guess, first.values, rows.observed, steps, members)
        score = score_features(inverted, rows)
        self._add("inversion, guessed seed", "coordinator", name, score, base)
        if len(scenario.names) != 2:
            return
        (peer,) = (each for each in scenario.names if each != name)
        cues = _limited(self.simulation.traffic[peer].cues.first, options.inversion_rows)
        handles = self.simulation.peer_handles(peer, name)[cues.handles]
        held = handles >= 0
        if int(held.sum()) < 2:
            return
        rows = scenario.table(name).take(handles[held])
        inverted = invert(guess, cues.values[held], rows.observed, steps, members)
        score = score_features(inverted, rows)
        own = self._own_features(peer)
        at_peer = self.simulation.peer_handles(name, peer)
        shared = (at_peer >= 0).nonzero().flatten()[: self._n_scored()]
        rows = scenario.table(name).take(shared)
        base, _ = decoder_attack(own.values[at_peer[shared]], rows, self._n_known(rows))
        self._add("inversion of cues, guessed seed", peer, name, score, base)

    def _hijacking(self, name: str) -> None:
        """Let a dishonest coordinator train the party's bottom to reveal its features."""
        known = self._n_known(self.scenario.table(name))
        worker = self.scenario.make_worker(name, self.protection)
        score = hijack(worker, self.scenario.table(name), known, self.options.hijack_steps)
        self._add("hijacked training", "coordinator", name, score, self._label_baseline(name))

    def _label_baseline(self, name: str) -> FeatureScore:
        """Score what the coordinator knows of features without embeddings: by the label alone."""
        if name in self._baselines:
            return self._baselines[name]
        every = torch.arange(len(self.scenario.table(name)))
        labels = self._labels(name, every)
        rows = every[labels >= 0][: self._n_scored()]
        table = self.scenario.table(name).take(rows)
        one_hot = torch.nn.functional.one_hot(labels[rows]).float()
        self._baselines[name] = decoder_attack(one_hot, table, self._n_known(table))[0]
        return self._baselines[name]

    def _add(
        self, attack: str, attacker: str, target: str, score: FeatureScore, base: FeatureScore
    ) -> None:
        if score.r2 is not None:
            key = Key(attack, attacker, target, "R²")
            self.found[key] = Reached(score.r2, base.r2 or 0.0, 0.0)
        if score.accuracy is not None:
            key, chance = Key(attack, attacker, target, "accuracy"), score.majority or 0.0
            self.found[key] = Reached(score.accuracy, base.accuracy or chance, chance)
        key = Key(attack, attacker, target, "rows")
        self.found[key] = Reached(score.rows_recovered, base.rows_recovered, 0.0)

    def _labels(self, name: str, handles: Tensor) -> Tensor:
        return self.simulation.labels(name)[handles]

    def _own_features(self, name: str) -> RowVectors:
        """Return what a party has of each row: values, means for missing ones, and their marks."""
        table = self.scenario.table(name)
        hashed = [
            torch.nn.functional.one_hot(codes, feature.buckets).float()
            for codes, feature in zip(table.codes.T, table.layout.hashed, strict=True)
        ]
        parts = [fill_missing(table, torch.arange(len(table))).float(), *hashed]
        if table.layout.image is None:
            parts.append(table.observed.float())
        return RowVectors(torch.arange(len(table)), torch.cat(parts, 1))

    def _n_scored(self) -> int:
        return self.options.n_rows + self.options.max_rows

    def _n_known(self, table: PartyTable) -> int:
        return min(self.options.n_rows, len(table) // 2)


def _gradients(traffic: Traffic, first: bool) -> RowVectors:
    """Return the gradients of each row, those of embeddings and completions side by side.

    With `first`, those of the first step alone.
    """
    channels = [traffic.embedding_gradients, traffic.completion_gradients]
    if not (first and len(traffic.embedding_gradients.first)):
        channels.append(traffic.masked_gradients)
    parts = [each.first if first else each.mean for each in channels]
    parts = [each for each in parts if len(each)]
    if not parts:
        return RowVectors(torch.zeros(0, dtype=torch.long), torch.zeros(0, 1))
    handles = parts[0].handles
    columns = []
    for part in parts:
        place = torch.full((int(max(handles.max(), part.handles.max())) + 1,), -1)
        place[part.handles] = torch.arange(len(part))
        at = place[handles]
        columns.append(part.values[at.clamp(min=0)] * (at >= 0).unsqueeze(1))
    return RowVectors(handles, torch.cat(columns, 1))


def _labeled(vectors: RowVectors, y: Tensor) -> tuple[RowVectors, Tensor]:
    known = y >= 0
    return RowVectors(vectors.handles[known], vectors.values[known]), y[known]


def _limited(vectors: RowVectors, count: int) -> RowVectors:
    return RowVectors(vectors.handles[:count], vectors.values[:count])
