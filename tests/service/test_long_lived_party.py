"""Parties that are started once: trained, served, retrained, rolled back, joined by a new peer.

Processes over mutual TLS, under a steady load of predictions.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.processes import ENVIRONMENT, free_port, run_process
from tests.service.predicting_federation import (
    PARTIES,
    Predicting,
    copy_trained,
    held_by,
    write_federation,
    write_party,
)
from tests.service.test_stand_in_processes import Callers, heads_used, wait_for_heads
from xvfl.certs import open_authority
from xvfl.system.event_log import read_log
from xvfl.system.user import user_name
from xvfl.trail.approvals import KINDS
from xvfl.trail.verify import read_trail, verify_trail

pytestmark = pytest.mark.slow
NEW = "lab"
UNLIMITED = "max_per_caller = 100_000_000\nmax_per_day = 100_000_000\n"


class LongLived(Predicting):
    """Processes that are started once."""

    def start_all(self) -> "LongLived":
        """Start all parties and a coordinator that trains, if it has no head, then predicts."""
        self.listen = free_port()
        config = self.folder / "coordinator.toml"
        text = config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{self.listen}", 1)
        config.write_text(text)
        for name in PARTIES:
            self.join(name)
        self.launch("coordinator")
        return self.wait_all()

    def wait_all(self) -> "LongLived":
        """Wait until the coordinator predicts and all parties are available."""
        self.port = int(self.event("main", "prediction_endpoint")["port"])
        for name in PARTIES:
            self.event("main", "party_available", party=name)
        return self

    def join(self, name: str) -> None:
        """Start a party."""
        write_party(self.folder, name, self.listen, more=UNLIMITED)
        self.launch(name, serve=False)

    def retrain(self) -> None:
        """Train another head beside the coordinator that predicts; wait until it is used."""
        used = len(heads_used(self.folder))
        run_process(self.folder, "coordinator", "coordinator.toml", "--retrain", "--quiet")
        wait_for_heads(self.folder, used + 1)

    def waiting(self, name: str) -> list[dict[str, object]]:
        """Return what waits for approval in the status of a party."""
        port = int(self.event(name, "status_server")["port"])
        found: list[dict[str, object]] = json.loads(self.get("/status", port)[1])["approvals"]
        return found

    def approve(self, name: str, kind: str, *more: str) -> None:
        """Decide about the request that waits at a party; wait for it first."""
        while not (found := self.waiting(name)):
            assert self.running[name].poll() is None
            time.sleep(0.2)
        (request,) = found
        assert request["kind"] == kind
        port = int(self.event(name, "status_server")["port"])
        assert "xvfl_approvals_pending 1.0" in self.get("/metrics", port)[1]
        config = self.folder / f"{name}.toml"
        listed = run_xvfl("approve", config)
        assert listed.code == 0 and KINDS[kind].split()[0] in listed.out
        decided = run_xvfl("approve", config, request["number"], *more)
        assert decided.code == 0 and KINDS[kind] in decided.out, decided
        assert self.waiting(name) == []

    def model(self, ids: list[str]) -> dict[str, object]:
        """Return what the answers name of the head."""
        (model,) = {json.dumps(each["model"]) for each in self.predict(ids).predictions}
        found: dict[str, object] = json.loads(model)
        return found


def add_tables(folder: Path, name: str) -> None:
    """Write tables of a further party."""
    rng = np.random.default_rng(11)
    for table, end in (("labels.csv", ""), ("new-ids.csv", "-new")):
        ids = pd.read_csv(folder / table)[["customer"]]
        ids = ids[ids["customer"] != "nobody"]
        ids.assign(x=rng.normal(size=len(ids))).to_csv(folder / f"{name}{end}.csv", index=False)


def add_party(folder: Path, name: str) -> None:
    """Write tables and a certificate of a further party, and its name in the configuration."""
    add_tables(folder, name)
    open_authority(folder / "certs").issue(name)
    config = folder / "coordinator.toml"
    text = config.read_text().replace('"clinic"]', f'"clinic", "{name}"]', 1)
    config.write_text(text)


def test_parties_are_started_once(tmp_path: Path) -> None:
    write_federation(tmp_path)
    asked = held_by(tmp_path, *PARTIES)[:20]
    with LongLived(tmp_path).start_all() as federation:
        first = dict(federation.running)
        assert federation.model(asked)["head"] == 1
        with Callers(federation, asked) as callers:
            # Another version of an encoder, by the party's operator.
            done = run_xvfl("upload", "new-version", tmp_path / "bank.toml")
            assert done.code == 0, done.err
            federation.retrain()
            expected = dict.fromkeys(PARTIES, "1") | {"bank": "2"}
            assert federation.model(asked)["encoders"] == expected
            federation.wait_available("bank")
            back = run_xvfl("rollback", tmp_path / "coordinator.toml")
            assert back.code == 0, back.err
            wait_for_heads(tmp_path, 2)
            assert federation.model(asked)["head"] == 1
            # A new peer.
            add_party(tmp_path, NEW)
            federation.join(NEW)
            federation.retrain()
            assert set(federation.model(asked)["encoders"]) == {*PARTIES, NEW}  # type: ignore[call-overload]
            federation.wait_available(NEW)
            answers = federation.predict(asked).predictions
            assert any(NEW in each["parties"] for each in answers)
        assert callers.problems == [] and callers.count > 10
        for name, process in first.items():
            assert process.poll() is None and federation.running[name] is process
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    for name in PARTIES:
        events = [each["event"] for each in read_log(tmp_path / name)]
        assert events.count("started") == 1 and "failed" not in events


def test_what_needs_consent_waits_for_it(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    copy_trained(tmp_path_factory, tmp_path)
    asked = held_by(tmp_path, *PARTIES)[10:20]
    config = tmp_path / "coordinator.toml"
    with LongLived(tmp_path).start_all() as federation:
        parties = {name: federation.running[name] for name in PARTIES}
        # The coordinator would like another encoder of the bank, which refuses first.
        ask = ("ask", config, "new-version", "--party", "bank", "--reason", "rows of October")
        assert run_xvfl(*ask).code == 0
        federation.approve("bank", "new-version", "--reject")
        assert run_xvfl("upload", "new-version", tmp_path / "bank.toml").code == 0
        federation.retrain()
        assert federation.model(asked)["encoders"] == dict.fromkeys(PARTIES, "1") | {"bank": "2"}
        # Ids are matched again: the coordinator waits for the shop.
        align = subprocess.Popen(
            [sys.executable, "-m", "xvfl", "align", str(config), "--party", "shop"],
            env=ENVIRONMENT,
        )
        federation.approve("shop", "match")
        assert align.wait() == 0
        retrain = subprocess.Popen(
            [sys.executable, "-m", "xvfl", "coordinator", str(config), "--retrain", "--quiet"],
            env=ENVIRONMENT,
        )
        federation.approve("shop", "new-rows")
        assert retrain.wait() == 0
        wait_for_heads(tmp_path, 2)
        versions = {"bank": "2", "shop": "1.1", "clinic": "1"}
        assert federation.model(asked)["encoders"] == versions
        # The clinic's table changes: after the next run its operator has to say so.
        table = pd.read_csv(tmp_path / "clinic.csv")
        table.iloc[:-1].to_csv(tmp_path / "clinic.csv", index=False)
        federation.retrain()
        federation.approve("clinic", "match")
        run_process(tmp_path, "align", "coordinator.toml", "--party", "clinic")
        assert federation.predict(asked).status == 200
        # Another list of ids may be predicted.
        federation.signal("coordinator", signal.SIGTERM)
        assert federation.running["coordinator"].wait() == 0
        ids = pd.read_csv(tmp_path / "new-ids.csv")
        ids.iloc[:100].to_csv(tmp_path / "new-ids.csv", index=False)
        federation.launch("coordinator")
        for name in PARTIES:
            federation.approve(name, "match-prediction")
        federation.wait_all()
        answers = federation.predict(asked).predictions
        assert {name for each in answers for name in each["parties"]} == {*PARTIES}
        for name, process in parties.items():
            assert process.poll() is None and federation.running[name] is process
    for name in PARTIES:
        found = verify_trail(read_trail(tmp_path / name))
        assert found.problems == []
        decided = [each for each in found.entries if each["event"].startswith("request_")]
        assert decided and {each["by"] for each in decided} == {user_name()}
