"""A coordinator without parties does not answer as if the rows were unknown."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.service.predicting_federation import Predicting, held_by, new_tables
from xvfl.model.run_dir import RunDir
from xvfl.service.head_store import HeadStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def restarted(trained: Path) -> Iterator[Predicting]:
    """A coordinator that has matched ids with its parties, just after a restart."""
    with Predicting(trained).start("bank", "shop") as federation:
        for name in ("bank", "shop", "coordinator"):
            federation.signal(name, SIGKILL)
            federation.running[name].wait(60)
    # Its port is another one, so no party finds it before it is started again.
    with Predicting(trained).start() as federation:
        yield federation


def test_without_a_party_nothing_is_predicted(restarted: Predicting) -> None:
    stop(restarted, "bank")
    until = time.monotonic() + 60
    while restarted.get("/v2/health/ready")[0] == 200 and time.monotonic() < until:
        time.sleep(0.1)
    (each, *_) = held_by(restarted.folder, "bank")
    response = restarted.predict([each])
    assert response.status == 503, response.body
    assert "predictions" not in response.body and "parties: 0 available" in response.body["error"]
    assert int(response.headers["Retry-After"]) > 0
    assert restarted.get("/v2/health/live")[0] == 200
    status, _, headers = restarted.get("/v2/health/ready")
    assert status == 503 and int(headers["Retry-After"]) > 0
    assert "xvfl_ready 0" in restarted.get("/metrics")[1]


def test_a_row_of_an_unreachable_party_is_not_called_unobserved(restarted: Predicting) -> None:
    start(restarted, "bank")
    tables = new_tables(restarted.folder)
    at_shop = next(each for each in tables["shop"].index if each not in tables["bank"].index)
    at_bank = tables["bank"].dropna().index[0]
    elsewhere, here = restarted.predict([at_shop, at_bank]).predictions
    assert elsewhere["mode"] == "prior" and elsewhere["unreachable"]["shop"] == "not connected"
    text = "; ".join(elsewhere["notes"])
    assert "unreachable: shop (not connected)" in text and "not observed by any party" not in text
    assert here["mode"] == "collaborative" and here["parties"] == ["bank"]
    assert restarted.get("/v2/health/ready")[0] == 200


def test_callers_do_not_learn_the_name_of_the_run(restarted: Predicting) -> None:
    start(restarted, "bank")
    run = HeadStore(RunDir(restarted.folder / "main")).current.manifest()["run"]
    (each, *_) = held_by(restarted.folder, "bank")
    response = restarted.predict([each])
    assert response.status == 200
    for answer in (json.dumps(response.body), restarted.get("/metrics")[1]):
        assert run not in answer


def start(federation: Predicting, name: str) -> None:
    """Start a party that does not run."""
    if name not in federation.running or federation.running[name].poll() is not None:
        federation.start_party(name)
    federation.wait_available(name)


def stop(federation: Predicting, name: str) -> None:
    """Stop a party that runs, and wait until the coordinator has noticed."""
    if name not in federation.running or federation.running[name].poll() is not None:
        return
    federation.signal(name, SIGKILL)
    federation.running[name].wait(60)
    federation.event("main", "disconnected", party=name)
