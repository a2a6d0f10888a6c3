"""Measure prediction by the federation while one party is killed and another one stalls.

Three parties and the coordinator are processes over mutual TLS on this machine. Run with

    python -m tests.service.prediction_report [REQUESTS] [THREADS]

It prints the latency of the requests, beside that of one raw gRPC round trip over mutual TLS with a
payload of the same size in the same run, and the accuracy beside that of each reachable party.
"""

import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np

from tests.service.predicting_federation import (
    PARTIES,
    Predicting,
    by_reachable_parties,
    held_by,
    train_federation,
)

PAYLOAD_BYTES = 2 * 32 * 4
"""Two views of one row of the embeddings in `predicting_federation`."""
PATH = "/raw/Echo"
DEADLINE_S = 2.0


def raw_round_trips(certs: Path, count: int = 300) -> np.ndarray:
    """Measure unary calls of an echo server; the server is in this process."""
    key, certificate, ca = (
        (certs / name).read_bytes() for name in ("coordinator.key", "coordinator.crt", "ca.crt")
    )
    own = [(certs / name).read_bytes() for name in ("bank.key", "bank.crt")]
    server = grpc.server(futures.ThreadPoolExecutor(2))
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", {"Echo": echo}),))
    port = server.add_secure_port(
        "localhost:0", grpc.ssl_server_credentials([(key, certificate)], ca, True)
    )
    server.start()
    seconds, payload = [], bytes(PAYLOAD_BYTES)
    with grpc.secure_channel(
        f"localhost:{port}", grpc.ssl_channel_credentials(ca, *own)
    ) as channel:
        call = channel.unary_unary(PATH)
        call(payload, wait_for_ready=True)
        for _ in range(count):
            started = time.perf_counter()
            call(payload)
            seconds.append(time.perf_counter() - started)
    server.stop(None)
    return np.array(seconds)


def line(name: str, seconds: np.ndarray) -> str:
    """Format quantiles in milliseconds."""
    p50, p99 = 1000 * np.quantile(seconds, [0.5, 0.99])
    return f"{name:40} p50 {p50:8.1f} ms   p99 {p99:8.1f} ms   max {1000 * seconds.max():8.1f} ms"


def main(requests: int = 1000, threads: int = 4) -> None:
    """Train, predict, print."""
    folder = Path(tempfile.mkdtemp(prefix="xvfl-prediction-"))
    train_federation(folder, DEADLINE_S)
    held = held_by(folder, "bank")
    ids = [held[i % len(held)] for i in range(requests)]
    with Predicting(folder).start(*PARTIES) as federation:
        single = [federation.predict([each]).seconds for each in ids[:100]]
        actions = {
            requests * 3 // 10: lambda: federation.signal("shop", signal.SIGKILL),
            requests // 2: lambda: federation.signal("clinic", signal.SIGSTOP),
        }
        answered = federation.send_many(ids, actions, threads)
        raw = raw_round_trips(folder / "certs")
    seconds = np.array([response.seconds for _, response in answered])
    rows = [(each, response.predictions[0]) for each, response in answered]
    limit = 1.1 * DEADLINE_S
    contributors = Counter("+".join(row["parties"]) for _, row in rows)
    print(line("one raw gRPC round trip", raw))
    print(line("one request at a time, all parties", np.array(single)))
    print(line(f"{requests} requests, {threads} at a time, faults", seconds))
    print(f"{(seconds <= limit).sum()} of {requests} within {limit:g} s (deadline + 10 %)")
    print("contributors:", ", ".join(f"{name} {n}" for name, n in contributors.most_common()))
    for group in by_reachable_parties(folder, rows):
        alone = ", ".join(f"{name} {value:.4f}" for name, value in group.alone.items())
        print(f"{group.n_answers} answers: accuracy {group.accuracy:.4f}; alone: {alone}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
