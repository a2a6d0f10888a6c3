"""Interactive training as operators run it: commands, folders, refusals, release."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.command_line import rejected_with, run_xvfl
from tests.processes import until_finished
from tests.small_tables import SOURCE
from xvfl.certs import create_authority
from xvfl.system.event_log import read_log

COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["shop"]
revocation_list = "certs/ca.crl"
state_dir = "main"
release_to = ["shop"]
status_address = "127.0.0.1:0"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
[local_party]
name = "bank"
table = "bank.csv"
id_column = "customer"
[local_party.encoder]
epochs = 10
embedding_dim = 32
[net]
hidden_dim = 128
[train]
epochs = 12
learning_rate = 0.01
batch_size = 32
patience = 0
device = "cpu"
"""
SHOP = """\
coordinator = "localhost:PORT"
table = "shop.csv"
id_column = "customer"
state_dir = "shop"
release_key = "main/release.pub"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/shop.crt"
private_key = "certs/shop.key"
[encoder]
epochs = 10
embedding_dim = 32
"""

INTERACTIVE = ('[privacy]\nlabel_protection = "off"\n', 'training = "interactive"\n')
"""Interactive training: appended to the coordinator's configuration, put before the party's."""


def write(folder: Path) -> None:
    """Write tables of two organizations, labels, certificates and the coordinator's side."""
    rng = np.random.default_rng(3)
    ids = [f"c{i:03}" for i in range(240)]
    x = rng.normal(size=(240, 4))
    churned = np.where(x[:, 0] + x[:, 2] > 0, "yes", "no")
    bank = pd.DataFrame({"customer": ids, "income": x[:, 0], "age": x[:, 1]})
    shop = pd.DataFrame({"customer": ids, "spent": x[:, 2], "visits": x[:, 3]})
    bank.iloc[20:].sample(frac=1, random_state=1).to_csv(folder / "bank.csv", index=False)
    shop.iloc[:210].sample(frac=1, random_state=2).to_csv(folder / "shop.csv", index=False)
    pd.DataFrame({"customer": ids, "churned": churned}).to_csv(folder / "labels.csv", index=False)
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost",))
    for name in ("shop", "stranger"):
        authority.issue(name)
    (folder / "coordinator.toml").write_text(COORDINATOR)


def start(folder: Path, *arguments: str, code: str = "") -> "subprocess.Popen[str]":
    """Start a command; `code` runs it in another way than `python -m xvfl`."""
    return subprocess.Popen(
        [sys.executable, *(("-c", code) if code else ("-m", "xvfl")), *until_finished(*arguments)],
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(folder: Path, event: str, process: "subprocess.Popen[str]") -> dict[str, object]:
    """Wait for an event in a side's log."""
    until = time.monotonic() + 300
    while True:
        for each in read_log(folder):
            if each["event"] == event:
                return each
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, event
        time.sleep(0.02)


PAUSE_AFTER_AN_EPOCH = """
import pathlib, runpy, time
from xvfl.system.event_log import EventLog

write = EventLog.write

def write_and_pause(self, event):
    write(self, event)
    while event["event"] == "epoch" and not pathlib.Path("scraped").exists():
        time.sleep(0.01)

EventLog.write = write_and_pause
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""The command line; training pauses after an epoch until the metrics have been read."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a coordinator with features of its own and a party have trained."""
    folder = tmp_path_factory.mktemp("federation")
    write(folder)
    main = start(folder, "coordinator", "coordinator.toml", code=PAUSE_AFTER_AN_EPOCH)
    address = str(wait_for(folder / "main", "listening", main)["address"])
    port = wait_for(folder / "main", "status_server", main)["port"]
    said = run_xvfl("status", f"127.0.0.1:{port}")
    assert said.code == 0 and "matching" in said.out and "shop" in said.out
    (folder / "shop.toml").write_text(SHOP.replace("PORT", address.rpartition(":")[2]))
    shop = start(folder, "party", "shop.toml")
    wait_for(folder / "main", "epoch", main)
    seen = [read_page(f"http://127.0.0.1:{port}/{page}") for page in ("metrics", "health")]
    (folder / "scraped").touch()
    out, err = main.communicate(timeout=600)
    assert main.returncode == 0, err
    assert "collaborative" in out
    shop.communicate(timeout=600)
    assert shop.returncode == 0
    (folder / "seen.json").write_text(json.dumps(seen))
    return folder


def read_page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=120) as reply:
        text: str = reply.read().decode()
    return text


