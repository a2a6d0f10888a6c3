"""What crosses the wire: no id, no plain hash of one, and nothing that comes twice."""

import base64
import hashlib
from collections.abc import Iterable

import pytest

from tests.matching.session_helpers import RULE, run_matching
from xvfl.matching import RULES
from xvfl.matching.group import hash_to_point, tag_and_proof
from xvfl.matching.oprf import hash_domain
from xvfl.matching.session_messages import MessageKind, decode

LABELED = [f"Customer {i:04d}" for i in range(40)]
IDS = [f"customer  {i:04d} " for i in range(25, 75)]
ITEMS = {MessageKind.BLIND, MessageKind.EVALUATED, MessageKind.TAGS, MessageKind.MATCHED}
WINDOW = 8
"""Bytes that agree by chance once in 2⁶⁴."""
PREFIXES = (b"", b"point\0", b"tag\0")
HASHES = [name for name in hashlib.algorithms_guaranteed if not name.startswith("shake")]


def traces(text: str, session: bytes) -> set[bytes]:
    """Give every form in which an id could show: itself, its hashes, its unblinded point."""
    found = set()
    for form in {text, text.strip(), text.lower(), *(rule(text) for rule in RULES.values())}:
        domains = [hash_domain(session, rule) for rule in RULES]
        salted = [prefix + domain + form.encode() for domain in domains for prefix in PREFIXES]
        plain = [form.encode(), form.encode("utf-16-le")]
        points = [hash_to_point(form, domain) for domain in domains]
        tags = [
            part
            for domain in domains
            for point in (*points, bytes(32))
            for part in tag_and_proof(form, point, domain)
        ]
        hashes = [hashlib.new(name, each).digest() for name in HASHES for each in plain + salted]
        found |= {*plain, *points, *tags, *hashes}
    return found | {each.hex().encode() for each in found} | set(map(base64.b64encode, found))


def windows(data: bytes) -> set[bytes]:
    return {data[at : at + WINDOW] for at in range(len(data) - WINDOW + 1)}


def leaks(said: Iterable[bytes], ids: Iterable[str], session: bytes) -> set[str]:
    """Name the ids of which any eight bytes of any form are in any message."""
    seen = set().union(*map(windows, said))
    return {each for each in ids if any(windows(trace) & seen for trace in traces(each, session))}


def test_no_id_and_no_plain_hash_is_in_any_message() -> None:
    found, kept, said = run_matching(LABELED, IDS)
    assert len(kept.rows) == 15 and (found.handles >= 0).sum() == 15
    assert leaks(said, [*LABELED, *IDS], found.session) == set()


@pytest.mark.parametrize("leaky", ["point", "sha256", "id"])
def test_the_search_finds_what_leaks(leaky: str) -> None:
    found, _, said = run_matching(LABELED, IDS)
    text = RULES[RULE](IDS[3])
    added = {
        "point": hash_to_point(text, hash_domain(found.session, RULE)),
        "sha256": b"\1\2" + hashlib.sha256(text.encode()).digest()[4:20],
        "id": b"\0" + text.encode(),
    }
    assert IDS[3] in leaks([*said, added[leaky]], IDS, found.session)


def test_without_blinding_the_search_finds_every_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xvfl.matching.oprf.multiply", lambda scalar, point: point)
    monkeypatch.setattr(
        "xvfl.matching.session_checks.SessionItems.send", lambda self, items: b"".join(items)
    )
    found, _, said = run_matching(LABELED, IDS)
    assert leaks(said, [*LABELED, *IDS], found.session) == {*LABELED, *IDS}


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
        MessageKind.WANT_TAGS: 0,
        MessageKind.TAGS: 16 * 50,
        MessageKind.MATCHED: (4 + 16) * 15,
        MessageKind.DONE: 0,
    }


def test_every_session_draws_afresh() -> None:
    runs = [run_matching(LABELED, LABELED) for _ in range(2)]
    for kind in (MessageKind.WELCOME, *ITEMS):
        first, second = (
            {item for m in map(decode, said) if m.kind == kind for item in m.items()}
            for _, _, said in runs
        )
        assert first and not first & second
    assert runs[0][0].session != runs[1][0].session
    assert (runs[0][0].handles != runs[1][0].handles).any()
    assert (runs[0][1].rows != runs[1][1].rows).any()


def test_no_point_or_tag_occurs_twice_in_a_session() -> None:
    _, _, said = run_matching(LABELED, LABELED)
    items = [item for m in map(decode, said) if m.kind in ITEMS for item in m.items()]
    assert len(items) == len(set(items)) == 4 * len(LABELED)
