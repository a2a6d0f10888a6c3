"""The trail of a side: what is found in it, what a crash leaves, two processes at once."""

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import run_xvfl
from tests.processes import ROOT
from tests.upload.local_federation import LocalFederation
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.system.event_log import EventLog, read_log
from xvfl.trail.entries import INCOMPLETE, START, TRAIL, EntryId, entry_hash, write_entry
from xvfl.trail.trail_file import Trail
from xvfl.trail.verify import (
    Verified,
    compare_peer,
    compare_recorded,
    describe_newest,
    read_trail,
    verify_trail,
)

N_ENTRIES = 5
Lines = list[bytes]


def verified(folder: Path) -> Verified:
    return verify_trail(read_trail(folder))


def write_trail(folder: Path, side: str = "bank", n: int = N_ENTRIES) -> Path:
    folder.mkdir(exist_ok=True)
    log = EventLog(folder, side, show=False, trail=Trail)
    for number in range(1, n + 1):
        log({"event": "epoch", "number": number})
        log({"event": "version_allowed", "version": number, "parts": (1, 2.5)})
    return folder / TRAIL


def test_events_of_the_list_become_entries(tmp_path: Path) -> None:
    path = write_trail(tmp_path)
    found = verified(tmp_path)
    assert not found.problems and not found.notes and len(found.entries) == N_ENTRIES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = found.entries[0]
    assert first["previous"] == START and first["side"] == found.side == "bank" and first["by"]
    assert first["facts"] == {"version": 1, "parts": [1, 2.5]}
    assert first["time"] == read_log(tmp_path)[1]["time"]
    assert found.newest_id == Trail(tmp_path, "bank").newest_id()
    assert EntryId.parse(str(found.newest_id)) == found.newest_id and Trail(tmp_path, "").has(
        found.newest_id
    )
    assert not Trail(tmp_path, "").has(EntryId(3, 32 * "a"))
    assert not Trail(tmp_path, "").has(EntryId(9, 32 * "a"))
    log = EventLog(tmp_path, "bank", show=False, trail=Trail)
    log({"event": "head_retired", "by": "maria as xvfl"})
    assert verified(tmp_path).entries[-1]["by"] == "maria as xvfl"


def changed(lines: Lines) -> Lines:
    return [each.replace(b'"version":3', b'"version":4') for each in lines]


def changed_with_its_hash(lines: Lines) -> Lines:
    entry = json.loads(lines[2])
    entry["facts"]["version"] = 7
    entry["hash"] = entry_hash(entry)
    return [*lines[:2], write_entry(entry), *lines[3:]]


def damaged(lines: Lines) -> Lines:
    return [*lines[:2], b"\x00" * 50 + b"\n", *lines[3:]]


