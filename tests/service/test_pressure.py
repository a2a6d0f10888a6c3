"""A coordinator under attack: its run completes, its memory is bounded, its log stays short."""

import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.service.pressure import (
    STARTED,
    descriptors_in_use,
    memory,
    reset_peak,
    send_before_hello,
    send_garbage,
    silent_sockets,
    start,
)
from tests.service.test_service import COORDINATOR, SHOP, wait_for, write
from xvfl.certs import open_authority
from xvfl.system.event_log import read_log
from xvfl.wire.limited_log import MAX_LINES

pytestmark = pytest.mark.slow
MAX_GROWTH_MB = 200
HOLD = """
import pathlib, runpy, time
from contextlib import suppress
from xvfl.system.event_log import EventLog

write = EventLog.write
places = {epoch: open(f"holds_{epoch}", "wb", buffering=0) for epoch in (2, 10)}

def write_and_hold(self, event):
    write(self, event)
    for epoch, place in places.items():
        if event["event"] == "epoch" and event["epoch"] == epoch:
            with suppress(OSError):
                place.write(b"1")
            with suppress(OSError):
                pathlib.Path(f"at_{epoch}").touch()
            while not pathlib.Path(f"after_{epoch}").exists():
                time.sleep(0.01)

EventLog.write = write_and_hold
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""The command line; training holds after the epochs 2 and 10 until the test goes on."""


@pytest.fixture(autouse=True)
def end_processes() -> Iterator[None]:
    """Kill what a failed test has left running."""
    yield
    for each in STARTED:
        if each.poll() is None:
            each.kill()
        each.communicate()
    STARTED.clear()


def wait_until(holds: Callable[[], object], process: Any) -> None:
    """Wait until a condition holds; the process must be running."""
    until = time.monotonic() + 300
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def write_parties(folder: Path, port: object, names: tuple[str, ...] = ("shop",)) -> None:
    for name in names:
        text = SHOP.replace("PORT", str(port)).replace("shop", name)
        text = text.replace("[tls]", 'revocation_list = "certs/ca.crl"\n[tls]')
        (folder / f"{name}.toml").write_text(text)


def finish(*processes: Any) -> list[str]:
    """Wait for all; return their standard errors."""
    errors = []
    for each in processes:
        _, err = each.communicate(timeout=600)
        assert "Traceback" not in err, err
        errors.append(err)
    return errors


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in read_log(folder) if each["event"] == kind]


@pytest.mark.parametrize(
    ("descriptors", "sockets", "megabytes"),
    [pytest.param(400, 800, 16, id="small"), pytest.param(1024, 5_500, 240, id="large")],
)
def test_attacks_end_no_run_and_are_one_line_each(
    tmp_path: Path,
    descriptors: int,
    sockets: int,
    megabytes: int,
    record_property: Callable[[str, object], None],
) -> None:
    write(tmp_path)
    main = start(tmp_path, "coordinator", "coordinator.toml", code=HOLD, descriptors=descriptors)
    port = int(str(wait_for(tmp_path / "main", "listening", main)["address"]).rpartition(":")[2])
    write_parties(tmp_path, port)
    reset_peak(main)
    before = memory(main, "VmRSS")
    peaks = {}
    with silent_sockets(port, sockets):
        peaks["silent sockets"] = memory(main, "VmHWM") - before
        in_use = descriptors_in_use(main)
        # A party can connect while the attackers hold their sockets.
        party = start(tmp_path, "party", "shop.toml")
        wait_for(tmp_path / "main", "connected", main)
    wait_until((tmp_path / "at_2").exists, main)
    for name, attack in {
        "before Hello": lambda: send_before_hello(
            tmp_path / "certs", "stranger", port, 8, megabytes * 2**20
        ),
        "before Hello, listed": lambda: send_before_hello(
            tmp_path / "certs", "shop", port, 8, megabytes * 2**20
        ),
        "not TLS": lambda: send_garbage(port, 100),
    }.items():
        reset_peak(main)
        start_mb = memory(main, "VmRSS")
        replies = attack()
        peaks[name] = memory(main, "VmHWM") - start_mb
        if replies is not None:
            assert len(replies) == 8
    (tmp_path / "after_2").touch()
    (tmp_path / "after_10").touch()
    finish(main, party)
    print({name: round(peak) for name, peak in peaks.items()}, in_use)
    record_property("peaks", peaks)
    assert in_use < descriptors
    assert max(peaks.values()) < MAX_GROWTH_MB
    assert events(tmp_path / "main", "finished")
    assert json.loads((tmp_path / "main/heads/1/evaluation.json").read_text())["lines"]
    dropped = events(tmp_path / "main", "connection_dropped")
    assert all(each["address"] == "127.0.0.1" for each in dropped)
    rejected = events(tmp_path / "main", "connection_rejected")
    print(*dropped, *rejected, sep="\n")
    (rest,) = events(tmp_path / "main", "events_not_logged")
    lines = [*dropped, *rejected]
    total = len(lines) + sum(each.get("not_logged", 0) for each in lines) + rest["count"]
    assert total > sockets - 64 + 8 + 100
    # More lines follow after a minute if an attack lasts longer.
    assert len(dropped) <= 2 * MAX_LINES
    assert len([each for each in rejected if each["party"] == "?"]) <= 2 * MAX_LINES
    for who, why in (("?", "'stranger' is not in this"), ("shop", "Challenge")):
        assert any(each["party"] == who and why in each["reason"] for each in rejected)
    assert any("no Hello within" in each["reason"] for each in dropped)


