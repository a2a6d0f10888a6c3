"""Run a session between two lists of ids and keep all that was said."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from xvfl.matching import CoordinatorMatch, CoordinatorSession, PartyMatch, PartySession

RULE = "folded"


@dataclass
class RecordingTransport:
    """A transport that remembers every message."""

    party: PartySession
    transcript: list[bytes] = field(default_factory=list)

    def __call__(self, request: bytes) -> bytes:
        reply = self.party.answer(request)
        self.transcript += [request, reply]
        return reply


def run_matching(
    labeled: Sequence[str], ids: Sequence[str], rule: str = RULE
) -> tuple[CoordinatorMatch, PartyMatch, list[bytes]]:
    """Match two lists; also give the transcript, requests and replies in turn."""
    wire = RecordingTransport(PartySession(ids, rule, n_threads=2))
    found = CoordinatorSession(labeled, rule, n_threads=2).match(wire)
    assert wire.party.match is not None
    return found, wire.party.match, wire.transcript


def matched_pairs(found: CoordinatorMatch, kept: PartyMatch) -> set[tuple[int, int]]:
    """Join the two sides' halves: labeled row and the party's row of the same handle."""
    handles = found.handles[found.handles >= 0]
    assert sorted(handles) == list(range(len(kept.rows))), "handles are 0, 1, 2, …, each once"
    return {(row, int(kept.rows[h])) for row, h in enumerate(found.handles.tolist()) if h >= 0}
