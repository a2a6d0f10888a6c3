"""Configuration of one side of a federation: each names its own files and nothing of the others.

File names count from the folder of the configuration.
"""

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from xvfl.config import TableOptions, build, read_config
from xvfl.data.frames import SQL
from xvfl.errors import ConfigError
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
    """Folder for what must last: alignment, checkpoints."""
    revoked: str | None = None
    """The authority's revocation list."""
    matching: MatchingConfig = MatchingConfig()
    """How ids are matched."""

    def __post_init__(self) -> None:
        if not self.parties or len(set(self.parties)) < len(self.parties):
            raise ConfigError(f"parties: expected names, each once, got {list(self.parties)}")


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
    """Folder for what must last: alignment, checkpoints."""
    matching: MatchingConfig = MatchingConfig()
    """How ids are matched."""


def read_side(path: Path) -> CoordinatorFile | PartyFile:
    """Read a side's configuration: `listen` makes it the coordinator's, `coordinator` a party's."""
    try:
        data = tomllib.loads(read_config(path))
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
        side = replace(side, labels=labels, revoked=_file(side.revoked, base))
        return _placed(side, base)
    party: PartyFile = build(PartyFile, data, str(path))
    return _placed(replace(party, table=_table(party.table, base)), base)


def _placed(side: S, base: Path) -> S:
    names = {each.name: _file(getattr(side.tls, each.name), base) for each in fields(Tls)}
    given: dict[str, Any] = {"tls": Tls(**names), "state": _file(side.state, base)}  # type: ignore[arg-type]
    return replace(side, **given)


def _file(name: str | None, base: Path) -> str | None:
    return None if name is None else str(base / name)


def _table(name: str, base: Path) -> str:
    return name if name.startswith(SQL) else str(base / name)
