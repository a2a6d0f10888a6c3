"""Verify a trail: its chain, and the entries that a peer has recorded of it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xvfl.errors import InputError
from xvfl.trail.entries import (
    INCOMPLETE,
    PEER_ENTRY,
    START,
    TRAIL,
    EntryId,
    describe_incomplete,
    entry_hash,
    id_of,
    parse_entry,
    write_entry,
)

Entry = dict[str, Any]
MAX_RECORDED = 100
"""Entries of a peer that `describe_newest` lists, the newest ones."""


@dataclass
class Verified:
    """What was found in a trail."""

    entries: list[Entry] = field(default_factory=list)
    """Those before the first problem."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a crash has left; not a problem."""

    @property
    def newest_id(self) -> EntryId:
        """The last entry."""
        return id_of(self.entries[-1]) if self.entries else EntryId()

    @property
    def side(self) -> str:
        """Name of the side; empty for a trail without entries."""
        return str(self.entries[0]["side"]) if self.entries else ""

    def has(self, wanted: EntryId) -> bool:
        """Return whether the trail has an entry with this number and hash."""
        if wanted.number > len(self.entries):
            return False
        return not wanted.number or id_of(self.entries[wanted.number - 1]) == wanted

    def recorded(self) -> dict[str, list[tuple[Entry, EntryId, EntryId]]]:
        """Return what was recorded of peers: entry, the peer's newest one, the own one it has."""
        found: dict[str, list[tuple[Entry, EntryId, EntryId]]] = {}
        for entry in self.entries:
            if entry["event"] == PEER_ENTRY:
                facts = entry["facts"]
                ids = [EntryId.parse(str(facts.get(key))) for key in ("entry", "acknowledged")]
                if ids[0] is not None and ids[1] is not None:
                    known = found.setdefault(str(facts.get("peer")), [])
                    known.append((entry, ids[0], ids[1]))
        return found


def read_trail(folder: Path) -> bytes:
    """Read a trail; raise `InputError` if there is none."""
    try:
        return (folder / TRAIL).read_bytes()
    except OSError as error:
        raise InputError(
            f"{folder}: expected a state folder with a readable {TRAIL} ({error.strerror})"
        ) from error


def verify_trail(content: bytes) -> Verified:
    """Verify the chain, up to the first entry that was changed, removed or moved.

    Parameters
    ----------
    content : bytes
        The file.

    Returns
    -------
    Verified
        Entries and the first problem.
    """
    *lines, rest = content.split(b"\n")
    found, previous, cut = Verified(), START, list[bytes]()
    if rest and parse_entry(rest) is not None:
        lines, rest = [*lines, rest], b""
        found.notes.append("the last line has no end: a crash; the next entry completes it")
    numbers = [(parse_entry(line) or {}).get("number") for line in lines]
    for index, line in enumerate(lines):
        expected = len(found.entries) + 1
        entry = parse_entry(line)
        if entry is None:
            cut.append(line)
            continue
        is_named = entry["event"] == INCOMPLETE
        is_cut = is_named and entry["facts"] == describe_incomplete(b"\n".join(cut))
        if cut and not is_cut:
            problem = f"entry {expected} was changed: this line is not an entry"
            found.problems.append(f"line {index + 1 - len(cut)}: {problem}")
            return found
        problem = _problem(entry, line, expected, previous, numbers[index + 1 :])
        if problem:
            found.problems.append(f"line {index + 1}: {problem}")
            return found
        if is_named:
            found.notes.append(f"entry {expected} names a line that a crash has cut short")
        found.entries.append(entry)
        previous, cut = entry["hash"], []
    if cut:
        found.problems.append(
            f"line {len(lines) + 1 - len(cut)}: entry {len(found.entries) + 1} was changed: "
            "this line is not an entry"
        )
    elif rest:
        found.notes.append("the last line is incomplete: a crash; the next entry names it")
    return found


