"""Load: one row at a time, against an empty endpoint of the same server; hot swap under load."""

import json
import os
import shutil
import statistics
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from serve_tests.server import Connection, Server, request_bytes, serving, wait_until

EMPTY = request_bytes("GET", "/v2/health/live")
ROW = {"age": 41, "balance": None}
PREDICT = request_bytes("POST", "/predict", json.dumps({"rows": [ROW]}).encode())
CLIENTS = 16


def send_for(server: Server, request: bytes, seconds: float) -> tuple[Counter[int], float]:
    """Send a request from several clients; return the statuses, and the requests a second."""
    statuses: Counter[int] = Counter()
    end = time.perf_counter() + seconds

    def client() -> None:
        connection, own = Connection(server.port), Counter[int]()
        while time.perf_counter() < end:
            own[connection.send(request).status] += 1
        connection.close()
        statuses.update(own)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses, statuses.total() / (time.perf_counter() - start)


@pytest.mark.slow
def test_single_rows_against_an_empty_endpoint(bundles: Path) -> None:
    with serving(bundles / "bank.xvfl") as server:
        send_for(server, PREDICT, 0.5)
        rates: dict[bytes, list[float]] = {EMPTY: [], PREDICT: []}
        failed: Counter[int] = Counter()
        # In turns, so that other work on the machine affects both alike.
        for _ in range(6):
            for request, found in rates.items():
                statuses, rate = send_for(server, request, 0.4)
                found.append(rate)
                failed += Counter({code: n for code, n in statuses.items() if code != 200})
    ratios = [p / e for p, e in zip(rates[PREDICT], rates[EMPTY], strict=True)]
    empty, predicted = (statistics.median(rates[each]) for each in (EMPTY, PREDICT))
    ratio = statistics.median(ratios)
    print(f"empty {empty:.0f}/s, prediction {predicted:.0f}/s, ratio {ratio:.2f}, failed {failed}")
    assert not failed
    assert ratio >= 1 / 3


@pytest.mark.slow
def test_hot_swap_under_load(bundles: Path, tmp_path: Path) -> None:
    path = tmp_path / "served.xvfl"
    shutil.copy(bundles / "bank.xvfl", path)
    digests: set[str] = set()
    statuses: Counter[int] = Counter()
    stop = threading.Event()
    with serving(path) as server:

        def client() -> None:
            connection = Connection(server.port)
            while not stop.is_set():
                answer = connection.send(PREDICT)
                statuses[answer.status] += 1
                digests.add(answer.json()["bundle"])
            connection.close()

        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(digests) == 1)
        for swap, name in enumerate(("other", "bank", "other"), 2):
            shutil.copy(bundles / f"{name}.xvfl", tmp_path / "new")
            os.replace(tmp_path / "new", path)
            text = f'xvfl_reloads_total{{result="loaded"}} {swap - 1}'
            wait_until(lambda text=text: text in server.ask("GET", "/metrics").body.decode())
        stop.set()
        for thread in threads:
            thread.join()
    print(f"{statuses.total()} requests during 3 swaps, statuses {dict(statuses)}")
    assert set(statuses) == {200}
    assert len(digests) == 2
