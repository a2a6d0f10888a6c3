"""Both sides together: the result is the plain intersection, and handles tell nothing more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.matching.session_helpers import RULE, RecordingTransport, matched_pairs, run_matching
from xvfl.errors import InputError, MatchingError
from xvfl.matching import RULES, CoordinatorSession, PartySession, session_messages
from xvfl.matching.party_session import CLAIM
from xvfl.matching.session_messages import MessageKind, decode

TEXTS = st.text(alphabet="aAbBßé１1 ", min_size=1, max_size=3) | st.text(min_size=1, max_size=3)
IDS = st.lists(TEXTS.filter(RULES[RULE]), unique_by=RULES[RULE], max_size=12)


def plain_intersection(labeled: list[str], ids: list[str]) -> set[tuple[int, int]]:
    """Return the pairs of rows with equal ids: the slow twin of the protocol, in clear."""
    fold = RULES[RULE]
    return {(i, j) for i, x in enumerate(labeled) for j, y in enumerate(ids) if fold(x) == fold(y)}


@given(labeled=IDS, ids=IDS)
def test_the_result_is_the_plain_intersection(labeled: list[str], ids: list[str]) -> None:
    found, kept, _ = run_matching(labeled, ids)
    plain = plain_intersection(labeled, ids)
    assert matched_pairs(found, kept) == plain
    assert (found.party_ids, kept.labeled_ids) == (len(ids), len(labeled))
    assert found.session == kept.session


def test_parts_join_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session_messages", "session_checks", "coordinator_session", "party_session"):
        monkeypatch.setattr(f"xvfl.matching.{module}.PART_SIZE", 4)
    for common in (0, 3, 4, 8):
        labeled = [f"c{i}" for i in range(10)]
        ids = [f"c{i}" for i in range(10 - common, 22)]
        found, kept, said = run_matching(labeled, ids)
        assert matched_pairs(found, kept) == {(i, i - 10 + common) for i in range(10 - common, 10)}
        kinds = [decode(each).kind for each in said]
        for kind, count in (
            (MessageKind.BLIND, 3),
            (MessageKind.TAGS, (12 + common + 3) // 4),
            (MessageKind.MATCHED, common // 4 + 1),
        ):
            assert kinds.count(kind) == count


def test_messages_stay_below_one_mebibyte() -> None:
    assert (
        session_messages.PART_SIZE * session_messages.POINT_BYTES + session_messages.HEADER.size
        < 2**20
    )


@pytest.mark.parametrize(
    ("labeled", "ids", "common"),
    [
        (["a"], [], 0),
        ([], ["a"], 0),
        ([], [], 0),
        (["a", "b"], ["c", "d"], 0),
        (["a", "b"], ["B", "a"], 2),
    ],
)
def test_empty_disjoint_and_equal_sets(labeled: list[str], ids: list[str], common: int) -> None:
    found, kept, _ = run_matching(labeled, ids)
    assert (found.handles >= 0).sum() == len(kept.rows) == common


def test_ids_that_meet_by_the_rule_stop_a_side_before_it_speaks() -> None:
    for side in (CoordinatorSession, PartySession):
        with pytest.raises(InputError, match="'a' and 'A '"):
            side(["a", "A "], RULE)
        side(["a", "A "], "exact")


def test_handles_and_places_follow_neither_order() -> None:
    ids = [f"c{i}" for i in range(200)]
    found, kept, said = run_matching(ids, ids)
    places = [
        np.frombuffer(m.body, CLAIM)["position"]
        for m in map(decode, said)
        if m.kind == MessageKind.MATCHED
    ]
    for order in (found.handles, kept.rows, np.concatenate(places)):
        # Of 200 random numbers, expected distance to their rank is 67; in order it is 0.
        assert abs(order.astype(int) - np.arange(200)).mean() > 40
        assert np.corrcoef(order, np.arange(200))[0, 1] ** 2 < 0.1


def test_two_rules_are_refused_by_the_party() -> None:
    with pytest.raises(MatchingError, match="rule 'exact', this party by 'folded'"):
        CoordinatorSession(["a"], "exact").match(PartySession(["a"], "folded").answer)


def test_more_ids_than_allowed_are_refused() -> None:
    with pytest.raises(MatchingError, match="the coordinator has 3 ids, but at most 2"):
        CoordinatorSession(["a", "b", "c"], RULE).match(PartySession(["a"], RULE, max_ids=2).answer)
    with pytest.raises(MatchingError, match="the party has 2 ids, but at most 1"):
        CoordinatorSession(["a"], RULE, max_ids=1).match(PartySession(["a", "b"], RULE).answer)


def test_a_session_is_used_once() -> None:
    wire = RecordingTransport(PartySession(["a"], RULE))
    coordinator = CoordinatorSession(["a"], RULE)
    coordinator.match(wire)
    with pytest.raises(MatchingError, match="has already run"):
        coordinator.match(wire)
    with pytest.raises(MatchingError, match="this session is over"):
        wire.party.answer(wire.transcript[0])
