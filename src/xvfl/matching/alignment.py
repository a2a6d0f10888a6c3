"""The alignment files: the result of matching, and a fingerprint of the table that was matched.

A JSON file, readable by its owner only. A table that has changed since matching is rejected,
because its rows may not be the matched ones. Ids are stored as one keyed digest, so that the file
does not reveal them.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xvfl.errors import InputError, RunError
from xvfl.matching.coordinator_session import CoordinatorMatch
from xvfl.matching.party_session import PartyMatch
from xvfl.system.files import atomic_write

FORMAT = 2
"""Version of the file's format."""
MAX_COLUMNS_SHOWN = 5
"""Columns named in an error message."""


@dataclass(frozen=True)
class TableFingerprint:
    """Columns and ids of a table at the time of matching."""

    columns: tuple[str, ...]
    """Sorted: the order of columns does not matter."""
    rows: int
    secret: str
    """Key of the digest."""
    ids: str
    """Keyed digest of the ids, in row order."""

    @classmethod
    def of(
        cls, columns: Iterable[str], ids: Sequence[str], secret: str | None = None
    ) -> "TableFingerprint":
        """Compute the fingerprint of a table."""
        key = secret or secrets.token_hex(32)
        return cls(tuple(sorted(columns)), len(ids), key, _digest(ids, key))

    def check(self, columns: Iterable[str], ids: Sequence[str], where: str) -> None:
        """Raise `InputError` if a table is not the matched one, with the differences."""
        now = TableFingerprint.of(columns, ids, self.secret)
        if now == self:
            return
        raise InputError(
            f"{where}: changed since its ids were matched: {', '.join(self._differences(now))}; "
            "restore the old table, or match again with `xvfl align --again`"
        )

    def _differences(self, now: "TableFingerprint") -> Iterable[str]:
        for label, names in (
            ("missing columns", set(self.columns) - set(now.columns)),
            ("new columns", set(now.columns) - set(self.columns)),
        ):
            if names:
                extra = len(names) - MAX_COLUMNS_SHOWN
                shown = ", ".join(map(repr, sorted(names)[:MAX_COLUMNS_SHOWN]))
                yield f"{label}: {shown}" + (f" and {extra} more" if extra > 0 else "")
        if now.rows != self.rows:
            yield f"{now.rows} rows instead of {self.rows}"
        elif now.ids != self.ids:
            yield "different ids, or a different order of ids"


@dataclass(frozen=True)
class PartyAlignment:
    """The party's side of a match: handle → row."""

    match: PartyMatch
    rule: str
    table: TableFingerprint

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        _write(
            path,
            {
                "side": "party",
                "rule": self.rule,
                "session": self.match.session.hex(),
                "labeled_ids": self.match.labeled_ids,
                "table": asdict(self.table),
                "rows": self.match.rows.tolist(),
            },
        )


@dataclass(frozen=True)
class CoordinatorAlignment:
    """The coordinator's side of all matches: labeled row → handle, for each party."""

    matches: Mapping[str, CoordinatorMatch]
    rule: str
    labels: TableFingerprint

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        parties = {
            name: {
                "session": match.session.hex(),
                "ids": match.party_ids,
                "handles": match.handles.tolist(),
            }
            for name, match in self.matches.items()
        }
        _write(
            path,
            {
                "side": "coordinator",
                "rule": self.rule,
                "labels": asdict(self.labels),
                "parties": parties,
            },
        )


def load_party_alignment(path: Path) -> PartyAlignment:
    """Read a party's alignment file."""
    data = _read(path, "party")
    try:
        rows = np.array(data["rows"], dtype=np.int64)
        session = bytes.fromhex(data["session"])
        match = PartyMatch(rows, data["labeled_ids"], session)
        alignment = PartyAlignment(match, data["rule"], _fingerprint(data["table"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    if len(set(rows.tolist())) < len(rows) or not _within(rows, 0, alignment.table.rows):
        raise _damaged(path, "rows out of range or duplicate")
    return alignment


def load_coordinator_alignment(path: Path) -> CoordinatorAlignment:
    """Read the coordinator's alignment file."""
    data = _read(path, "coordinator")
    try:
        matches = {
            name: CoordinatorMatch(
                np.array(each["handles"], dtype=np.int64),
                each["ids"],
                bytes.fromhex(each["session"]),
            )
            for name, each in data["parties"].items()
        }
        alignment = CoordinatorAlignment(matches, data["rule"], _fingerprint(data["labels"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    for name, match in matches.items():
        if len(match.handles) != alignment.labels.rows or not _within(
            match.handles, -1, match.party_ids
        ):
            raise _damaged(path, f"invalid handles of party {name!r}")
    return alignment


def _digest(ids: Sequence[str], secret: str) -> str:
    digest = hmac.new(bytes.fromhex(secret), digestmod=hashlib.sha256)
    for each in ids:
        data = each.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


def _fingerprint(data: Mapping[str, Any]) -> TableFingerprint:
    return TableFingerprint(**{**data, "columns": tuple(data["columns"])})


def _within(numbers: np.ndarray[Any, Any], low: int, high: int) -> bool:
    return bool(((numbers >= low) & (numbers < high)).all())


def _write(path: Path, data: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.touch(0o600)
            temporary.write_text(json.dumps({"format": FORMAT, **data}), encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); the previous file is unchanged"
        ) from error


def _read(path: Path, side: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path}: no such file; `xvfl align` creates it") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("side") != side:
        raise _damaged(path, f"not a {side}'s alignment of format {FORMAT}")
    return data


def _damaged(path: Path, reason: object) -> RunError:
    return RunError(f"{path}: cannot be used ({reason}); match again with `xvfl align --again`")
