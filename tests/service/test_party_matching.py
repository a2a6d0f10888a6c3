"""What a party allows a coordinator in id matching, over real frames, with its log and files."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.matching.dishonest_coordinator import Claims, DishonestCoordinator
from tests.matching.session_helpers import RULE
from xvfl.errors import MatchingError
from xvfl.matching import CoordinatorSession, load_party_alignment
from xvfl.matching.oprf import Claim
from xvfl.matching.session_messages import MatchingMessage, MessageKind
from xvfl.service.align import match_parties
from xvfl.service.config import MatchingConfig
from xvfl.service.matched_table import MAX_SESSIONS, MatchedTable, matching_endpoint
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import ErrorReply, Match, Matched

IDS = [f"c{i}" for i in range(6)]
TABLE = pd.DataFrame({"x": 0.0}, index=IDS)
LABELED = ["c0", "c1", "x2", "x3", "x4", "x5"]
CONFIG = MatchingConfig(n_threads=1)
REQUEST_IDS = count(1)


class Party:
    """A party's endpoint, its log and its alignment file."""

    def __init__(self, folder: Path, again: bool = False) -> None:
        self.path = folder / "alignment.json"
        self.events: list[Mapping[str, Any]] = []
        log = self.events.append
        self.endpoint = matching_endpoint(TABLE, self.path, CONFIG, log, again)

    def exchange(self, body: bytes) -> bytes:
        frame = codec.encode(Match(next(REQUEST_IDS), body))
        reply = codec.decode(self.endpoint.handle(frame))
        if isinstance(reply, ErrorReply):
            raise MatchingError(reply.text)
        assert isinstance(reply, Matched)
        return reply.body

    def match(self) -> None:
        CoordinatorSession(LABELED, RULE, n_threads=1).match(self.exchange)

    def logged(self, event: str) -> list[Mapping[str, Any]]:
        return [each for each in self.events if each["event"] == event]


def test_claims_of_unmatched_rows_are_logged_with_their_number(tmp_path: Path) -> None:
    party = Party(tmp_path)

    def everything(matched: Claims) -> Claims:
        others = set(range(len(IDS))) - {each.position for each in matched}
        return [*matched, *(Claim(-1, position, bytes(16)) for position in others)]

    with pytest.raises(MatchingError, match="expected a proof of the id of each row"):
        DishonestCoordinator(party.exchange, LABELED, claim=everything).run()
    assert party.logged("unmatched_rows_claimed") == [
        {"event": "unmatched_rows_claimed", "claimed": 6, "unmatched": 4}
    ]
    assert not party.path.exists()


def repeat_a_claim(attacker: DishonestCoordinator) -> None:
    attacker.claim = lambda matched: [matched[0], matched[0]]


def send_fewer_points(attacker: DishonestCoordinator) -> None:
    attacker.blind = lambda points: points[1:]


def repeat_a_point(attacker: DishonestCoordinator) -> None:
    attacker.blind = lambda points: [points[0], *points[:-1]]


def send_points_twice(attacker: DishonestCoordinator) -> None:
    def blind(points: list[bytes]) -> list[bytes]:
        attacker.send(MessageKind.BLIND, points)
        return points

    attacker.blind = blind


def use_tags_as_proofs(attacker: DishonestCoordinator) -> None:
    def claim(matched: Claims) -> Claims:
        tags = attacker.replies[MessageKind.TAGS]
        return [each._replace(proof=tags[each.position]) for each in matched]

    attacker.claim = claim


@pytest.mark.parametrize(
    ("deviate", "reason"),
    [
        (repeat_a_claim, "MATCHED: expected each item once"),
        (send_fewer_points, "BLIND 0: expected 6 items, got 5"),
        (repeat_a_point, "BLIND: expected each item once"),
        (send_points_twice, "expected WANT_TAGS 0, got BLIND 0"),
        (use_tags_as_proofs, "MATCHED: expected a proof of the id of each row"),
    ],
)
def test_other_deviations_are_logged_and_give_no_alignment(
    deviate: Callable[[DishonestCoordinator], None], reason: str, tmp_path: Path
) -> None:
    party = Party(tmp_path)
    attacker = DishonestCoordinator(party.exchange, LABELED)
    deviate(attacker)
    with pytest.raises(MatchingError, match=reason):
        attacker.run()
    (rejected,) = party.logged("request_rejected")
    assert reason in rejected["reason"]
    assert not party.path.exists()


def test_an_honest_coordinator_matches_after_a_dishonest_one(tmp_path: Path) -> None:
    party = Party(tmp_path)
    attacker = DishonestCoordinator(party.exchange, LABELED)
    use_tags_as_proofs(attacker)
    with pytest.raises(MatchingError):
        attacker.run()
    party = Party(tmp_path)
    party.match()
    assert party.logged("matched") == [{"event": "matched", "rows": 2, "labeled_ids": 6}]
    assert sorted(load_party_alignment(party.path).match.rows) == [0, 1]


def test_a_second_match_needs_the_operator(tmp_path: Path) -> None:
    Party(tmp_path).match()
    party = Party(tmp_path)
    before = party.path.read_bytes()
    transport = InProcessTransport(party.endpoint.hello, party.endpoint.handle)
    with pytest.raises(MatchingError) as raised:
        match_parties({"p0": transport}, LABELED, ["y"], CONFIG, tmp_path / "c.json")
    assert str(raised.value).endswith("rejected the request: matching needs this party's operator")
    (refused,) = party.logged("matching_refused")
    assert "--again" in refused["reason"] and str(party.path) in refused["reason"]
    assert party.path.read_bytes() == before


def test_again_allows_one_match_with_a_new_session(tmp_path: Path) -> None:
    Party(tmp_path).match()
    first = load_party_alignment(tmp_path / "alignment.json").match.session
    party = Party(tmp_path, again=True)
    (tmp_path / "encoder.json").write_text("{}")
    party.match()
    assert load_party_alignment(party.path).match.session != first
    assert not (tmp_path / "encoder.json").exists(), "it was fitted on the rows of the old match"
    with pytest.raises(MatchingError, match="needs this party's operator"):
        party.match()


def test_deleting_the_alignment_allows_a_match(tmp_path: Path) -> None:
    party = Party(tmp_path)
    party.match()
    party.path.unlink()
    party.match()
    assert party.path.exists()


def test_unfinished_sessions_are_limited_across_restarts(tmp_path: Path) -> None:
    def start_session(body: bytes = RULE.encode()) -> bytes:
        hello = MatchingMessage(MessageKind.HELLO, bytes(16), len(LABELED), body)
        request = Match(next(REQUEST_IDS), hello.encode())
        service = MatchedTable(TABLE, tmp_path / "alignment.json", CONFIG, events.append)
        return service.reply(request).body

    events: list[Mapping[str, Any]] = []
    for _ in range(MAX_SESSIONS + 1):
        with pytest.raises(MatchingError, match="rule 'exact'"):
            start_session(b"exact")
    for _ in range(MAX_SESSIONS):
        start_session()
    with pytest.raises(MatchingError, match="^matching needs this party's operator$"):
        start_session()
    assert [each["event"] for each in events] == [
        *["matching_started"] * MAX_SESSIONS,
        "matching_refused",
    ]
    assert events[0]["labeled_ids"] == len(LABELED)
    assert "run `xvfl align CONFIG`" in events[-1]["reason"]
    Party(tmp_path).match()
    assert (tmp_path / "alignment.json").exists(), "the operator started matching"
