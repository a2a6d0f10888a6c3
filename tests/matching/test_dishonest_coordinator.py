"""Attacks of a dishonest coordinator get no row; each succeeds once its defense is removed."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from tests.matching.dishonest_coordinator import Claims, DishonestCoordinator
from tests.matching.session_helpers import RULE, run_matching
from xvfl.errors import MatchingError
from xvfl.matching import CoordinatorSession, PartySession, UnmatchedRowsError
from xvfl.matching.group import PROOF_BYTES, ThreadMap, tag_and_proof
from xvfl.matching.oprf import Claim, OprfClient
from xvfl.matching.session_messages import MatchingMessage, MessageKind, decode

IDS = [f"c{i}" for i in range(6)]
LABELED = ["c0", "c1", "x2", "x3", "x4", "x5"]
"""The coordinator knows two of the party's six ids."""
MATCHED_ROWS = [0, 1]


def attack(**deviations: Callable[..., object]) -> tuple[PartySession, DishonestCoordinator]:
    party = PartySession(IDS, RULE, n_threads=1)
    return party, DishonestCoordinator(party.answer, LABELED, **deviations)  # type: ignore[arg-type]


def unmatched(matched: Claims) -> Claims:
    """Claim the party's other ids, with random proofs."""
    known = {each.position for each in matched}
    others = (i for i in range(len(IDS)) if i not in known)
    return [Claim(-1, i, os.urandom(PROOF_BYTES)) for i in others]


CLAIMS: dict[str, Callable[[Claims], Claims]] = {
    "all": lambda matched: [*matched, *unmatched(matched)],
    "one more": lambda matched: [*matched, *unmatched(matched)[:1]],
    "only unmatched": unmatched,
}


def test_without_a_deviation_the_session_succeeds() -> None:
    party, coordinator = attack()
    coordinator.run()
    assert party.match is not None and sorted(party.match.rows) == MATCHED_ROWS


@pytest.mark.parametrize(("claim", "count"), [("all", 4), ("one more", 1), ("only unmatched", 4)])
def test_claims_of_unmatched_rows_are_rejected(claim: str, count: int) -> None:
    party, coordinator = attack(claim=CLAIMS[claim])
    with pytest.raises(UnmatchedRowsError, match="a proof of the id of each row") as raised:
        coordinator.run()
    assert raised.value.unmatched == count
    assert str(count) not in str(raised.value), "the coordinator does not learn the number"
    assert party.match is None
    with pytest.raises(MatchingError, match="this session is over"):
        coordinator.send_claims([])


@pytest.mark.parametrize("claim", CLAIMS)
def test_without_the_check_of_claims_the_party_believes_them(
    claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xvfl.matching.party_session.check_claims", lambda claims, proofs: None)
    party, coordinator = attack(claim=CLAIMS[claim])
    coordinator.run()
    assert party.match is not None and set(party.match.rows) - set(MATCHED_ROWS)


def test_proofs_of_other_rows_are_rejected() -> None:
    def swap(matched: Claims) -> Claims:
        first, second = matched
        return [first._replace(proof=second.proof), second._replace(proof=first.proof)]

    party, coordinator = attack(claim=swap)
    with pytest.raises(UnmatchedRowsError) as raised:
        coordinator.run()
    assert raised.value.unmatched == 2 and party.match is None


def test_repeated_claims_are_rejected() -> None:
    party, coordinator = attack(claim=lambda matched: [*matched, matched[0]])
    with pytest.raises(MatchingError, match="MATCHED: expected each item once"):
        coordinator.run()
    assert party.match is None


def test_more_claims_than_labeled_ids_are_rejected() -> None:
    party = PartySession(IDS, RULE, n_threads=1)
    with pytest.raises(MatchingError, match="at most 2 positions"):
        DishonestCoordinator(party.answer, IDS[:2], claim=CLAIMS["all"]).run()
    assert party.match is None


def test_rows_that_the_coordinator_leaves_out_get_no_handle() -> None:
    party, coordinator = attack(claim=lambda matched: matched[:1])
    coordinator.run()
    assert party.match is not None and len(party.match.rows) == 1


def claim_with_tags(coordinator: DishonestCoordinator) -> Callable[[Claims], Claims]:
    """Claim every row with its tag, which the party has sent, as the proof."""

    def claim(_: Claims) -> Claims:
        tags = coordinator.replies[MessageKind.TAGS]
        return [Claim(-1, position, tag) for position, tag in enumerate(tags)]

    return claim


def test_the_partys_tags_are_no_proofs() -> None:
    party, coordinator = attack()
    coordinator.claim = claim_with_tags(coordinator)
    with pytest.raises(UnmatchedRowsError) as raised:
        coordinator.run()
    assert raised.value.unmatched == len(IDS) and party.match is None


def test_if_tags_were_proofs_the_party_would_believe_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_part(text: str, point: bytes, domain: bytes) -> tuple[bytes, bytes]:
        tag, _ = tag_and_proof(text, point, domain)
        return tag, tag

    monkeypatch.setattr("xvfl.matching.oprf.tag_and_proof", same_part)
    party, coordinator = attack()
    coordinator.claim = claim_with_tags(coordinator)
    coordinator.run()
    assert party.match is not None and sorted(party.match.rows) == list(range(len(IDS)))


def claim_with_proofs_of_another_session(monkeypatch: pytest.MonkeyPatch) -> PartySession:
    """Claim every row of a party with the proofs of another session with the same ids.

    Lists keep their order, so the coordinator knows which id each position is.
    """
    monkeypatch.setattr("xvfl.matching.oprf.random_order", np.arange)
    _, known = attack()
    known.labeled = IDS
    known.run()
    party, coordinator = attack()
    coordinator.claim = lambda _: known.proved
    coordinator.run()
    return party


def test_proofs_of_another_session_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnmatchedRowsError) as raised:
        claim_with_proofs_of_another_session(monkeypatch)
    assert raised.value.unmatched == len(IDS)


