"""Releases and revocations reach parties that predict, without a stop of the federation."""

import json
from pathlib import Path

import pytest

from tests.command_line import run_xvfl
from tests.security.route_walk import TOKENS, bearer, request, write_tokens
from tests.service.predicting_federation import Predicting, copy_trained, held_by
from xvfl.trail.entries import TRAIL
from xvfl_serve.http.callers import Right

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


def test_a_caller_with_the_right_releases_over_http(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy_trained(tmp_path_factory, tmp_path)
    write_tokens(tmp_path)
    config = tmp_path / "coordinator.toml"
    config.write_text('status_tokens = "tokens"\n' + config.read_text())
    with Predicting(tmp_path).start("bank") as federation:
        port = federation.event("main", "status_server")["port"]
        state = tmp_path / "bank" / "release.json"
        before = json.loads(state.read_text())["number"]

        def release(right: Right, **more: str) -> int:
            body = json.dumps({"parties": ["bank"], **more})
            return request(port, "POST", "/release", bearer(TOKENS[right]), body).status

        assert release("look") == 403
        assert release("release") == 200
        assert federation.event("bank", "released")["number"] > before
        assert release("release", revoke="wrong labels") == 200
        assert federation.event("bank", "release_revoked")
        refused = federation.event("main", "access_refused")
        assert (refused["caller"], refused["right"]) == ("look", "release")
        lines = (tmp_path / "main" / TRAIL).read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        signed = [each for each in entries if each["event"] == "release_signed"]
        assert [each["by"] for each in signed][-2:] == 2 * ["release over HTTP"]


def assert_complete(federation: Predicting, ids: list[str]) -> None:
    """Check that all parties take part in the answers."""
    answers = federation.predict(ids).predictions
    assert {party for each in answers for party in each["parties"]} == {"bank", "shop"}
    assert not any({"bank", "shop"} & set(each["unreachable"]) for each in answers)