TAMPERED: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "changed": (changed, "line 3: entry 3 was changed"),
    "changed, with its hash": (changed_with_its_hash, "line 4: entry 4 does not continue entry 3"),
    "spaces": (lambda lines: [lines[0], b" " + lines[1], *lines[2:]], "entry 2 was changed"),
    "damaged": (damaged, "line 3: entry 3 was changed: this line is not an entry"),
    "last damaged": (lambda lines: [*lines[:4], b"{}\n"], "line 5: entry 5 was changed"),
    "removed": (lambda lines: lines[:2] + lines[3:], "line 3: entry 3 was removed"),
    "two removed": (lambda lines: lines[:1] + lines[3:], "line 2: entry 2 to 3 was removed"),
    "first removed": (lambda lines: lines[1:], "line 1: entry 1 was removed"),
    "moved": (lambda lines: [*lines[:2], lines[3], lines[2], lines[4]], "entry 3 was moved"),
    "repeated": (lambda lines: [*lines[:3], lines[1], *lines[3:]], "line 4: entry 2 is repeated"),
    "inserted line": (lambda lines: [*lines[:3], b"\n", *lines[3:]], "line 4: entry 4 was changed"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_the_first_changed_removed_or_moved_entry_is_named(tmp_path: Path, how: str) -> None:
    path, (tamper, expected) = write_trail(tmp_path), TAMPERED[how]
    path.write_bytes(b"".join(tamper(path.read_bytes().splitlines(keepends=True))))
    (problem,) = verified(tmp_path).problems
    assert expected in problem
    done = run_xvfl("trail", "verify", str(tmp_path))
    assert done.code == 1 and expected in done.err


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    content = write_trail(tmp_path, n=2).read_bytes()
    for at in range(len(content) - 1):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert verify_trail(flipped).problems, at


def test_entries_cut_off_the_end_are_found_by_the_record_of_a_peer(tmp_path: Path) -> None:
    path = write_trail(tmp_path / "bank")
    own, peer = Trail(tmp_path / "bank", "bank"), Trail(tmp_path / "peer", "coordinator")
    write_trail(tmp_path / "peer", "coordinator")
    peer.record_peer("bank", own.newest_id(), EntryId())
    own.record_peer("coordinator", peer.newest_id(), own.newest_id())
    ids = describe_newest(verified(tmp_path / "peer"))
    assert not compare_peer(verified(tmp_path / "bank"), ids)
    assert not compare_recorded(verified(tmp_path / "bank"))
    file = tmp_path / "coordinator.entries"
    arguments = ("trail", "verify", str(tmp_path / "bank"), "--peer", str(file))
    assert run_xvfl("trail", "export", str(tmp_path / "peer"), "--out", str(file)).code == 0
    assert "all entries that coordinator has recorded" in run_xvfl(*arguments).out
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    assert not verified(tmp_path / "bank").problems
    done = run_xvfl(*arguments)
    assert done.code == 1 and "coordinator has recorded entry 5" in done.err
    # Others were appended afterwards.
    for version in range(3):
        own({"event": "version_allowed", "version": version, "time": "now"})
    assert "recorded entry 5" in run_xvfl(*arguments).err
    # The other side's trail was cut: found by one's own record.
    path.write_bytes(b"".join(lines))
    cut = describe_newest(
        verify_trail(b"".join(read_trail(tmp_path / "peer").splitlines(True)[:2]))
    )
    (problem,) = compare_peer(verified(tmp_path / "bank"), cut)
    assert "the trail of coordinator ends with entry 2" in problem


def test_a_trail_that_was_written_anew_contradicts_its_acknowledgements(tmp_path: Path) -> None:
    write_trail(tmp_path)
    Trail(tmp_path, "bank").record_peer("coordinator", EntryId(), EntryId(3, 32 * "a"))
    (problem,) = compare_recorded(verified(tmp_path))
    assert "coordinator has acknowledged entry 3 with another content" in problem


@pytest.mark.parametrize("length", [1, 30, -2, -1])
def test_a_line_that_a_crash_has_cut_short_is_named(tmp_path: Path, length: int) -> None:
    path = write_trail(tmp_path)
    content = path.read_bytes()
    *before, last = content.splitlines(keepends=True)
    path.write_bytes(b"".join(before) + last[:length])
    found = verified(tmp_path)
    assert not found.problems and len(found.notes) == 1 and "crash" in found.notes[0]
    write_trail(tmp_path, n=1)
    found = verified(tmp_path)
    assert not found.problems and found.entries[-1]["facts"]["version"] == 1
    events = [each["event"] for each in found.entries]
    # Without its last byte, the line is complete.
    assert events.count(INCOMPLETE) == (length != -1)
    assert len(events) == N_ENTRIES + 1
    # Such a line cannot be changed afterwards.
    if length != -1:
        path.write_bytes(path.read_bytes().replace(last[:length] + b"\n", b"x\n"))
        assert verified(tmp_path).problems


def test_an_entry_longer_than_a_block_is_found(tmp_path: Path) -> None:
    trail = Trail(tmp_path, "bank")
    for size in (10, 300_000, 10):
        trail({"event": "matched", "time": "now", "text": size * "x"})
        assert trail.has(trail.newest_id())
    found = verified(tmp_path)
    assert (
        len(found.entries) == 3
        and not found.problems
        and trail.has(EntryId.parse("0-" + START[:32]))
    )  # type: ignore[arg-type]
    for entry in found.entries:
        assert trail.has(EntryId(entry["number"], entry["hash"][:32]))


WRITER = """
import sys
from pathlib import Path
from xvfl.system.event_log import EventLog
from xvfl.trail.trail_file import Trail
log = EventLog(Path(sys.argv[1]), "bank", show=False, trail=Trail)
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    log({"event": "matched", "rows": number, "text": "x" * 500})
"""


def test_processes_that_write_at_once_keep_the_chain(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(3)]
    for each in writers:
        assert each.stdout and each.stdout.readline() == "ready\n"
    for each in writers:
        each.communicate("\n", timeout=120)
    found = verified(tmp_path)
    assert not found.problems and not found.notes and len(found.entries) == 3 * 60


def test_entries_that_cannot_be_written_wait_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / TRAIL).mkdir()
    log = EventLog(tmp_path, "bank", show=False, trail=Trail)
    log({"event": "matched", "rows": 1})
    log({"event": "epoch"})
    status = {"healthy": True, **log.status()}
    assert not status["healthy"] and "trail.jsonl cannot be written" in status["problem"]
    assert status["log_events_lost"] == 1 and list(status_metrics(status))
    assert [each["event"] for each in read_log(tmp_path)] == [
        "matched",
        "trail_not_written",
        "epoch",
    ]
    (tmp_path / TRAIL).rmdir()
    log({"event": "epoch"})
    assert "healthy" not in log.status()
    assert [each["facts"] for each in verified(tmp_path).entries] == [{"rows": 1}]