def test_it_trains_and_evaluates(finished: Path) -> None:
    lines = json.loads((finished / "main/heads/1/evaluation.json").read_text())["lines"]
    assert {(line["mode"], line["party"]) for line in lines} >= {
        ("local", "bank"),
        ("local", "shop"),
        ("collaborative", "all"),
    }
    records = (finished / "main/heads/1/records.jsonl").read_text().splitlines()
    assert len(records) == 12
    assert "the head is trained" in rejected_with(
        "coordinator", finished / "coordinator.toml", "--quiet"
    )


def test_health_and_metrics(finished: Path) -> None:
    metrics, health = json.loads((finished / "seen.json").read_text())
    assert health == "ok\n"
    assert 'xvfl_party_present{party="shop"} 1.0' in metrics
    assert 'xvfl_party_encoder_progress{party="shop"} 1.0' in metrics
    assert 'xvfl_party_upload_version{party="shop"} 1.0' in metrics
    assert 'xvfl_party_upload_bytes{party="shop"} 68250.0' in metrics
    families = [*text_string_to_metric_families(metrics)]
    assert all(each.name.startswith("xvfl_") and each.documentation for each in families)
    assert {each.type for each in families} == {"gauge", "counter"}
    assert 'xvfl_events_total{event="listening"} 1.0' in metrics


def test_the_log_is_structured_and_says_the_story(finished: Path) -> None:
    events = [each["event"] for each in read_log(finished / "main")]
    story = ["listening", "matched", "upload_received", "run_started", "epoch", "finished"]
    at = [events.index(each) for each in story]
    assert at == sorted(at), events
    assert events.index("connected") < events.index("upload_received")
    assert "released" in events
    theirs = [each["event"] for each in read_log(finished / "shop")]
    story = ["matched", "encoder_training", "encoder_trained", "upload_stored", "released"]
    at = [theirs.index(each) for each in story]
    assert at == sorted(at), theirs


def test_no_side_has_the_others_files(finished: Path) -> None:
    ours = {path.name for path in (finished / "shop").rglob("*") if path.is_file()}
    assert {"alignment.json", "encoder.json", "held_out.json", "log.jsonl"} <= ours
    assert not ours & {"evaluation.json", "records.jsonl", "release.key"}
    secret = (finished / "main" / "release.key").stat().st_mode & 0o777
    assert secret == 0o600


def test_a_released_party_predicts_alone(finished: Path) -> None:
    out = finished / "answers.csv"
    said = run_xvfl("predict", finished / "shop", f"shop={finished / 'shop.csv'}", "--out", out)
    assert said.code == 0, said.err
    answers = pd.read_csv(out)
    assert len(answers) == 210 and set(answers["mode"]) == {"local"}
    truth = pd.read_csv(finished / "labels.csv").set_index("customer")["churned"]
    right = answers["prediction"].to_numpy() == truth.loc[answers["id"]].to_numpy()
    assert right.mean() > 0.6


def test_an_unreleased_party_says_so(finished: Path) -> None:
    bank = (f"bank={finished / 'bank.csv'}", "--out", finished / "no.csv")
    assert "no head was released to this party" in rejected_with(
        "predict", finished / "main/bank", *bank
    )
    assert "a coordinator's folder" in rejected_with("predict", finished / "main", *bank)


