"""The dashboard's server: what it lists, and what it does not serve."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import rejected_with
from tests.processes import ENVIRONMENT
from xvfl.model.dashboard.dashboard_server import DashboardServer
from xvfl.model.run_summary import SUMMARY, is_running, start_summary


@pytest.fixture
def server(finished_runs: Path) -> Iterator[DashboardServer]:
    server = DashboardServer(finished_runs)
    yield server
    server.close()


def lower_names(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def get(url: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    """Request a page; return code, headers and body."""
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, lower_names(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, lower_names(error.headers), error.read()


def get_json(url: str) -> dict[str, Any]:
    code, _, body = get(url)
    assert code == 200, body
    data: dict[str, Any] = json.loads(body)
    return data


def test_runs_are_listed_with_what_they_train(server: DashboardServer) -> None:
    listed = {each["name"]: each for each in get_json(f"{server.url}api/runs")["runs"]}
    assert set(listed) == {"tables", "images"}
    run = listed["tables"]
    assert run["state"] == "finished" and run["method"] == "xvfl+" and run["label"] == "churned"
    assert run["epoch"] == run["epochs"] == 3 and set(run["parties"]) == {"bank", "shop"}
    assert run["best_score"] < 0


def test_a_run_has_curves_and_parts(server: DashboardServer) -> None:
    run = get_json(f"{server.url}api/run?name=tables")
    assert run["curves"]["epoch"] == [1, 2, 3]
    assert {"decision", "self"} <= set(run["curves"]["terms"])
    for panel in run["files"]:
        assert get_json(f"{server.url}api/panel?name=tables&panel={panel}")


def test_a_run_of_regression(regression_runs: Path) -> None:
    server = DashboardServer(regression_runs)
    try:
        (listed,) = get_json(f"{server.url}api/runs")["runs"]
        run = get_json(f"{server.url}api/run?name=numbers")
        panels = {
            panel: get_json(f"{server.url}api/panel?name=numbers&panel={panel}")
            for panel in run["files"]
        }
    finally:
        server.close()
    assert listed["state"] == "finished" and listed["label"] == "balance"
    assert run["about"]["task"] == "regression" and run["curves"]["epoch"] == [1, 2, 3]
    evaluation = panels["evaluation"]
    assert evaluation["task"] == "regression" and len(evaluation["pairs"]) > 10
    assert all({"r2", "rmse", "mae"} == set(each["metrics"]) for each in evaluation["lines"])


@pytest.mark.parametrize(
    "name",
    [
        "../inputs",
        "..",
        ".",
        "",
        "/etc",
        "%2e%2e%2finputs",
        "tables/../../inputs",
        "tables%00",
        "x",
    ],
)
def test_names_outside_the_folder_are_refused(server: DashboardServer, name: str) -> None:
    for path in (f"api/run?name={name}", f"api/panel?name={name}&panel=evaluation"):
        assert get(server.url + path)[0] == 404


@pytest.mark.parametrize(
    "panel", ["", "manifest.json", "../tables/manifest.json", "evaluation.json"]
)
def test_only_known_parts_are_served(server: DashboardServer, panel: str) -> None:
    assert get(f"{server.url}api/panel?name=tables&panel={panel}")[0] == 404


@pytest.mark.parametrize(
    "path", ["run.json", "static/index.html", "../assets.py", "api", "tables/"]
)
def test_other_paths_are_refused(server: DashboardServer, path: str) -> None:
    assert get(server.url + path)[0] == 404


def test_links_out_of_the_folder_are_not_followed(finished_runs: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    os.symlink(finished_runs / "tables", tmp_path / "runs" / "linked")
    server = DashboardServer(tmp_path / "runs")
    try:
        assert get_json(f"{server.url}api/runs")["runs"] == []
    finally:
        server.close()


def test_pages_of_other_sites_cannot_read_the_runs(server: DashboardServer) -> None:
    port = server.url.rstrip("/").rpartition(":")[2]
    assert get(f"{server.url}api/runs", f"attacker.example:{port}")[0] == 421
    assert get(f"{server.url}api/runs", f"localhost:{port}")[0] == 200
    for path in ("", "api/runs", "dashboard.js"):
        _, headers, _ = get(server.url + path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_page_loads_nothing_from_outside(server: DashboardServer) -> None:
    for name in ("", "dashboard.js", "panels.js", "charts.js", "elements.js", "dashboard.css"):
        code, _, body = get(server.url + name)
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert code == 200 and "http" not in text.replace("https://", "http"), name


def test_one_run_folder_and_damaged_files(finished_runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "alone"
    shutil.copytree(finished_runs / "tables", copy)
    (copy / "evaluation.json").write_text('{"lines": [')
    (copy / SUMMARY).write_text("[]")
    with (copy / "records.jsonl").open("a") as file:
        file.write('{"kind": "epo')
    server = DashboardServer(copy)
    try:
        run = get_json(f"{server.url}api/run?name=alone")
        assert run["curves"]["epoch"] == [1, 2, 3] and run["state"] == "finished"
        assert get_json(f"{server.url}api/panel?name=alone&panel=evaluation") == {}
    finally:
        server.close()


def test_a_killed_run_is_not_shown_as_training(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    about = start_summary({})
    assert is_running(about) and not is_running({**about, "pid": done.pid})
    assert is_running({**about, "pid": done.pid, "host": "elsewhere"})
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / SUMMARY).write_text(json.dumps({**about, "pid": done.pid}))
    server = DashboardServer(tmp_path)
    try:
        (run,) = get_json(f"{server.url}api/runs")["runs"]
        assert run["state"] == "stopped"
    finally:
        server.close()


@pytest.mark.slow
def test_command_says_its_address_and_ends_by_a_signal(finished_runs: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "xvfl", "dashboard", str(finished_runs), "--port", "0"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[0]
    assert url.startswith("http://127.0.0.1:")
    assert len(get_json(f"{url}api/runs")["runs"]) == 2
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    process.stdout.close()


def test_wrong_folders_and_ports_are_rejected(server: DashboardServer, tmp_path: Path) -> None:
    assert "no such folder" in rejected_with("dashboard", tmp_path / "none")
    port = server.url.rstrip("/").rpartition(":")[2]
    assert "choose another --port" in rejected_with("dashboard", tmp_path, "--port", port)
