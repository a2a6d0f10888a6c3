"""An interactive run that loses a party, and health, with processes."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.processes import free_port
from tests.service.test_service import (
    COORDINATOR,
    PAUSE_AFTER_AN_EPOCH,
    SHOP,
    start,
    wait_for,
    write,
)
from xvfl.service.log import read_log
from xvfl.service.status_server import ProgressClock

TIMEOUTS = "[timeouts]\nmax_answer = 5.0\nprogress = 0.2\n"
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start commands; kill at the end those that still run."""
    running: list[subprocess.Popen[str]] = []

    def begin(folder: Path, *arguments: str, code: str = "") -> "subprocess.Popen[str]":
        running.append(start(folder, *arguments, code=code))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def health(port: object) -> tuple[int, str]:
    """Return the code and text of /health."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for_health(port: object, code: int, text: str) -> None:
    """Ask for the health until it is as expected."""
    until = time.monotonic() + 120
    while (seen := health(port)) != (code, text) and not (seen[0] == code and text in seen[1]):
        assert time.monotonic() < until, seen
        time.sleep(0.05)


def write_configurations(folder: Path, port: int) -> None:
    text = COORDINATOR.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
    (folder / "coordinator.toml").write_text(text + TIMEOUTS)
    party = 'status_address = "127.0.0.1:0"\nprogress_timeout = 0.2\n' + SHOP
    (folder / "shop.toml").write_text(party.replace("PORT", str(port)))


@pytest.mark.slow
def test_a_run_waits_for_a_killed_party_and_says_so(tmp_path: Path, launch: Launch) -> None:
    write(tmp_path)
    write_configurations(tmp_path, free_port())
    shop = launch(tmp_path, "party", "shop.toml")
    shop_status = wait_for(tmp_path / "shop", "status_server", shop)["port"]
    wait_for_health(shop_status, 503, "unhealthy: no connection to the coordinator")
    main = launch(tmp_path, "coordinator", "coordinator.toml", code=PAUSE_AFTER_AN_EPOCH)
    wait_for(tmp_path / "main", "epoch", main)
    port = wait_for(tmp_path / "main", "status_server", main)["port"]
    wait_for_health(port, 503, "unhealthy: no training step for")
    wait_for_health(shop_status, 503, "unhealthy: no progress of the training for")
    shop.kill()
    shop.communicate()
    (tmp_path / "scraped").touch()
    wait_for(tmp_path / "main", "party_left", main)
    wait_for_health(port, 503, "unhealthy: the run waits for shop")
    said = run_xvfl("status", f"127.0.0.1:{port}")
    assert "the run waits for shop" in said.out
    shop = launch(tmp_path, "party", "shop.toml")
    for process in (main, shop):
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    events = [each["event"] for each in read_log(tmp_path / "main")]
    assert events.count("party_left") == events.count("resumed") == 1
    records = (tmp_path / "main" / "records.jsonl").read_text().splitlines()
    assert [json.loads(each)["epoch"] for each in records] == list(range(1, 13))
    assert "this run is finished" in rejected_with("coordinator", tmp_path / "coordinator.toml")


def test_the_clock_restarts_when_the_value_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = ProgressClock()
    assert clock.seconds_since_change(1) == 0
    now = 15.0
    assert clock.seconds_since_change(1) == 5
    assert clock.seconds_since_change(2) == 0