def test_show_prints_entries_without_control_characters(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "bank", show=False, trail=Trail)
    log({"event": "request_rejected", "reason": "\x1b[2J bad"})
    done = run_xvfl("trail", "show", str(tmp_path))
    assert done.code == 0 and "request_rejected" in done.out and "\x1b[2J" not in done.out
    (line,) = run_xvfl("trail", "show", str(tmp_path), "--json", "--last", "1").out.splitlines()
    assert json.loads(line)["number"] == 1


def test_commands_say_what_they_expect(tmp_path: Path) -> None:
    done = run_xvfl("trail", "verify", str(tmp_path))
    assert done.code == 2 and "expected a state folder with a readable trail.jsonl" in done.err
    write_trail(tmp_path)
    (tmp_path / "x.entries").write_text("{}")
    done = run_xvfl("trail", "verify", str(tmp_path), "--peer", str(tmp_path / "x.entries"))
    assert done.code == 2 and "expected a file of `xvfl trail export`" in done.err


class LoggedList(list[dict[str, Any]]):
    """The coordinator's log in a local federation."""

    log: EventLog

    def append(self, event: Any) -> None:
        super().append(event)
        self.log(event)


class RecordedFederation(LocalFederation):
    """A local federation whose sides have trails."""

    def start_party(self, name: str) -> UploadPartyService:
        service = super().start_party(name)
        service.close()
        inputs: PartyInputs = service.inputs
        log = EventLog(inputs.folder.path, name, show=False, trail=Trail)
        return UploadPartyService(inputs, log)


def test_a_run_of_two_parties_is_in_the_trails_of_all_sides(tmp_path: Path) -> None:
    made = RecordedFederation(tmp_path, matched=False)
    log = made.log = LoggedList()
    log.log = EventLog(made.coordinator.path, "coordinator", show=False, trail=Trail)
    try:
        made.run()
    finally:
        made.close()
    sides = {name: verified(tmp_path / name) for name in ("coordinator", "bank", "shop")}
    events = {name: [each["event"] for each in found.entries] for name, found in sides.items()}
    # So small a run may make an upload suspicious.
    events = {n: [each for each in e if each != "upload_suspicious"] for n, e in events.items()}
    assert not any(found.problems for found in sides.values())
    received = ["matched", "matched", "upload_received", "upload_received", "finished"]
    assert events == {
        "coordinator": received,
        "bank": ["matched", "held_out", "upload_stored"],
        "shop": ["matched", "held_out", "upload_stored"],
    }
    digests = {each["facts"]["digest"] for each in sides["coordinator"].entries[2:4]}
    assert {sides[name].entries[2]["facts"]["digest"] for name in ("bank", "shop")} == digests
