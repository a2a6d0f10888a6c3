"""What crosses the wire: no id, no plain hash of one, and nothing that comes twice."""

import base64
import hashlib
from collections.abc import Iterable

import pytest

from tests.matching.session_helpers import RULE, run_matching
from xvfl.matching import RULES
from xvfl.matching.group import hash_to_point, make_tag
from xvfl.matching.session_messages import MessageKind, decode

LABELED = [f"Customer {i:04d}" for i in range(40)]
IDS = [f"customer  {i:04d} " for i in range(25, 75)]
WINDOW = 8
"""Bytes that agree by chance once in 2⁶⁴."""
HASHES = [name for name in hashlib.algorithms_guaranteed if not name.startswith("shake")]


def traces(text: str) -> set[bytes]:
    """Give every form in which an id could show: itself, its hashes, its unblinded point."""
    found = set()
    for form in {text, text.strip(), text.lower(), *(rule(text) for rule in RULES.values())}:
        salted = [f"xvfl id 1\0{rule}\0{form}".encode() for rule in RULES]
        plain = [form.encode(), form.encode("utf-16-le"), *salted]
        points = [hash_to_point(form, rule) for rule in RULES]
        tags = [make_tag(form, point) for point in (*points, bytes(32))]
        hashes = [hashlib.new(name, each).digest() for name in HASHES for each in plain]
        found |= {*plain, *points, *tags, *hashes}
    return found | {each.hex().encode() for each in found} | set(map(base64.b64encode, found))


def windows(data: bytes) -> set[bytes]:
    return {data[at : at + WINDOW] for at in range(len(data) - WINDOW + 1)}


def leaks(said: Iterable[bytes], ids: Iterable[str]) -> set[str]:
    """Name the ids of which any eight bytes of any form are in any message."""
    seen = set().union(*map(windows, said))
    return {each for each in ids if any(windows(trace) & seen for trace in traces(each))}


def test_no_id_and_no_plain_hash_is_in_any_message() -> None:
    found, kept, said = run_matching(LABELED, IDS)
    assert len(kept.rows) == 15 and (found.handles >= 0).sum() == 15
    assert leaks(said, [*LABELED, *IDS]) == set()


@pytest.mark.parametrize("leaky", ["point", "sha256", "id"])
def test_the_search_finds_what_leaks(leaky: str) -> None:
    _, _, said = run_matching(LABELED, IDS)
    text = RULES[RULE](IDS[3])
    added = {
        "point": hash_to_point(text, RULE),
        "sha256": b"\1\2" + hashlib.sha256(text.encode()).digest()[4:20],
        "id": b"\0" + text.encode(),
    }
    assert IDS[3] in leaks([*said, added[leaky]], IDS)


def test_without_blinding_the_search_finds_every_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for side in ("coordinator", "party"):
        monkeypatch.setattr(f"xvfl.matching.{side}_session.multiply", lambda scalar, point: point)
    _, _, said = run_matching(LABELED, IDS)
    assert leaks(said, [*LABELED, *IDS]) == {*LABELED, *IDS}


def test_nothing_but_points_tags_places_and_sizes_is_said() -> None:
    _, _, said = run_matching(LABELED, IDS)
    sizes = {kind: 0 for kind in MessageKind}
    for message in map(decode, said):
        sizes[message.kind] += len(message.body)
    assert sizes == {
        MessageKind.HELLO: len(RULE),
        MessageKind.WELCOME: 16,
        MessageKind.BLIND: 32 * 40,
        MessageKind.EVALUATED: 32 * 40,
        MessageKind.WANT: 0,
        MessageKind.TAGS: 16 * 50,
        MessageKind.MATCHED: 4 * 15,
        MessageKind.DONE: 0,
    }


def test_every_session_draws_afresh() -> None:
    runs = [run_matching(LABELED, LABELED) for _ in range(2)]
    for kind in (MessageKind.WELCOME, MessageKind.BLIND, MessageKind.EVALUATED, MessageKind.TAGS):
        first, second = (
            {item for m in map(decode, said) if m.kind == kind for item in m.items()}
            for _, _, said in runs
        )
        assert first and not first & second
    assert runs[0][0].session != runs[1][0].session
    assert (runs[0][0].handles != runs[1][0].handles).any()
    assert (runs[0][1].rows != runs[1][1].rows).any()
