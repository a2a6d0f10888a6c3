"""A party's encoder in its state folder: trained once for a version, resumed after a stop.

Only the party's operator allows the next version.

encoder_version.json       the version, 1 before the operator has allowed another one, and its part
held_out.json              rows that the coordinator holds out; fixed for an alignment
encoders/N/encoder.json    how the columns are encoded
encoders/N/weights.safetensors    the trained encoder of version N
encoders/N/cells.safetensors      fills cells of the party's table from its own columns
encoders/N/checkpoint.safetensors    the state of its training, until it is finished
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xvfl.config import EncoderConfig, LossConfig, NetConfig, PrivacyConfig, build
from xvfl.data.encoder import encoder_from_dict
from xvfl.data.sources import Encoder, encode, fit_encoder, take_rows
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import ConfigError, RunError, WireError
from xvfl.federation.message_checks import check_handles
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.privacy_accounting import composed_epsilon, state_privacy
from xvfl.federation.request_limits import RequestLimits
from xvfl.federation.upload.encoder_net import build_encoder, encoder_net_config, encoder_privacy
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.model.cell_filler import CellFiller, load_own_cells, save_own_cells
from xvfl.model.encoder_runs import train_encoder
from xvfl.model.fitting import choose_device
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.rows import FULL, PartyTable, choose_full_threshold, observation_levels
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.secret import load_secret, run_seed
from xvfl.service.uploads.upload_record import LEARNED, UploadRecord
from xvfl.service.uploads.withdrawn import Withdrawn
from xvfl.system.report import Report, no_report
from xvfl.training.loop import Record

HELD_OUT, VERSION = "held_out.json", "encoder_version.json"
MAX_HELD_OUT, MIN_LIMITED = 0.75, 40
"""Largest share of the matched rows that a coordinator can hold out, of this many rows or more. It
chooses the list, and could otherwise have the encoder trained on a few rows of its choice."""
ENCODER = "encoder.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class PartyParts:
    """What a party contributes to its model."""

    encoder: Encoder
    method: str
    net: NetConfig
    privacy: PrivacyConfig
    full_threshold: float
    weights: Mapping[str, Tensor]
    cells: CellFiller | None = None
    """Fills cells from the party's own columns."""