def test_a_coordinator_that_cannot_write_ends_with_a_line_and_resumes(tmp_path: Path) -> None:
    write(tmp_path)
    main = start(tmp_path, "coordinator", "coordinator.toml", code=HOLD)
    port = str(wait_for(tmp_path / "main", "listening", main)["address"]).rpartition(":")[2]
    config = COORDINATOR.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
    (tmp_path / "coordinator.toml").write_text(config)
    write_parties(tmp_path, port)
    party = start(tmp_path, "party", "shop.toml")
    wait_until((tmp_path / "at_2").exists, main)
    _, most = resource.prlimit(main.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(main.pid, resource.RLIMIT_FSIZE, (1, most))
    (tmp_path / "after_2").touch()
    (tmp_path / "after_10").touch()
    (error,) = finish(main)
    assert main.returncode == 2 and "could not be written" in error.splitlines()[-1]
    again = start(tmp_path, "coordinator", "coordinator.toml")
    finish(again, party)
    assert again.returncode == party.returncode == 0
    assert events(tmp_path / "main", "finished")
    records = (tmp_path / "main/heads/1/records.jsonl").read_text().splitlines()
    assert [json.loads(each)["epoch"] for each in records] == list(range(1, 13))


@pytest.mark.parametrize("phase", ["waiting", "training"])
def test_a_stop_signal_ends_each_side_without_a_traceback(tmp_path: Path, phase: str) -> None:
    write(tmp_path)
    main = start(tmp_path, "coordinator", "coordinator.toml", code=HOLD)
    port = str(wait_for(tmp_path / "main", "listening", main)["address"]).rpartition(":")[2]
    write_parties(tmp_path, port)
    party = start(tmp_path, "party", "shop.toml")
    if phase == "waiting":
        wait_for(tmp_path / "shop", "started", party)
        party.send_signal(signal.SIGTERM)
        finish(party)
        main.send_signal(signal.SIGTERM)
        finish(main)
        assert party.returncode == 0 and main.returncode == 0
        assert events(tmp_path / "main", "stopped")[-1]["reason"] == "SIGTERM"
        return
    wait_until((tmp_path / "at_2").exists, main)
    main.send_signal(signal.SIGTERM)
    (tmp_path / "after_2").touch()
    finish(main)
    assert main.returncode == 0 and events(tmp_path / "main", "stopped")
    party.send_signal(signal.SIGTERM)
    finish(party)
    assert party.returncode == 0 and events(tmp_path / "shop", "stopped")


def test_revocation_during_a_run(tmp_path: Path) -> None:
    """A list is missing for a while; then a party is revoked, then the coordinator."""
    write(tmp_path)
    crl = tmp_path / "certs" / "ca.crl"
    shop = pd.read_csv(tmp_path / "shop.csv")
    shop.columns = ["customer", "calls", "minutes"]
    shop.to_csv(tmp_path / "stranger.csv", index=False)
    config = COORDINATOR.replace('parties = ["shop"]', 'parties = ["shop", "stranger"]')
    (tmp_path / "coordinator.toml").write_text(config)
    main = start(tmp_path, "coordinator", "coordinator.toml", "--quiet", code=HOLD)
    port = str(wait_for(tmp_path / "main", "listening", main)["address"]).rpartition(":")[2]
    write_parties(tmp_path, port, ("shop", "stranger"))
    parties = {
        name: start(tmp_path, "party", f"{name}.toml", "--quiet") for name in ("shop", "stranger")
    }
    wait_until((tmp_path / "at_2").exists, main)

    def logged(log: str, kind: str, text: str) -> Callable[[], object]:
        """Return whether an event with a text is in a log."""
        return lambda: any(text in json.dumps(each) for each in events(tmp_path / log, kind))

    kept = crl.read_bytes()
    crl.unlink()
    for side in ("main", "shop", "stranger"):
        wait_until(lambda side=side: events(tmp_path / side, "revocation_list_unreadable"), main)
    crl.write_bytes(kept)
    for side in ("main", "shop", "stranger"):
        wait_until(lambda side=side: events(tmp_path / side, "revocation_list_readable"), main)
        assert len(events(tmp_path / side, "revocation_list_unreadable")) == 1
    assert not events(tmp_path / "main", "disconnected")

    authority = open_authority(tmp_path / "certs")
    authority.revoke("shop")
    wait_until(logged("main", "disconnected", "shop"), main)
    assert parties["shop"].wait(300) == 2

    authority.revoke("coordinator")
    wait_until(logged("stranger", "connection_lost", "is revoked"), main)
    wait_until(logged("main", "disconnected", "stranger"), main)
    for each in (main, parties["stranger"]):
        each.send_signal(signal.SIGTERM)
    (tmp_path / "after_2").touch()
    finish(main, *parties.values())
