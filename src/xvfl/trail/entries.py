"""Entries of a trail: their fields, their hashes, and which events of the log become entries.

A trail is a file of JSON lines. Each entry has a number, the time, the event, its facts, who ran
the process, the name of the side, the SHA-256 hash of the entry before, and its own hash: that of
its JSON without the field `hash`, with sorted keys and without spaces.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

TRAIL = "trail.jsonl"
"""File of the trail in a state folder."""
NAMES = """
matched matching_refused unmatched_rows_claimed held_out encoder_installed version_allowed
upload_received upload_stored upload_exported upload_rejected upload_suspicious upload_expired
upload_suspended upload_resumed withdrawal withdrawn finished head_used head_retired
release_signed released release_revoked release_failed request_rejected assistance_refused
prediction_opened prediction_table_changed trail_differs
approval_requested request_approved request_declined
"""
EVENTS = frozenset(NAMES.split())
"""Events of the log that become entries."""
PEER_ENTRY = "peer_entry"
"""Entry: the newest entry of a peer, and the newest own entry that the peer has recorded."""
INCOMPLETE = "incomplete_line"
"""Entry: what is before it was cut short by a crash."""
START = 64 * "0"
"""Hash before the first entry."""
DIGITS = 32
"""Digits of a hash in an `EntryId`."""
FIELDS = ("number", "time", "event", "facts", "by", "side", "previous", "hash")


@dataclass(frozen=True)
class EntryId:
    """The number of an entry and the start of its hash; number 0 is an empty trail.

    Examples
    --------
    >>> EntryId.parse(str(EntryId(3, 32 * "a"))).number
    3
    """

    number: int = 0
    digest: str = START[:DIGITS]

    def __str__(self) -> str:
        return f"{self.number}-{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "EntryId | None":
        """Read an identifier; return None if the text is none."""
        number, _, digest = text.partition("-")
        is_number = number.isascii() and number.isdigit() and len(number) <= 12
        if not is_number or len(digest) != DIGITS or not set(digest) <= set("0123456789abcdef"):
            return None
        return cls(int(number), digest)


def id_of(entry: Mapping[str, Any]) -> EntryId:
    """Return the identifier of an entry."""
    return EntryId(entry["number"], entry["hash"][:DIGITS])


def make_entry(
    number: int, event: Mapping[str, Any], by: str, side: str, previous: str
) -> dict[str, Any]:
    """Make an entry of an event of the log, which has a time."""
    facts = {key: each for key, each in event.items() if key not in ("time", "event", "by")}
    entry = {
        "number": number,
        "time": event["time"],
        "event": event["event"],
        "facts": facts,
        "by": event.get("by", by),
        "side": side,
        "previous": previous,
    }
    # Tuples become lists, and keys texts, as in the file.
    entry = json.loads(_canonical(entry))
    return {**entry, "hash": entry_hash(entry)}


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Compute the hash of an entry from all its other fields."""
    content = {key: each for key, each in entry.items() if key != "hash"}
    return sha256(_canonical(content).encode()).hexdigest()


def write_entry(entry: Mapping[str, Any]) -> bytes:
    """Write an entry as a line."""
    return _canonical(entry).encode() + b"\n"


def parse_entry(line: bytes) -> dict[str, Any] | None:
    """Read an entry without the end of its line; return None for anything else.

    The hash is not checked.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or set(entry) != set(FIELDS):
        return None
    kinds = {"number": int, "facts": dict}
    if any(type(entry[name]) is not kinds.get(name, str) for name in FIELDS):
        return None
    return entry


def describe_incomplete(content: bytes) -> dict[str, Any]:
    """Return the facts of the entry that follows an incomplete line."""
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def _canonical(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), default=str)
