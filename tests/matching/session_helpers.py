"""Matching sessions with a transcript."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from xvfl.matching import CoordinatorMatch, CoordinatorSession, PartyMatch, PartySession

RULE = "folded"


@dataclass
class RecordingTransport:
    """A transport that records every message."""

    party: PartySession
    transcript: list[bytes] = field(default_factory=list)

    def __call__(self, request: bytes) -> bytes:
        reply = self.party.answer(request)
        self.transcript += [request, reply]
        return reply


def run_matching(
    labeled: Sequence[str], ids: Sequence[str], rule: str = RULE
) -> tuple[CoordinatorMatch, PartyMatch, list[bytes]]:
    """Match two lists of ids; also return the transcript: requests and replies in turn."""
    transport = RecordingTransport(PartySession(ids, rule, n_threads=2))
    result = CoordinatorSession(labeled, rule, n_threads=2).match(transport)
    assert transport.party.match is not None
    return result, transport.party.match, transport.transcript


def matched_pairs(result: CoordinatorMatch, party_match: PartyMatch) -> set[tuple[int, int]]:
    """Return pairs of labeled row and party row with the same handle."""
    handles = result.handles[result.handles >= 0]
    assert sorted(handles) == list(range(len(party_match.rows))), (
        "handles are 0, 1, 2, …, each once"
    )
    return {
        (row, int(party_match.rows[h])) for row, h in enumerate(result.handles.tolist()) if h >= 0
    }
