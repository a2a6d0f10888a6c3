"""What a coordinator and a party report about certificates and clocks."""

import threading
import time
from pathlib import Path

import pytest

from tests.command_line import run_xvfl
from tests.service.test_service import SHOP, write
from tests.wire.transport_helpers import wait_until
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.listener import listen
from xvfl.service.party import Identity, connect_party
from xvfl.service.status_server import open_status_server
from xvfl.system.event_log import EventLog
from xvfl.wire.messages import Challenge, Hello


def test_days_left_and_clocks_are_in_status_metrics_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    log = EventLog(tmp_path, "coordinator", show=False)
    hello = Hello(0, "instance", False, 3, "", "")
    # The party's clock is two hours behind.
    late = lambda request_id, nonce: Challenge(request_id, nonce, time.time() - 7200)  # noqa: E731
    monkeypatch.setattr("xvfl.wire.client.Challenge", late)
    with listen(load_coordinator_config(tmp_path / "coordinator.toml"), log) as server:
        config = tmp_path / "shop.toml"
        config.write_text(SHOP.replace("PORT", str(server.port)))
        (tmp_path / "party").mkdir()
        party_log = EventLog(tmp_path / "party", "shop", show=False)
        endpoint = RequestEndpoint(hello, party_log, {}, "no")
        loaded = load_party_config(config)
        identity = Identity(loaded, party_log)
        client = connect_party(loaded, endpoint, party_log, 60, identity)
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        try:
            wait_until(server.transports["shop"].hello)
            found, own = server.status(), identity.status()
        finally:
            client.stop()
            thread.join(60)
    assert found["certificate_days_left"] == own["certificate_days_left"] == 89
    assert found["authority_days_left"] == own["authority_days_left"] == 5 * 365 - 1
    assert found["party_clock_ahead_seconds"]["shop"] == pytest.approx(-7200, abs=5)
    assert own["clock_ahead_seconds"] == pytest.approx(0, abs=5) and not own["clock_warning"]
    assert "the clock of party 'shop' is 7,20" in found["clock_warning"]
    assert '"warning": "the clock of party' in (tmp_path / "log.jsonl").read_text()
    names = {each.name for status in (found, own) for each in status_metrics(status)}
    assert names == {
        "xvfl_certificate_days_left",
        "xvfl_authority_days_left",
        "xvfl_party_clock_ahead_seconds",
        "xvfl_clock_ahead_seconds",
    }
    shown = {"healthy": True, "problem": "", "side": "coordinator", **found}
    status_server = open_status_server("127.0.0.1:0", lambda: shown)
    try:
        said = run_xvfl("status", f"127.0.0.1:{status_server.port}").out
    finally:
        status_server.close()
    assert "certificate days left" in said and "89" in said and "clock warning" in said
