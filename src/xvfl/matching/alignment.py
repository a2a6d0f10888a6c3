"""What a side keeps of matching: who is who, and what its table looked like.

A JSON file that its owner alone may read. A table that has changed since is refused: its rows may
not be those that were matched. The ids are kept as one digest with a secret of this file, so that
the file tells nobody which ids were in the table.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xvfl.errors import InputError, RunError
from xvfl.matching.coordinator_session import CoordinatorMatch
from xvfl.matching.party_session import PartyMatch

FORMAT = 1
SHOWN = 5
"""Columns that a message names."""


@dataclass(frozen=True)
class TableMark:
    """What a table looked like when it was matched."""

    columns: tuple[str, ...]
    """In alphabetical order: moving a column changes nothing."""
    rows: int
    secret: str
    ids: str
    """Digest of the ids, in the order of the rows, with the secret."""

    @classmethod
    def of(
        cls, columns: Iterable[str], ids: Sequence[str], secret: str | None = None
    ) -> "TableMark":
        """Mark a table as it is now."""
        key = secret or secrets.token_hex(32)
        return cls(tuple(sorted(columns)), len(ids), key, _digest(ids, key))

    def check(self, columns: Iterable[str], ids: Sequence[str], where: str) -> None:
        """Refuse a table that is no longer the one that was matched, and say what changed."""
        now = TableMark.of(columns, ids, self.secret)
        if now == self:
            return
        raise InputError(
            f"{where}: changed since its ids were matched: {', '.join(self._changes(now))}; "
            "put the old table back, or match again with `xvfl align`"
        )

    def _changes(self, now: "TableMark") -> Iterable[str]:
        for words, names in (
            ("columns gone", set(self.columns) - set(now.columns)),
            ("columns new", set(now.columns) - set(self.columns)),
        ):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                yield f"{words}: {', '.join(map(repr, sorted(names)[:SHOWN]))}{more}"
        if now.rows != self.rows:
            yield f"{now.rows} rows, then {self.rows}"
        elif now.ids != self.ids:
            yield "other ids, or the same in another order"


@dataclass(frozen=True)
class PartyAlignment:
    """A party's half: handle → row."""

    match: PartyMatch
    rule: str
    table: TableMark

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        _write(
            path,
            {
                "side": "party",
                "rule": self.rule,
                "session": self.match.session.hex(),
                "labelled_ids": self.match.labelled_ids,
                "table": asdict(self.table),
                "rows": self.match.rows.tolist(),
            },
        )


@dataclass(frozen=True)
class CoordinatorAlignment:
    """The coordinator's half: labelled row → handle, for each party."""

    matches: Mapping[str, CoordinatorMatch]
    rule: str
    labels: TableMark

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
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


def load_party(path: Path) -> PartyAlignment:
    """Read a party's half."""
    said = _read(path, "party")
    try:
        rows = np.array(said["rows"], dtype=np.int64)
        match = PartyMatch(rows, said["labelled_ids"], bytes.fromhex(said["session"]))
        found = PartyAlignment(match, said["rule"], _mark(said["table"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    if len(set(rows.tolist())) < len(rows) or not _within(rows, 0, found.table.rows):
        raise _damaged(path, "rows out of range or twice")
    return found


def load_coordinator(path: Path) -> CoordinatorAlignment:
    """Read the coordinator's half."""
    said = _read(path, "coordinator")
    try:
        matches = {
            name: CoordinatorMatch(
                np.array(each["handles"], dtype=np.int64),
                each["ids"],
                bytes.fromhex(each["session"]),
            )
            for name, each in said["parties"].items()
        }
        found = CoordinatorAlignment(matches, said["rule"], _mark(said["labels"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    for name, match in matches.items():
        if len(match.handles) != found.labels.rows or not _within(
            match.handles, -1, match.party_ids
        ):
            raise _damaged(path, f"handles of {name!r}")
    return found


def _digest(ids: Sequence[str], secret: str) -> str:
    made = hmac.new(bytes.fromhex(secret), digestmod=hashlib.sha256)
    for each in ids:
        data = each.encode(errors="surrogatepass")
        made.update(len(data).to_bytes(4, "little") + data)
    return made.hexdigest()


def _mark(said: Mapping[str, Any]) -> TableMark:
    return TableMark(**{**said, "columns": tuple(said["columns"])})


def _within(numbers: np.ndarray[Any, Any], least: int, end: int) -> bool:
    return bool(((numbers >= least) & (numbers < end)).all())


def _write(path: Path, said: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            json.dump({"format": FORMAT, **said}, opened)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path}: could not be written ({error.strerror}); what was there before is untouched"
        ) from error


def _read(path: Path, side: str) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path}: no such file; `xvfl align` makes it") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(said, dict) or said.get("format") != FORMAT or said.get("side") != side:
        raise _damaged(path, f"not a {side}'s alignment of format {FORMAT}")
    return said


def _damaged(path: Path, reason: object) -> RunError:
    return RunError(f"{path}: cannot be used ({reason}); match again with `xvfl align`")
