"""Messages that are not what the protocol says end the session with an error that names them."""

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.matching.session_helpers import RULE, RecordingTransport, run_matching
from xvfl.errors import MatchingError
from xvfl.matching import CoordinatorSession, PartySession
from xvfl.matching.session_messages import (
    HEADER,
    ITEM_BYTES,
    MatchingMessage,
    MessageKind,
    decode,
)

LABELED = ["a", "b", "c"]
IDS = ["b", "c", "d", "e"]
POINTS = [MessageKind.BLIND, MessageKind.EVALUATED]
LISTS = [*POINTS, MessageKind.TAGS]
NOT_A_POINT = b"\xff" * 32
ZERO = bytes(32)
Change = Callable[[MatchingMessage], MatchingMessage]


def spoilt(kind: MessageKind, change: Change) -> RecordingTransport:
    """Run a session in which one kind of message arrives changed."""
    party = PartySession(IDS, RULE, n_threads=1)

    def spoil(data: bytes) -> bytes:
        message = decode(data)
        return (change(message) if message.kind == kind else message).encode()

    wire = RecordingTransport(party)
    CoordinatorSession(LABELED, RULE, n_threads=1).match(lambda sent: spoil(wire(spoil(sent))))
    return wire


def body(make: Callable[[bytes], bytes]) -> Change:
    return lambda message: MatchingMessage(
        message.kind, message.session, message.number, make(message.body)
    )


def number(by: int) -> Change:
    return lambda message: MatchingMessage(
        message.kind, message.session, message.number + by, message.body
    )


def session(message: MatchingMessage) -> MatchingMessage:
    return MatchingMessage(message.kind, os.urandom(16), message.number, message.body)


@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize("point", [NOT_A_POINT, ZERO], ids=["not a point", "zero"])
def test_invalid_points_are_refused(kind: MessageKind, point: bytes) -> None:
    with pytest.raises(MatchingError, match=f"points of ristretto255 .* got {point.hex()}"):
        spoilt(kind, body(lambda data: point + data[32:]))


@pytest.mark.parametrize("kind", LISTS)
def test_too_few_or_too_many_items_are_refused(kind: MessageKind) -> None:
    width = ITEM_BYTES[kind]
    with pytest.raises(MatchingError, match=f"{kind.name} 0: expected . items, got"):
        spoilt(kind, body(lambda data: data[width:]))
    with pytest.raises(MatchingError, match=f"{kind.name} 0: expected . items, got"):
        spoilt(kind, body(lambda data: data + os.urandom(width)))
    with pytest.raises(MatchingError, match=f"{kind.name}: expected at most .* of {width} bytes"):
        spoilt(kind, body(lambda data: data[1:]))


@pytest.mark.parametrize("kind", [*LISTS, MessageKind.MATCHED])
def test_repeated_items_are_refused(kind: MessageKind) -> None:
    width = ITEM_BYTES[kind]
    with pytest.raises(MatchingError, match=f"{kind.name}: expected each item once"):
        spoilt(kind, body(lambda data: data[:width] + data[:width] + data[2 * width :]))


@pytest.mark.parametrize(
    "kind", [kind for kind in MessageKind if kind not in (MessageKind.HELLO, MessageKind.WELCOME)]
)
def test_messages_of_another_part_or_session_are_refused(kind: MessageKind) -> None:
    with pytest.raises(MatchingError, match=f"expected {kind.name} ., got {kind.name} "):
        spoilt(kind, number(1))
    with pytest.raises(MatchingError, match=f"{kind.name}: expected session .* another session"):
        spoilt(kind, session)


def test_a_changed_greeting_is_noticed() -> None:
    for kind, change in (
        (MessageKind.HELLO, session),
        (MessageKind.WELCOME, session),
        (MessageKind.HELLO, number(-1)),
    ):
        with pytest.raises(MatchingError, match="another session"):
            spoilt(kind, change)


@pytest.mark.parametrize("places", [[9], [0, 1, 2, 3]], ids=["beyond the list", "more than |X|"])
def test_places_out_of_range_are_refused(places: list[int]) -> None:
    data = b"".join(place.to_bytes(4, "little") + bytes(16) for place in places)
    with pytest.raises(MatchingError, match="MATCHED: expected at most 3 positions, each below 4"):
        spoilt(MessageKind.MATCHED, body(lambda _: data))


def test_a_replayed_message_is_refused_in_its_own_and_in_a_new_session() -> None:
    _, _, said = run_matching(LABELED, IDS)
    requests = said[::2]
    for replayed in requests[1:]:
        party = PartySession(IDS, RULE)
        party.answer(requests[0])
        with pytest.raises(MatchingError, match=r"expected|another session"):
            party.answer(replayed)
        with pytest.raises(MatchingError, match="this session is over"):
            party.answer(requests[1])
    wire = RecordingTransport(PartySession(IDS, RULE))

    def twice(request: bytes) -> bytes:
        if decode(request).kind == MessageKind.BLIND:
            wire(request)
        return wire(request)

    with pytest.raises(MatchingError, match="expected WANT_TAGS 0, got BLIND 0"):
        CoordinatorSession(LABELED, RULE).match(twice)
    assert wire.party.match is None


def test_recorded_replies_do_not_pass_for_new_ones() -> None:
    _, _, said = run_matching(LABELED, IDS)
    recorded = iter(said[1::2])
    with pytest.raises(MatchingError, match="WELCOME: expected session"):
        CoordinatorSession(LABELED, RULE).match(lambda request: next(recorded))


def test_other_versions_and_other_protocols_are_refused() -> None:
    hello = MatchingMessage(MessageKind.HELLO, bytes(16), 3, RULE.encode()).encode()
    for data, words in (
        (b"", "at least 24 bytes"),
        (hello[: HEADER.size - 1], "at least 24 bytes"),
        (b"XM\1" + hello[3:], "version 3, got b'XM' version 1; use the same version of xvfl"),
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "got b'GE'"),
        (hello[:3] + b"\x0e" + hello[4:], "kind from 1 to 8, got 14"),
        (hello + b"x" * 64, "HELLO: expected at most 64 items"),
    ):
        with pytest.raises(MatchingError, match=words):
            PartySession(IDS, RULE).answer(data)


@given(data=st.data())
def test_random_and_mutated_frames_raise_nothing_else(data: st.DataObject) -> None:
    _, _, said = run_matching(LABELED, IDS)
    frame = bytearray(data.draw(st.sampled_from(said) | st.binary(max_size=80)))
    for at in data.draw(st.lists(st.integers(0, max(len(frame) - 1, 0)), max_size=4)):
        frame[at : at + 1] = data.draw(st.binary(max_size=2))
    party = PartySession(IDS, RULE, n_threads=1)
    try:
        party.answer(bytes(frame))
    except MatchingError:
        pass
    else:
        assert decode(bytes(frame)).kind == MessageKind.HELLO
    assert party.match is None