class PartyEncoder:
    """One version of a party's encoder.

    Parameters
    ----------
    inputs
        The party's whole table, its state folder, and the configuration of the encoder. It learns
        from all rows but those held out.
    version
        Number of the version, from 1.
    part
        Number of the part of its upload, from 0.
    """

    def __init__(self, inputs: PartyInputs, version: int = 1, part: int = 0) -> None:
        self.name, self.version, self.config = inputs.name, version, inputs.config.encoder
        self.part = part
        self._source, self._options = inputs.source, inputs.config.options
        self._device = choose_device(inputs.config.device)
        self._folder = RunDir(inputs.folder / f"encoders/{version}").create()
        secret, run = load_secret(inputs.folder), f"encoder {version}"
        self._seeds = [run_seed(secret, run)]
        # A row that is released again has other noise, also with the same content.
        self._noise_seeds = [run_seed(secret, f"{run} part {part}")] if part else self._seeds
        self.full_threshold = 1.0
        self.privacy = state_privacy(inputs.config.encoder)
        """What differential privacy guarantees; None without it."""

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return encoder_net_config(self.config).embedding_dim

    @property
    def noise(self) -> dict[str, float]:
        """What the manifest of the upload states about differential privacy."""
        names = ("epsilon", "delta", "noise_std") if self.privacy is not None else ()
        return {name: getattr(self.privacy, name) for name in names}

    def train(self, rows: Tensor, stop: Event, report: Report = no_report) -> PartyWorker | None:
        """Train on these rows of the table until the last epoch; None if `stop` is set before.

        Return the trained encoder with all rows of the table. An interrupted training continues
        from its last checkpoint.
        """
        table, net = self._load(rows)
        if not self._folder.has(WEIGHTS):
            if self.config.epsilon is None and not self._train(net, table, rows, stop, report):
                return None
            if self.config.epsilon is None:
                encoder = encoder_from_dict(self._folder.read_json(ENCODER))
                learned = table.take(rows.to(table.device))
                save_own_cells(self._folder, self.name, encoder, learned, self._seeds[0])
            about = {"full_threshold": self.full_threshold, "config": asdict(self.config)}
            self._folder.save_tensors(WEIGHTS, net.state_dict(), about)
            (self._folder / CHECKPOINT).unlink(missing_ok=True)
        if self.privacy is not None:
            return PrivateWorker(self.name, net, table, self._noise_seeds, self.privacy.noise_std)
        return PartyWorker(self.name, net, table, self._seeds)

    def _train(
        self, net: PartyNet, table: PartyTable, rows: Tensor, stop: Event, report: Report
    ) -> bool:
        handles, epochs = rows.to(self._device), self.config.epochs
        training = EncoderTraining(self.name, net, table, handles, self.config, self._seeds)
        per_epoch = training.trainer.batches_per_epoch

        def show(record: Record) -> None:
            done = record.progress.epoch + record.progress.batch / per_epoch
            report(f"epoch {record.progress.epoch}", done / epochs)

        return train_encoder(training, self._folder, stop, show)

    @property
    def digest(self) -> str:
        """Digest of the trained weights."""
        data = (self._folder / WEIGHTS).read_bytes()
        return blake2b(data, digest_size=16).hexdigest()

    def row_status(self, observed: Tensor) -> Tensor:
        """Grade rows by their observed features; with differential privacy all are full. (n,)"""
        levels = observation_levels(observed, self.full_threshold)
        return levels if self.privacy is None else torch.full_like(levels, FULL)

    def _load(self, rows: Tensor) -> tuple[PartyTable, PartyNet]:
        """Encode the table and build the net; fit the encoding on `rows` the first time."""
        if not self._folder.has(ENCODER):
            learned = take_rows(self._source, np.asarray(rows))
            fitted = fit_encoder([learned], self._options, self.name)
            self._folder.write_json(ENCODER, fitted.to_dict())
        encoder = encoder_from_dict(self._folder.read_json(ENCODER))
        table = to_party_table(encoder.layout, encode(encoder, self._source))
        net = build_encoder(self.name, encoder.layout, self.config, self._seeds)
        if self._folder.has(WEIGHTS):
            weights, about = self._folder.load_tensors(WEIGHTS)
            net.load_state_dict(weights)
            self.full_threshold = float(about["full_threshold"])
        else:
            observed, given = table.observed[rows], self.config.full_threshold
            self.full_threshold = given or choose_full_threshold(observed)
        return table.to(self._device), net.to(self._device)


def upload_record(folder: RunDir, version: int) -> UploadRecord:
    """Open the record of the uploads of a version."""
    return UploadRecord(RunDir(folder / f"encoders/{version}").create(), load_secret(folder))


def is_trained(folder: RunDir, version: int) -> bool:
    """Return whether a version of the encoder is trained."""
    return folder.has(f"encoders/{version}/{WEIGHTS}")


def check_epsilon(
    folder: RunDir, config: EncoderConfig, version: int, limits: RequestLimits, releases: int = 0
) -> None:
    """Reject an encoder with which the ε of all versions together exceeds the party's limit.

    A trained version keeps the ε with which its rows were released. `releases` is the number of
    releases of the row with most of them, in this version; by default, the recorded one.
    """
    configs = {version: config}
    for path in (folder / "encoders").glob(f"*/{WEIGHTS}"):
        _, about = RunDir(path.parent).load_tensors(WEIGHTS)
        configs[int(path.parent.name)] = build(EncoderConfig, about["config"], str(path))
    before = configs[version]
    if (before.epsilon, before.delta) != (config.epsilon, config.delta):
        raise ConfigError(
            f"encoder.epsilon, encoder.delta: expected {before.epsilon} and {before.delta} as in "
            f"version {version}, whose rows are released, got {config.epsilon} and {config.delta}; "
            "restore them, or allow another version with `xvfl upload new-version`"
        )
    if limits.max_epsilon is None:
        return
    counts = {each: upload_record(folder, each).most_releases for each in configs}
    counts[version] = max(counts[version], releases)
    statements = {each: state_privacy(made) for each, made in configs.items()}
    spent = [(each.noise_multiplier, counts[n]) for n, each in statements.items() if each]
    private = len(spent) == len(statements)
    total = composed_epsilon(spent, limits.max_delta) if private else math.inf
    if total > limits.max_epsilon:
        raise ConfigError(
            f"encoder.epsilon: all versions of the encoder together have ε = {total:.3g} (at most "
            f"{max(counts.values())} releases of a row in a version), and limits.max_epsilon is "
            f"{limits.max_epsilon:g} (δ = {limits.max_delta:g}); lower encoder.epsilon, or raise "
            "the limit"
        )


