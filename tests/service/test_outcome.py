"""An interactive run that loses a party, and health, with processes."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command_line import rejected_with
from tests.processes import free_port
from tests.service.test_service import (
    COORDINATOR,
    INTERACTIVE,
    PAUSE_AFTER_AN_EPOCH,
    SHOP,
    start,
    wait_for,
    write,
)
from xvfl.system.event_log import read_log

TIMEOUTS = "[timeouts]\nanswer = 30.0\n"
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
    (folder / "coordinator.toml").write_text(text + INTERACTIVE[0] + TIMEOUTS)
    party = INTERACTIVE[1] + 'status_address = "127.0.0.1:0"\n' + SHOP
    (folder / "shop.toml").write_text(party.replace("PORT", str(port)))


@pytest.mark.slow
def test_a_run_ends_without_a_party_and_is_continued(tmp_path: Path, launch: Launch) -> None:
    write(tmp_path)
    write_configurations(tmp_path, free_port())
    shop = launch(tmp_path, "party", "shop.toml")
    shop_status = wait_for(tmp_path / "shop", "status_server", shop)["port"]
    wait_for_health(shop_status, 503, "unhealthy: no connection to the coordinator")
    main = launch(tmp_path, "coordinator", "coordinator.toml", code=PAUSE_AFTER_AN_EPOCH)
    wait_for(tmp_path / "main", "epoch", main)
    port = wait_for(tmp_path / "main", "status_server", main)["port"]
    wait_for_health(port, 200, "ok")
    wait_for_health(shop_status, 200, "ok")
    shop.kill()
    shop.communicate()
    (tmp_path / "scraped").touch()
    _, err = main.communicate(timeout=120)
    assert main.returncode == 2 and "start this command again: it continues from step" in err
    shop = launch(tmp_path, "party", "shop.toml")
    main = launch(tmp_path, "coordinator", "coordinator.toml")
    for process in (main, shop):
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    events = [each["event"] for each in read_log(tmp_path / "main")]
    assert events.count("resumed") == 1
    records = (tmp_path / "main" / "records.jsonl").read_text().splitlines()
    assert [json.loads(each)["epoch"] for each in records] == list(range(1, 13))
    again = ("coordinator", tmp_path / "coordinator.toml", "--quiet")
    assert "this run is finished" in rejected_with(*again)