def _problem(
    entry: Entry, line: bytes, expected: int, previous: str, later: list[int | None]
) -> str:
    """Say what is wrong with an entry in the place of entry `expected`; empty if nothing is."""
    number = entry["number"]
    if entry_hash(entry) != entry["hash"] or write_entry(entry) != line + b"\n":
        return f"entry {number} was changed: its hash does not fit its content"
    if number != expected:
        if number < expected:
            return f"entry {number} is repeated or moved: expected entry {expected}"
        if expected in later:
            return f"entry {expected} was moved: entry {number} is in its place"
        last = f" to {number - 1}" if number - 1 > expected else ""
        return f"entry {expected}{last} was removed: expected it, got entry {number}"
    if entry["previous"] != previous:
        return f"entry {number} does not continue entry {number - 1}: one of them was replaced"
    return ""


def compare_recorded(found: Verified) -> list[str]:
    """Compare a trail with its own record of the entries that peers have acknowledged."""
    problems = []
    for peer, records in found.recorded().items():
        for entry, _, acknowledged in records:
            if acknowledged.number >= entry["number"] or not found.has(acknowledged):
                problems.append(
                    f"{peer} has acknowledged entry {acknowledged.number} with another content "
                    f"(recorded in entry {entry['number']}): the trail was replaced"
                )
                break
    return problems


def compare_peer(found: Verified, peer: Mapping[str, Any]) -> list[str]:
    """Compare a trail with what a peer has recorded of it, and what it told with its trail.

    Parameters
    ----------
    found : Verified
        The own trail.
    peer : mapping
        What `describe_newest` returned at the peer.
    """
    return [*_missing_here(found, peer), *_missing_there(found, peer)]


def _missing_here(found: Verified, peer: Mapping[str, Any]) -> Iterator[str]:
    name, newest = peer["side"], EntryId()
    for each in peer["recorded"].get(found.side, []):
        entry = EntryId.parse(str(each["entry"])) or EntryId()
        newest = max(newest, entry, key=lambda one: one.number)
        if entry.number > len(found.entries):
            continue
        if not found.has(entry):
            yield (
                f"{name} recorded entry {entry.number} at {each['time']} with another content: "
                "the trail was replaced from there or before"
            )
            return
    if newest.number > len(found.entries):
        yield (
            f"the trail ends with entry {len(found.entries)}, but {name} has recorded entry "
            f"{newest.number}: entries were cut off its end"
        )


def _missing_there(found: Verified, peer: Mapping[str, Any]) -> Iterator[str]:
    records = found.recorded().get(peer["side"], [])
    told = EntryId.parse(str(peer["newest"])) or EntryId()
    for entry, recorded, _ in reversed(records):
        if recorded.number > told.number or (
            recorded.number == told.number and recorded != told and told.number
        ):
            yield (
                f"the trail of {peer['side']} ends with entry {told.number}, but it has told entry "
                f"{recorded.number} {recorded.digest} (entry {entry['number']}): its trail was cut "
                "or replaced"
            )
            return


def describe_newest(found: Verified) -> dict[str, Any]:
    """Return what a peer needs to verify its trail: the newest own entry, and those of peers."""
    recorded = {
        peer: [{"time": each["time"], "entry": str(entry)} for each, entry, _ in records]
        for peer, records in found.recorded().items()
    }
    newest = {peer: ids[-MAX_RECORDED:] for peer, ids in recorded.items()}
    return {"side": found.side, "newest": str(found.newest_id), "recorded": newest}


def read_newest(path: Path) -> dict[str, Any]:
    """Read a file of `xvfl trail export`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ids = [content["newest"], *(e["entry"] for es in content["recorded"].values() for e in es)]
        times = [each["time"] for es in content["recorded"].values() for each in es]
        valid = isinstance(content["side"], str) and all(isinstance(each, str) for each in times)
        if not valid or any(EntryId.parse(each) is None for each in ids):
            raise ValueError("wrong fields")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a file of `xvfl trail export` ({error})") from error
    return dict(content)