def load_parts(folder: RunDir, version: int) -> PartyParts:
    """Load a trained version of the encoder."""
    stored = RunDir(folder / f"encoders/{version}")
    if not is_trained(folder, version):
        raise WireError(f"this party has no trained encoder of version {version}")
    weights, about = stored.load_tensors(WEIGHTS)
    config: EncoderConfig = build(EncoderConfig, about["config"], str(stored / WEIGHTS))
    return PartyParts(
        encoder_from_dict(stored.read_json(ENCODER)),
        LossConfig().method,
        encoder_net_config(config),
        encoder_privacy(config),
        float(about["full_threshold"]),
        weights,
        load_own_cells(stored),
    )


def load_held_out(folder: RunDir, session: str) -> list[int] | None:
    """Return the rows that a party must not learn from; None before the coordinator named them."""
    stored: dict[str, Any] = folder.read_json(HELD_OUT) if folder.has(HELD_OUT) else {}
    return list(stored["handles"]) if stored.get("session") == session else None


def store_held_out(folder: RunDir, session: str, handles: Tensor, n_rows: int) -> str:
    """Store the rows, of `n_rows` matched ones, not to learn from; return the digest of a new list.

    Reject a list that is not sorted, repeats rows, leaves too few to learn from, or differs from
    the one before for the same alignment.
    """
    check_handles(handles, n_rows)
    if len(handles) and (int(handles[0]) < 0 or bool((handles.diff() <= 0).any())):
        raise WireError("HeldOut: expected rows in ascending order, each at most once")
    if n_rows >= MIN_LIMITED and len(handles) > MAX_HELD_OUT * n_rows:
        raise WireError(
            f"HeldOut: this party allows up to {MAX_HELD_OUT:.0%} of the {n_rows} matched "
            f"rows, got {len(handles)}; lower `test_fraction` or `validation_fraction`"
        )
    stored = load_held_out(folder, session)
    if stored is None:
        folder.write_json(HELD_OUT, {"session": session, "handles": handles.tolist()})
        return blake2b(handles.numpy().tobytes(), digest_size=16).hexdigest()
    if stored != handles.tolist():
        raise WireError(
            "HeldOut: this party has another list of held-out rows for this alignment; its encoder "
            "may have learned from rows of the new list"
        )
    return ""


def current_version(folder: RunDir) -> int:
    """Return the version that a party's operator has allowed."""
    return int(folder.read_json(VERSION)["version"]) if folder.has(VERSION) else 1


def current_part(folder: RunDir) -> int:
    """Return the part of this version that a party's operator has allowed."""
    return int(folder.read_json(VERSION).get("part", 0)) if folder.has(VERSION) else 0


def allow_next_version(folder: RunDir, keep_encoder: bool = False) -> int:
    """Allow the next version, from the next start of the party; return its number.

    Earlier encoders stay in the folder: heads that were trained on their uploads need them to
    predict. With `keep_encoder`, the next version has the encoder of the current one, and all
    matched rows are embedded and uploaded again.
    """
    version = current_version(folder)
    needed = keep_encoder or not Withdrawn(folder).covers(version)
    if needed and not is_trained(folder, version):
        raise RunError(
            f"{folder.path}: version {version} is not trained yet; start the party, or run "
            "`xvfl upload export`, first"
        )
    if keep_encoder:
        for name in (ENCODER, WEIGHTS, LEARNED):
            if (path := folder / f"encoders/{version}/{name}").is_file():
                folder.write_bytes(f"encoders/{version + 1}/{name}", path.read_bytes())
    folder.write_json(VERSION, {"version": version + 1})
    return version + 1


def allow_new_rows(folder: RunDir) -> str:
    """Allow the next part, from the next start of the party; return version and part."""
    version, part = current_version(folder), current_part(folder) + 1
    if not upload_record(folder, version).stored:
        raise RunError(
            f"{folder.path}: the upload of version {version} is not stored yet; start the party, "
            "or run `xvfl upload export`, first; if its rows have changed since, run `xvfl upload "
            "new-version --keep-encoder`"
        )
    folder.write_json(VERSION, {"version": version, "part": part})
    return f"{version}.{part}"
