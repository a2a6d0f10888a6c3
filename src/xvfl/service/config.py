"""Each side's configuration; it names that side's own files alone.

File names count from the configuration's own folder.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xvfl.config import (
    LabelsConfig,
    LossConfig,
    NetConfig,
    TableOptions,
    TrainConfig,
    build,
    read_config,
)
from xvfl.errors import ConfigError
from xvfl.wire.codec import LARGEST
from xvfl.wire.tls import Tls


@dataclass(frozen=True)
class TlsConfig:
    """Certificates, PEM; `xvfl certs` makes them for trials."""

    authority: str
    """Certificate of the authority that both sides trust."""
    certificate: str
    """This side's certificate; its common name says who it is."""
    key: str
    """Its private key."""
    revoked: str | None = None
    """The authority's revocation list; read again when it changes. For the coordinator."""

    @property
    def tls(self) -> Tls:
        """What a line needs."""
        return Tls(self.authority, self.certificate, self.key)


@dataclass(frozen=True)
class OwnParty:
    """The label holder's own features: a party in the coordinator's process."""

    name: str
    """Its name among the parties."""
    table: str
    """A .csv or .parquet file, an .npz of images, or "sql:SELECT …" run by DuckDB."""
    id: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""


@dataclass(frozen=True)
class Waiting:
    """How long the coordinator waits for parties, in seconds."""

    least: float = 5.0
    """For an answer, in any case; a broken line may come back in this time."""
    factor: float = 10.0
    """Beyond that: so many times what the party usually needs."""
    first: float = 60.0
    """For an answer while nothing is known of the party."""
    parties: float = 600.0
    """For enough parties to be there, before giving up."""

    def __post_init__(self) -> None:
        for name in ("least", "factor", "first", "parties"):
            value = getattr(self, name)
            if value <= 0:
                raise ConfigError(f"waiting.{name}: expected more than 0, got {value!r}")


@dataclass(frozen=True)
class CoordinatorConfig:
    """The side that holds the labels and the heads."""

    listen: str
    """Address to listen on, HOST:PORT; the one port that must be open."""
    parties: tuple[str, ...]
    """Who may take part: the names in their certificates."""
    labels: LabelsConfig
    """Where the labels are: a table of their own."""
    tls: TlsConfig
    """Certificates."""
    folder: str = "coordinator"
    """Where the run is kept: alignment, checkpoint, records, log, result."""
    own: OwnParty | None = None
    """The label holder's own features, if it has any."""
    minimum: int = 1
    """Parties needed to go on training when others are away."""
    rule: str = "folded"
    """How ids are normalised before they are matched; the same on every side."""
    test: float = 0.2
    """Share of the labelled rows held out for the final evaluation."""
    net: NetConfig = NetConfig()
    """Sizes of the nets."""
    loss: LossConfig = LossConfig()
    """Method and loss."""
    train: TrainConfig = TrainConfig()
    """Optimisation."""
    waiting: Waiting = Waiting()
    """Deadlines."""
    checkpoint_steps: int = 50
    """Steps between common checkpoints: what a party that is killed can lose at the most."""
    release: tuple[str, ...] = ()
    """Parties that get the head when training ends (D4); nobody by default."""
    health: str | None = None
    """HOST:PORT of the health and metrics page; none by default."""
    largest_message: int = LARGEST
    """Bytes of the largest message taken."""

    def __post_init__(self) -> None:
        if len(self.everybody) < 2 or len(set(self.everybody)) < len(self.everybody):
            raise ConfigError(
                f"parties: expected two or more different names, got {list(self.everybody)}"
            )
        if self.labels.table is None:
            raise ConfigError("labels.table: expected the labels in a table of their own")
        if not 1 <= self.minimum <= len(self.everybody):
            raise ConfigError(
                f"minimum: expected 1 to {len(self.everybody)} parties, got {self.minimum}"
            )
        if self.checkpoint_steps < 1:
            raise ConfigError(f"checkpoint_steps: expected 1 or more, got {self.checkpoint_steps}")
        for name in self.release:
            if name not in self.everybody:
                raise ConfigError(f"release: {name!r} is not among the parties {self.everybody}")

    @property
    def everybody(self) -> tuple[str, ...]:
        """Every party's name, the coordinator's own first."""
        return ((self.own.name,) if self.own else ()) + self.parties


@dataclass(frozen=True)
class PartyServiceConfig:
    """One party: its table, its identity, where the coordinator is."""

    name: str
    """Its name; the common name of its certificate."""
    coordinator: str
    """Address of the coordinator, HOST:PORT; the party dials out and listens nowhere."""
    table: str
    """A .csv or .parquet file, an .npz of images, or "sql:SELECT …" run by DuckDB."""
    tls: TlsConfig
    """Certificates."""
    id: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""
    folder: str = "party"
    """Where its part is kept: alignment, encoder, checkpoints, log, bundle."""
    rule: str = "folded"
    """How ids are normalised before they are matched; the same on every side."""
    most_ids: int = 10_000_000
    """Labelled ids the coordinator may bring to matching; more may be guesses."""
    release_key: str | None = None
    """The coordinator's public key (release.pub), to check a released head with."""
    health: str | None = None
    """HOST:PORT of the health and metrics page; none by default."""
    give_up: float = 3600.0
    """Seconds without a coordinator before giving up."""
    largest_message: int = LARGEST
    """Bytes of the largest message taken."""
    device: str = field(default="cpu")
    """Where to compute: auto, cpu or cuda."""


def read_coordinator(path: Path) -> CoordinatorConfig:
    """Read a coordinator's configuration."""
    config: CoordinatorConfig = build(CoordinatorConfig, _toml(path), str(path))
    return config


def read_party(path: Path) -> PartyServiceConfig:
    """Read a party's configuration."""
    config: PartyServiceConfig = build(PartyServiceConfig, _toml(path), str(path))
    return config


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_config(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
