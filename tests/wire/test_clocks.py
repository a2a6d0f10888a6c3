"""Wrong clocks: they are measured and named when a peer connects, and stop no request."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port, run_python
from tests.wire.transport_helpers import issue_certificates, run_client
from xvfl.certs.clocks import PeerClocks, clock_warning
from xvfl.errors import WireError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.wire.messages import Hello, Match, Matched

HELLO = Hello(0, "instance_id", False, 3, "columns", "session")
TWO_HOURS = 7200.0


def test_a_large_difference_names_both_clocks() -> None:
    events: list[Any] = []
    clocks = PeerClocks(events.append)
    clocks.compare("bank", time.time() + 0.2)
    assert 0 <= clocks.ahead["bank"] <= 0.3 and not clocks.warning
    clocks.compare("shop", time.time() - TWO_HOURS)
    assert clocks.ahead["shop"] == pytest.approx(-TWO_HOURS, abs=1)
    assert "the clock of party 'shop' is 7,200 s behind this coordinator's" in clocks.warning
    assert [each["event"] for each in events] == ["clock_compared"] * 2
    assert "warning" not in events[0] and events[1]["warning"] == clocks.warning
    clocks.compare("shop", time.time())
    assert clocks.warning == ""


def test_a_party_names_the_clock_of_its_coordinator() -> None:
    clocks = PeerClocks(lambda event: None)
    clocks.compare("", time.time() + TWO_HOURS)
    assert "the coordinator's clock is 7,200 s ahead of this party's" in clocks.warning
    assert clock_warning(59.0, "a", "b") == "" != clock_warning(-61.0, "a", "b")


@pytest.mark.parametrize("sent", [float("nan"), float("inf"), float("-inf")])
def test_a_time_that_is_none_is_rejected(sent: float) -> None:
    with pytest.raises(WireError, match="time of the sender's clock"):
        PeerClocks(lambda event: None).compare("bank", sent)


COORDINATOR = """
import json, sys, time
sys.path.insert(0, {root!r})
real, real_ns, ahead = time.time, time.time_ns, [float(sys.argv[3])]
time.time = lambda: real() + ahead[0]
time.time_ns = lambda: real_ns() + int(ahead[0] * 1e9)
from pathlib import Path
from tests.wire.transport_helpers import run_server, wait_until
from xvfl.certs.clocks import PeerClocks
from xvfl.wire.messages import Match
from xvfl.wire.request_ids import next_request_id

clocks = PeerClocks(lambda event: None)
replies = []
with run_server(
    Path(sys.argv[1]), ["p0"], f"localhost:{{sys.argv[2]}}", on_clock=clocks.compare
) as server:
    transport = server.transports["p0"]
    wait_until(transport.hello)
    for ahead[0] in map(float, sys.argv[3:]):
        for i in range(3):
            reply = transport.request(Match(next_request_id(), b"question")).result(60)
            replies.append(type(reply).__name__)
print(json.dumps([clocks.ahead["p0"], clocks.warning, replies]))
"""


def test_a_coordinator_whose_clock_is_corrected_is_served_by_the_same_party(tmp_path: Path) -> None:
    folder, port = issue_certificates(tmp_path / "certs", ["p0"]), free_port()
    events: list[Any] = []
    clocks = PeerClocks(events.append)
    endpoint = RequestEndpoint(
        HELLO, events.append, {Match: lambda message: Matched(message.request_id, b"")}, "no"
    )
    script = COORDINATOR.format(root=str(Path(__file__).resolve().parents[2]))
    with run_client(
        folder, "p0", port, HELLO, endpoint.handle, on_clock=partial(clocks.compare, "")
    ):
        # Two hours ahead and corrected while it runs; then again, and right from its start.
        for seconds in ((7200, 0), (7200,), (0, -7200), (0,)):
            done = run_python("-c", script, str(folder), str(port), *map(str, seconds))
            assert done.returncode == 0, done.stderr
            ahead, warning, replies = json.loads(done.stdout)
            assert replies == ["Matched"] * 3 * len(seconds)
            assert ahead == pytest.approx(-seconds[0], abs=5)
            assert clocks.ahead[""] == pytest.approx(seconds[0], abs=5)
            assert bool(warning) == bool(clocks.warning) == bool(seconds[0])
    assert endpoint.n_rejected == 0
    compared = [each for each in events if each["event"] == "clock_compared"]
    assert ["warning" in each for each in compared] == [True, True, False, False]
