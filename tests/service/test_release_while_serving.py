"""Releases and revocations reach parties that predict, without a stop of the federation."""

import json
from pathlib import Path

import pytest

from tests.command_line import run_xvfl
from tests.service.predicting_federation import Predicting, copy_trained, held_by

pytestmark = pytest.mark.slow


def test_a_coordinator_that_predicts_delivers_releases(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy_trained(tmp_path_factory, tmp_path)
    held = held_by(tmp_path, "bank", "shop")
    with Predicting(tmp_path).start("bank", "shop") as federation:
        config = (tmp_path / "coordinator.toml").read_text()
        address = f'listen = "127.0.0.1:{federation.listen}"'
        (tmp_path / "release.toml").write_text(config.replace('listen = "127.0.0.1:0"', address))
        state = tmp_path / "bank" / "release.json"
        before = json.loads(state.read_text())["number"]

        command = ("release", tmp_path / "release.toml", "--wait", "120", "--to", "bank")
        done = run_xvfl(*command)
        assert done.code == 0 and "delivered" in done.out, done.err
        assert "waiting_for_coordinator" in done.err
        assert json.loads(state.read_text())["number"] > before
        assert federation.event("bank", "released")
        federation.wait_available("bank")
        assert_complete(federation, held)

        # After a revocation the party helps the others, and does not predict its own rows.
        done = run_xvfl(*command, "--revoke", "--reason", "wrong labels")
        assert done.code == 0 and "revocation" in done.out, done.err
        federation.wait_available("bank")
        assert_complete(federation, held)
        port = federation.event("bank", "prediction_endpoint")["port"]
        answer = federation.predict(held[:1], port)
        assert 400 <= answer.status < 500, answer
        assert "revoked" in json.dumps(answer.body)


def assert_complete(federation: Predicting, ids: list[str]) -> None:
    """Check that all parties take part in the answers."""
    answers = federation.predict(ids).predictions
    assert {party for each in answers for party in each["parties"]} == {"bank", "shop"}
    assert not any({"bank", "shop"} & set(each["unreachable"]) for each in answers)
