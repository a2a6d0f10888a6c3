"""A party and its coordinator acknowledge each other's trails over their connection."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_service import SHOP, write
from tests.wire.transport_helpers import wait_until
from xvfl.errors import WireError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.listener import listen
from xvfl.service.party import connect_party
from xvfl.system.event_log import EventLog, read_log
from xvfl.trail.acknowledgements import MAX_RECORDED, Acknowledgements, exchange_newest
from xvfl.trail.entries import TRAIL, EntryId
from xvfl.trail.trail_file import Trail
from xvfl.trail.verify import Verified, compare_peer, describe_newest, read_trail, verify_trail
from xvfl.wire.messages import Done, ErrorReply, Hello, Message, NewestEntries

ENTRY = {"event": "version_allowed", "version": 1}


def verified(folder: Path) -> Verified:
    return verify_trail(read_trail(folder))


def new_log(folder: Path, side: str) -> EventLog:
    folder.mkdir(exist_ok=True)
    return EventLog(folder, side, show=False, trail=Trail)


def tell(sender: Acknowledgements, name: str, receiver: Acknowledgements, peer: str) -> None:
    answer = receiver.answer_or(lambda party, message: Done(0, 0))
    reply = answer(name, sender.greeting(peer, 1))
    assert isinstance(reply, NewestEntries)
    sender.record(peer, reply)


def acknowledged(found: Verified, peer: str) -> EntryId:
    return found.recorded()[peer][-1][2]


@contextmanager
def connected(folder: Path, main: Path, party: Path) -> Iterator[None]:
    """Run a coordinator's port and a party's client with their logs and trails."""
    log = EventLog(main, "coordinator", show=False, trail=Trail)
    own = EventLog(party, "shop", show=False, trail=Trail)
    with listen(load_coordinator_config(folder / "coordinator.toml"), log) as server:
        config = folder / "shop.toml"
        config.write_text(SHOP.replace("PORT", str(server.port)))
        hello = Hello(0, "instance", False, 3, "", "")
        endpoint = RequestEndpoint(hello, own, {}, "no")
        client = connect_party(load_party_config(config), endpoint, own, 60)
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        with exchange_newest(party, "shop", client, own, poll=0.02):
            try:
                yield
            finally:
                client.stop()
                thread.join(60)


def test_entries_are_acknowledged_while_connected_and_a_cut_trail_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    main, party = tmp_path / "main", tmp_path / "shop-state"
    main_log, party_log = new_log(main, "coordinator"), new_log(party, "shop")
    for log in (main_log, party_log):
        log(ENTRY)

    def both_know(number: int) -> bool:
        sides = verified(main), verified(party)
        if not all(each.recorded() for each in sides):
            return False
        known = acknowledged(sides[0], "shop"), acknowledged(sides[1], "coordinator")
        return min(each.number for each in known) >= number

    with connected(tmp_path, main, party):
        wait_until(lambda: both_know(1), 60)
        main_log(ENTRY)
        party_log(ENTRY)
        newest = min(Trail(each, "").newest_id().number for each in (main, party))
        wait_until(lambda: both_know(newest), 60)
    sides = verified(main), verified(party)
    assert not sides[0].problems and not sides[1].problems
    assert not compare_peer(sides[1], describe_newest(sides[0]))
    assert not compare_peer(sides[0], describe_newest(sides[1]))
    # Entries that are recorded are not news themselves: an idle connection adds no entries.
    assert max(len(each.entries) for each in sides) < 12
    path = party / TRAIL
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    with connected(tmp_path, main, party):
        wait_until(lambda: all("trail_differs" in str(read_log(each)) for each in (main, party)))
    (event,) = [each for each in read_log(party) if each["event"] == "trail_differs"]
    assert event["peer"] == "coordinator" and "does not have it" in event["reason"]
    assert "entries were cut off or replaced" in str(read_log(main))
    assert compare_peer(verified(party), describe_newest(verified(main)))


def test_a_cut_trail_is_reported_once_and_recording_goes_on(tmp_path: Path) -> None:
    main_log, party_log = (new_log(tmp_path / name, name) for name in ("coordinator", "shop"))
    for log in (main_log, *3 * [party_log]):
        log(ENTRY)
    main = Acknowledgements(tmp_path / "coordinator", "coordinator", main_log)
    party = Acknowledgements(tmp_path / "shop", "shop", party_log)
    for _ in range(4):
        tell(party, "shop", main, "coordinator")
    n_entries = len(verified(tmp_path / "coordinator").entries)
    tell(party, "shop", main, "coordinator")
    assert len(verified(tmp_path / "coordinator").entries) == n_entries
    assert acknowledged(verified(tmp_path / "shop"), "coordinator").number == 3
    (tmp_path / "shop" / TRAIL).unlink()
    for _ in range(3):
        party_log(ENTRY)
    restarted = Acknowledgements(tmp_path / "shop", "shop", party_log)
    for _ in range(4):
        tell(restarted, "shop", main, "coordinator")
    for folder in (tmp_path / "coordinator", tmp_path / "shop"):
        assert str(read_log(folder)).count("trail_differs") == 1
        assert not verified(folder).problems


class RejectingClient:
    """A client of a coordinator that answers no `NewestEntries`."""

    def __init__(self) -> None:
        self.connected, self.times = True, list[float]()

    def call(self, message: Message, timeout: float) -> Message:
        self.times.append(time.monotonic())
        return ErrorReply(0, "WireError", "no")


def test_a_party_asks_less_often_after_each_failure(tmp_path: Path) -> None:
    client = RejectingClient()
    with exchange_newest(tmp_path, "shop", client, lambda event: None, poll=0.01):
        wait_until(lambda: len(client.times) == 5)
    assert client.times[4] - client.times[3] > 0.1


def test_an_unexpected_error_does_not_end_the_exchange(tmp_path: Path) -> None:
    """And is logged once."""

    class WrongClient:
        connected, n_calls = True, 0

        def call(self, message: Message, timeout: float) -> Message:
            self.n_calls += 1
            raise ValueError("wrong")

    client, events = WrongClient(), list[dict[str, Any]]()
    with exchange_newest(tmp_path, "shop", client, events.append, poll=0.01):
        wait_until(lambda: client.n_calls == 3, 60)
    assert [each["event"] for each in events] == ["internal_error"]
    assert "wrong" in events[0]["reason"]


def test_a_late_request_is_no_sign_of_a_cut_trail(tmp_path: Path) -> None:
    log = new_log(tmp_path, "coordinator")
    answer = Acknowledgements(tmp_path, "coordinator", log).answer_or(lambda *request: Done(0, 0))
    newest = EntryId(3, 32 * "a")
    for request_id, newest_id in ((5, newest), (4, EntryId(2, 32 * "b"))):
        reply = answer("shop", NewestEntries(request_id, f"{newest_id} {EntryId()}"))
        assert isinstance(reply, NewestEntries) and reply.ids.endswith(str(newest))
    assert not read_log(tmp_path)
    answer("shop", NewestEntries(6, f"{EntryId(2, 32 * 'b')} {EntryId()}"))
    assert [each["event"] for each in read_log(tmp_path)] == ["trail_differs"]
    assert isinstance(answer("shop", Done(7, 0)), Done)


def test_a_peer_cannot_fill_the_trail(tmp_path: Path) -> None:
    main = Acknowledgements(tmp_path, "coordinator", new_log(tmp_path, "coordinator"))
    for number in range(1, 3 * MAX_RECORDED):
        main.record("shop", NewestEntries(1, f"{EntryId(number)} {EntryId()}"))
    assert len(verified(tmp_path).entries) == MAX_RECORDED


@pytest.mark.parametrize(
    "text", ["", "x", f"{EntryId()}", f"{EntryId()} 1-abc", f"{EntryId()} -1-" + 32 * "0"]
)
def test_heads_that_are_none_are_rejected(tmp_path: Path, text: str) -> None:
    main = Acknowledgements(tmp_path, "coordinator", new_log(tmp_path, "coordinator"))
    with pytest.raises(WireError, match="expected two entries"):
        main.record("shop", NewestEntries(1, text))
    assert not (tmp_path / TRAIL).exists()
