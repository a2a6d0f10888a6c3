"""Runs that lose a party, and health, with processes as an operator runs them."""

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
from xvfl.cli.output import FINISHED_WITHOUT
from xvfl.service.log import read_log
from xvfl.service.status_server import ProgressClock

TIMEOUTS = "[timeouts]\nmin_answer = 0.5\nmax_answer = 5.0\noutcome = {outcome}\nprogress = 0.2\n"
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


def write_configurations(folder: Path, outcome: float, port: int, extra: str = "") -> None:
    text = COORDINATOR.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
    (folder / "coordinator.toml").write_text(extra + text + TIMEOUTS.format(outcome=outcome))
    party = 'status_address = "127.0.0.1:0"\nprogress_timeout = 0.2\n' + SHOP
    (folder / "shop.toml").write_text(party.replace("PORT", str(port)))


@pytest.mark.slow
def test_a_run_without_a_party_says_so_and_informs_it_later(tmp_path: Path, launch: Launch) -> None:
    write(tmp_path)
    port = free_port()
    write_configurations(tmp_path, outcome=0.1, port=port)
    shop = launch(tmp_path, "party", "shop.toml")
    shop_status = wait_for(tmp_path / "shop", "status_server", shop)["port"]
    wait_for_health(shop_status, 503, "unhealthy: no connection to the coordinator")
    main = launch(tmp_path, "coordinator", "coordinator.toml", code=PAUSE_AFTER_AN_EPOCH)
    epoch = wait_for(tmp_path / "main", "epoch", main)
    assert epoch["batches"] == {"bank": epoch["step"], "shop": epoch["step"]}
    main_status = wait_for(tmp_path / "main", "status_server", main)["port"]
    wait_for_health(main_status, 503, "unhealthy: no training step for")
    wait_for_health(shop_status, 503, "unhealthy: no training step for")
    shop.kill()
    shop.communicate()
    (tmp_path / "scraped").touch()
    out, err = main.communicate(timeout=600)

    assert main.returncode == FINISHED_WITHOUT, err
    last = err.splitlines()[-1]
    assert last.startswith("finished without shop (offline since step ")
    assert last.endswith("; not yet informed: shop")
    lines = json.loads((tmp_path / "main" / "evaluation.json").read_text())["lines"]
    (together,) = [line for line in lines if line["mode"] == "collaborative"]
    assert together["party"] == "bank" and together["parties"] == ["bank"] and "all" not in out
    manifest = json.loads((tmp_path / "main" / "manifest.json").read_text())
    assert manifest["absent"]["shop"].startswith("offline since step")
    assert manifest["uninformed"] == ["shop"]
    took_part = manifest["participation"]
    assert took_part["bank"]["batches"] == took_part["bank"]["of_batches"] == manifest["step"]
    assert took_part["shop"]["batches"] < took_part["shop"]["of_batches"]
    finished = next(e for e in read_log(tmp_path / "main") if e["event"] == "finished")
    assert finished["participation"] == took_part and finished["absent"] == manifest["absent"]

    write_configurations(tmp_path, outcome=300, port=port)
    main = launch(tmp_path, "coordinator", "coordinator.toml")
    shop = launch(tmp_path, "party", "shop.toml")
    _, err = shop.communicate(timeout=600)
    assert shop.returncode == 0, err
    assert read_log(tmp_path / "shop")[-1]["reason"] == "finished"
    out, err = main.communicate(timeout=600)
    assert main.returncode == FINISHED_WITHOUT and "not yet informed" not in err.splitlines()[-1]
    manifest = json.loads((tmp_path / "main" / "manifest.json").read_text())
    assert manifest["uninformed"] == []
    assert not any(e["event"] == "party_excluded" for e in read_log(tmp_path / "main"))
    assert "this run is finished" in rejected_with("coordinator", tmp_path / "coordinator.toml")
    answers = tmp_path / "answers.csv"
    table = f"shop={tmp_path / 'shop.csv'}"
    said = run_xvfl("predict", tmp_path / "shop", "--input", table, "--output", answers)
    assert said.code == 0, said.err


@pytest.mark.slow
def test_a_coordinator_without_enough_parties_is_unhealthy(tmp_path: Path, launch: Launch) -> None:
    write(tmp_path)
    write_configurations(tmp_path, outcome=1, port=free_port(), extra="min_parties = 2\n")
    main = launch(tmp_path, "coordinator", "coordinator.toml", code=PAUSE_AFTER_AN_EPOCH)
    port = wait_for(tmp_path / "main", "status_server", main)["port"]
    reason = "unhealthy: expected 2 or more parties, got 1; absent: shop\n"
    assert health(port) == (503, reason)
    said = run_xvfl("status", f"127.0.0.1:{port}")
    assert "absent: shop" in said.out
    shop = launch(tmp_path, "party", "shop.toml")
    wait_for(tmp_path / "main", "epoch", main)
    shop.kill()
    (tmp_path / "scraped").touch()
    wait_for(tmp_path / "main", "party_left", main)
    wait_for_health(port, 503, reason)


def test_the_clock_restarts_when_the_value_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = ProgressClock()
    assert clock.seconds_since_change(1) == 0
    now = 15.0
    assert clock.seconds_since_change(1) == 5
    assert clock.seconds_since_change(2) == 0