def test_without_fresh_secrets_proofs_of_another_session_are_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scalar = bytes([7, *[0] * 31])
    monkeypatch.setattr("xvfl.matching.oprf.random_scalar", lambda: scalar)
    for module in ("party_session", "coordinator_session"):
        monkeypatch.setattr(f"xvfl.matching.{module}.hash_domain", lambda session, rule: b"")
    monkeypatch.setattr("tests.matching.dishonest_coordinator.hash_domain", lambda *_: b"")
    party = claim_with_proofs_of_another_session(monkeypatch)
    assert party.match is not None and sorted(party.match.rows) == list(range(len(IDS)))


def test_a_second_partys_evaluations_prove_nothing() -> None:
    """The coordinator lets a second party with the same ids evaluate the points of a session."""
    second, other = attack()
    other.run()
    party, coordinator = attack(
        blind=lambda _: other.replies[MessageKind.EVALUATED], claim=CLAIMS["all"]
    )
    with pytest.raises(UnmatchedRowsError):
        coordinator.run()
    assert party.match is None and second.match is not None


def test_echoed_points_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session_messages", "session_checks"):
        monkeypatch.setattr(f"xvfl.matching.{module}.PART_SIZE", 3)
    party = PartySession(IDS, RULE, n_threads=1)
    coordinator = DishonestCoordinator(party.answer, LABELED)
    coordinator.start()
    with ThreadMap(1) as threads:
        points = OprfClient(LABELED, b"", threads).blind(slice(3))
    evaluated = coordinator.send(MessageKind.BLIND, points)
    again = MatchingMessage(MessageKind.BLIND, coordinator.session, 1, b"".join(evaluated))
    with pytest.raises(MatchingError, match="BLIND: .* got an echo"):
        party.answer(again.encode())


def test_a_whole_session_cannot_be_replayed() -> None:
    _, _, said = run_matching(LABELED, IDS)
    party = PartySession(IDS, RULE, n_threads=1)
    party.answer(said[0])
    with pytest.raises(MatchingError, match="another session"):
        party.answer(said[2])
    assert party.match is None


def test_a_coordinator_rejects_echoes_of_a_party() -> None:
    party, blinded = PartySession(IDS, RULE, n_threads=1), list[bytes]()

    def exchange(data: bytes) -> bytes:
        if decode(data).kind == MessageKind.BLIND:
            blinded.append(decode(data).body)
        reply = decode(party.answer(data))
        if reply.kind == MessageKind.EVALUATED:
            reply = MatchingMessage(reply.kind, reply.session, reply.number, blinded[0])
        return reply.encode()

    with pytest.raises(MatchingError, match=r"EVALUATED: .* got an echo"):
        CoordinatorSession(LABELED, RULE, n_threads=1).match(exchange)
