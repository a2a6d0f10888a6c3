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
from xvfl.wire.payload import Payload
from xvfl.wire.tls import Tls

ALIGNMENT = "alignment.json"
S = TypeVar("S", "CoordinatorConfig", "PartyProcessConfig")


@dataclass(frozen=True)
class MatchingConfig:
    """How ids are matched; see the page on private id matching."""

    rule: Literal["folded", "exact"] = "folded"
    """What makes two ids the same; all sides must name the same rule."""
    max_ids: int = 10_000_000
    """Ids of the other side that are accepted: more may be guesses."""
    n_threads: int = 0
    """Threads; 0 = one a core."""

    def __post_init__(self) -> None:
        if self.max_ids < 1 or self.n_threads < 0:
            raise ConfigError(
                "matching: expected max_ids of at least 1 and workers of 0 or more, "
                f"got {self.max_ids} and {self.n_threads}"
            )


@dataclass(frozen=True)
class CoordinatorLabels:
    """The coordinator's labels."""

    table: str
    """A .csv or .parquet file, or "sql:SELECT …" run by DuckDB."""
    id_column: str
    """The id column."""
    column: str
    """The label column."""


@dataclass(frozen=True)
class LocalPartyConfig:
    """The label holder's own features: a party in the coordinator's process."""

    name: str
    """Its name among the parties."""
    table: str
    """A .csv or .parquet file, an .npz of images, or "sql:SELECT …" run by DuckDB."""
    id_column: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""


@dataclass(frozen=True)
class TimeoutConfig:
    """How long the coordinator waits for parties, in seconds."""

    min_answer: float = 5.0
    """For an answer, in any case; a broken line may come back in this time."""
    answer_factor: float = 10.0
    """Beyond that: so many times what the party usually needs."""
    max_answer: float = 60.0
    """For an answer while nothing is known of the party, and the most that `factor` can come to."""
    join: float = 600.0
    """For enough parties to be there, before giving up."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value <= 0:
                raise ConfigError(f"waiting.{each.name}: expected more than 0, got {value!r}")


@dataclass(frozen=True)
class CoordinatorConfig:
    """What the coordinator's own configuration says."""

    listen: str
    """Address and port to listen on."""
    parties: tuple[str, ...]
    """The parties let in, by the names in their certificates."""
    tls: Tls
    """Certificate and key of this side, and the authority it trusts."""
    labels: CoordinatorLabels
    """Where the labels are."""
    state_dir: str = "state"
    """Folder for what must last: alignment, checkpoints, records, log, result."""
    revocation_list: str | None = None
    """The authority's revocation list."""
    matching: MatchingConfig = MatchingConfig()
    """How ids are matched."""
    local_party: LocalPartyConfig | None = None
    """The label holder's own features, if it has any."""
    min_parties: int = 1
    """Parties needed to go on training when others are away."""
    test_fraction: float = 0.2
    """Share of the labelled rows held out for the final evaluation."""
    net: NetConfig = NetConfig()
    """Sizes of the nets."""
    loss: LossConfig = LossConfig()
    """Method and loss."""
    train: TrainConfig = TrainConfig()
    """Optimisation."""
    timeouts: TimeoutConfig = TimeoutConfig()
    """Deadlines."""
    checkpoint_interval: int = 50
    """Steps between common checkpoints: what a party that is killed can lose at the most."""
    warm_start: str | None = None
    """State folder of a finished run to take alignment, heads and the parties' weights from."""
    release_to: tuple[str, ...] = ()
    """Parties that get the head when training ends (D4); nobody by default."""
    status_address: str | None = None
    """HOST:PORT of the health and metrics page; none by default."""
    max_message_bytes: int = LARGEST
    """Bytes of the largest message taken."""
    payload: Payload = "float32"
    """How embeddings, cues and gradients travel; all but float32 are smaller and rounded."""

    @property
    def all_parties(self) -> tuple[str, ...]:
        """Every party's name, the coordinator's own first."""
        return ((self.local_party.name,) if self.local_party else ()) + self.parties

    def __post_init__(self) -> None:
        if not self.parties or len(set(self.all_parties)) < len(self.all_parties):
            raise ConfigError(f"parties: expected names, each once, got {list(self.all_parties)}")
        if not 1 <= self.min_parties <= len(self.all_parties):
            raise ConfigError(
                f"min_parties: expected 1 to {len(self.all_parties)} parties, got {self.min_parties}"
            )
        if self.checkpoint_interval < 1:
            raise ConfigError(
                f"checkpoint_interval: expected 1 or more, got {self.checkpoint_interval}"
            )
        if self.payload != "float32" and self.train.optimizer == "page":
            raise ConfigError(
                f"payload: expected 'float32' with the optimizer 'page', got {self.payload!r}: it "
                "adds up small differences of gradients, which rounding would drown"
            )
        for name in self.release_to:
            if name not in self.all_parties:
                raise ConfigError(f"release_to: {unknown('party', name, self.all_parties)}")


@dataclass(frozen=True)
class PartyProcessConfig:
    """What a party's own configuration says."""

    coordinator: str
    """Address and port of the coordinator."""
    table: str
    """A .csv or .parquet file, an .npz of images, or "sql:SELECT …" run by DuckDB."""
    tls: Tls
    """Certificate and key of this side, and the authority it trusts."""
    id_column: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""
    state_dir: str = "state"
    """Folder for what must last: alignment, encoder, checkpoints, log, bundle."""
    matching: MatchingConfig = MatchingConfig()
    """How ids are matched."""
    release_key: str | None = None
    """The coordinator's public key (release.pub), to check a released head with."""
    status_address: str | None = None
    """HOST:PORT of the health and metrics page; none by default."""
    reconnect_timeout: float = 3600.0
    """Seconds without a coordinator before giving up."""
    max_message_bytes: int = LARGEST
    """Bytes of the largest message taken."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where to compute."""


def read_service_config(
    path: Path, more: Mapping[str, Any] = MappingProxyType({})
) -> CoordinatorConfig | PartyProcessConfig:
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
        side: CoordinatorConfig = build(CoordinatorConfig, data, str(path))
        labels = replace(side.labels, table=_table(side.labels.table, base))
        own = side.local_party
        own = own and replace(own, table=_table(own.table, base))
        side = replace(
            side, labels=labels, local_party=own, revocation_list=_file(side.revocation_list, base)
        )
        side = replace(side, warm_start=_file(side.warm_start, base))
        return _placed(side, base)
    party: PartyProcessConfig = build(PartyProcessConfig, data, str(path))
    key = _file(party.release_key, base)
    return _placed(replace(party, table=_table(party.table, base), release_key=key), base)


def _placed(side: S, base: Path) -> S:
    names = {each.name: _file(getattr(side.tls, each.name), base) for each in fields(Tls)}
    given: dict[str, Any] = {"tls": Tls(**names), "state_dir": _file(side.state_dir, base)}  # type: ignore[arg-type]
    return replace(side, **given)


def _file(name: str | None, base: Path) -> str | None:
    return None if name is None else str(base / name)


def _table(name: str, base: Path) -> str:
    return name if name.startswith(SQL) else str(base / name)