@pytest.fixture
def coordinator(finished: Path) -> Iterator["Callable[[], subprocess.Popen[str]]"]:
    """The same coordinator, which trains another head and waits for `shop` to take it."""
    running: list[subprocess.Popen[str]] = []

    def begin() -> "subprocess.Popen[str]":
        (finished / "main" / "log.jsonl").unlink(missing_ok=True)
        running.append(start(finished, "coordinator", "coordinator.toml", "--retrain"))
        address = str(wait_for(finished / "main", "listening", running[-1])["address"])
        (finished / "shop.toml").write_text(SHOP.replace("PORT", address.rpartition(":")[2]))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_another_session_is_refused_on_both_sides(
    finished: Path, coordinator: "Callable[[], subprocess.Popen[str]]"
) -> None:
    kept = finished / "shop" / "alignment.json"
    before = kept.read_text()
    kept.unlink()
    process = coordinator()
    try:
        line = rejected_with("party", finished / "shop.toml", "--quiet", "--once")
    finally:
        kept.write_text(before)
    assert "rejected the connection: party 'shop': its ids were matched in session" in line
    event = wait_for(finished / "main", "connection_rejected", process)
    assert "match again" in str(event["reason"])


def test_changed_tables_are_refused(finished: Path) -> None:
    table = finished / "shop.csv"
    before = table.read_text()
    try:
        table.write_text("\n".join(before.splitlines()[:-1]) + "\n")
        line = rejected_with("party", finished / "shop.toml", "--quiet", "--once")
        assert "changed since its ids were matched: 209 rows instead of 210" in line
        table.write_text(before.replace("visits", "calls", 1))
        assert "missing columns: 'visits'" in rejected_with(
            "party", finished / "shop.toml", "--quiet", "--once"
        )
    finally:
        table.write_text(before)


@pytest.mark.slow
def test_a_stranger_is_refused_by_name(
    finished: Path, coordinator: "Callable[[], subprocess.Popen[str]]"
) -> None:
    process = coordinator()
    text = (finished / "shop.toml").read_text()
    text = text.replace("shop.crt", "stranger.crt").replace("shop.key", "stranger.key")
    (finished / "stranger.toml").write_text(
        text.replace('state_dir = "shop"', 'state_dir = "strange"')
    )
    line = rejected_with("party", finished / "stranger.toml", "--quiet", "--once")
    assert "does not accept this certificate's name" in line and "shop" not in line
    event = wait_for(finished / "main", "connection_rejected", process)
    assert "'stranger' is not in this coordinator's configuration: shop" in str(event["reason"])


@pytest.mark.slow
def test_plain_tcp_is_in_the_log(
    finished: Path, coordinator: "Callable[[], subprocess.Popen[str]]"
) -> None:
    process = coordinator()
    address = str(wait_for(finished / "main", "listening", process)["address"])
    with socket.create_connection(("localhost", int(address.rpartition(":")[2]))) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        event = wait_for(finished / "main", "connection_dropped", process)
    assert "the TLS handshake failed" in str(event["reason"])


@pytest.mark.parametrize(
    ("command", "change", "said"),
    [
        ("coordinator", ("state_dir", 'state_dr = "main"\n'), "did you mean 'state_dir'"),
        ("coordinator", ("release_to", 'release_to = ["bnak"]\n'), "did you mean 'bank'"),
        ("coordinator", ("loss", '[loss]\nmethod = "vanilla"\n'), "no party can use it alone"),
        ("party", ("", ""), "got the coordinator's"),
    ],
)
def test_wrong_configurations(
    finished: Path, tmp_path: Path, command: str, change: tuple[str, str], said: str
) -> None:
    lines = (
        COORDINATOR.replace('release_to = ["shop"]\n', "")
        if change[0] == "release_to"
        else COORDINATOR
    )
    table = change[1].startswith("[")
    config = finished / "wrong.toml"
    config.write_text(lines + change[1] if table else change[1] + lines)
    assert said in rejected_with(command, config)


def test_nobody_to_ask_about_the_status() -> None:
    assert "no response" in rejected_with("status", "127.0.0.1:1")
    assert "expected HOST:PORT" in rejected_with("status", "here")
