"""Configuration of one side of a federation: each names its own files and nothing of the others.

File names count from the folder of the configuration.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from xvfl.config import LossConfig, NetConfig, TableOptions, TrainConfig, build, read_config
from xvfl.data.frames import SQL
from xvfl.errors import ConfigError, unknown
from xvfl.wire.codec import LARGEST
from xvfl.wire.packing import Payload
from xvfl.wire.tls import Tls

ALIGNMENT = "alignment.json"
S = TypeVar("S", "CoordinatorFile", "PartyFile")


@dataclass(frozen=True)
class MatchingConfig:
    """How ids are matched; see the page on private id matching."""

    rule: Literal["folded", "exact"] = "folded"
    """What makes two ids the same; all sides must name the same rule."""
    most_ids: int = 10_000_000
    """Ids of the other side that are accepted: more may be guesses."""
    workers: int = 0
    """Threads; 0 = one a core."""

    def __post_init__(self) -> None:
        if self.most_ids < 1 or self.workers < 0:
            raise ConfigError(
                "matching: expected most_ids of at least 1 and workers of 0 or more, "
                f"got {self.most_ids} and {self.workers}"
            )


@dataclass(frozen=True)
class LabelsFile:
    """The coordinator's labels."""

    table: str
    """A .csv or .parquet file, or "sql:SELECT …" run by DuckDB."""
    id: str
    """The id column."""
    column: str
    """The label column."""


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
    """For an answer while nothing is known of the party, and the most that `factor` can come to."""
    parties: float = 600.0
    """For enough parties to be there, before giving up."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value <= 0:
                raise ConfigError(f"waiting.{each.name}: expected more than 0, got {value!r}")


@dataclass(frozen=True)
class CoordinatorFile:
    """What the coordinator's own configuration says."""

    listen: str
    """Address and port to listen on."""
    parties: tuple[str, ...]
    """The parties let in, by the names in their certificates."""
    tls: Tls
    """Certificate and key of this side, and the authority it trusts."""
    labels: LabelsFile
    """Where the labels are."""
    state: str = "state"
    """Folder for what must last: alignment, checkpoints, records, log, result."""
    revoked: str | None = None
    """The authority's revocation list."""
    matching: MatchingConfig = MatchingConfig()
    """How ids are matched."""
    own: OwnParty | None = None
    """The label holder's own features, if it has any."""
    minimum: int = 1
    """Parties needed to go on training when others are away."""
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
    warm_start: str | None = None
    """State folder of a finished run to take alignment, heads and the parties' weights from."""
    release: tuple[str, ...] = ()
    """Parties that get the head when training ends (D4); nobody by default."""
    health: str | None = None
    """HOST:PORT of the health and metrics page; none by default."""
    largest_message: int = LARGEST
    """Bytes of the largest message taken."""
    payload: Payload = "float32"
    """How embeddings, cues and gradients travel; all but float32 are smaller and rounded."""

    @property
    def everybody(self) -> tuple[str, ...]:
        """Every party's name, the coordinator's own first."""
        return ((self.own.name,) if self.own else ()) + self.parties

    def __post_init__(self) -> None:
        if not self.parties or len(set(self.everybody)) < len(self.everybody):
            raise ConfigError(f"parties: expected names, each once, got {list(self.everybody)}")
        if not 1 <= self.minimum <= len(self.everybody):
            raise ConfigError(
                f"minimum: expected 1 to {len(self.everybody)} parties, got {self.minimum}"
            )
        if self.checkpoint_steps < 1:
            raise ConfigError(f"checkpoint_steps: expected 1 or more, got {self.checkpoint_steps}")
        if self.payload != "float32" and self.train.optimiser == "page":
            raise ConfigError(
                f"payload: expected 'float32' with the optimiser 'page', got {self.payload!r}: it "
                "adds up small differences of gradients, which rounding would drown"
            )
        for name in self.release:
            if name not in self.everybody:
                raise ConfigError(f"release: {unknown('party', name, self.everybody)}")


@dataclass(frozen=True)
class PartyFile:
    """What a party's own configuration says."""

    coordinator: str
    """Address and port of the coordinator."""
    table: str
    """A .csv or .parquet file, an .npz of images, or "sql:SELECT …" run by DuckDB."""
    tls: Tls
    """Certificate and key of this side, and the authority it trusts."""
    id: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""
    state: str = "state"
    """Folder for what must last: alignment, encoder, checkpoints, log, bundle."""
    matching: MatchingConfig = MatchingConfig()
    """How ids are matched."""
    release_key: str | None = None
    """The coordinator's public key (release.pub), to check a released head with."""
    health: str | None = None
    """HOST:PORT of the health and metrics page; none by default."""
    give_up: float = 3600.0
    """Seconds without a coordinator before giving up."""
    largest_message: int = LARGEST
    """Bytes of the largest message taken."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where to compute."""


def read_side(
    path: Path, more: Mapping[str, Any] = MappingProxyType({})
) -> CoordinatorFile | PartyFile:
    """Read a side's configuration: `listen` makes it the coordinator's, `coordinator` a party's.

    `more` gives what the file may leave out.
    """
    try:
        data = {**more, **tomllib.loads(read_config(path))}
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    if ("listen" in data) == ("coordinator" in data):
        raise ConfigError(
            f"{path}: expected either `listen` (the coordinator's) or `coordinator` (a party's)"
        )
    base = path.resolve().parent
    if "listen" in data:
        side: CoordinatorFile = build(CoordinatorFile, data, str(path))
        labels = replace(side.labels, table=_table(side.labels.table, base))
        own = side.own and replace(side.own, table=_table(side.own.table, base))
        side = replace(side, labels=labels, own=own, revoked=_file(side.revoked, base))
        side = replace(side, warm_start=_file(side.warm_start, base))
        return _placed(side, base)
    party: PartyFile = build(PartyFile, data, str(path))
    key = _file(party.release_key, base)
    return _placed(replace(party, table=_table(party.table, base), release_key=key), base)


def _placed(side: S, base: Path) -> S:
    names = {each.name: _file(getattr(side.tls, each.name), base) for each in fields(Tls)}
    given: dict[str, Any] = {"tls": Tls(**names), "state": _file(side.state, base)}  # type: ignore[arg-type]
    return replace(side, **given)


def _file(name: str | None, base: Path) -> str | None:
    return None if name is None else str(base / name)


def _table(name: str, base: Path) -> str:
    return name if name.startswith(SQL) else str(base / name)
