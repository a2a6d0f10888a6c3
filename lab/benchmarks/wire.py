"""Bytes and time of a training step over gRPC with mutual TLS, beside the fused step.

    python lab/benchmarks/wire.py [--rows 512] [--steps 60]

Two parties in processes of their own on loopback, the demo's digits. Prints bytes against the
tensors' own, and the step's time against fused compute + three raw round trips of the same
payload: bare grpc.aio streams with the same certificates that do nothing but carry bytes.
Compare ratios within one run: absolute times on shared machines mean little.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import torch

from xvfl.certs import PeerVerifier, create_authority
from xvfl.certs.loaded_tls import LoadedTls
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.primitives.layout import any_image
from xvfl.service.release_delivery import end_party
from xvfl.training.loop import Trainer
from xvfl.training.threads import limit_threads
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Hello
from xvfl.wire.server import CoordinatorServer
from xvfl.wire.tls import Tls, channel_options
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns

PARTIES, WARM = ("left", "right"), 15
NET = NetConfig(embedding_dim=64, hidden_dim=128, members=1)


def stack(train: TrainConfig) -> StackedRuns:
    """Build the demo's task with its nets; the same in every process."""
    return StackedRuns(
        digits(), [RunConfig("xvfl+", 0.5, 0, net=NET, loss=LossConfig(), train=train)]
    )


def tls(folder: Path, name: str) -> Tls:
    """Return the certificate files of a party or the coordinator."""
    return Tls(str(folder / "ca.crt"), str(folder / f"{name}.crt"), str(folder / f"{name}.key"))


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Return the credentials of the coordinator."""
    return LoadedTls(tls(folder, "coordinator")).server_credentials()


class Nowhere:
    """A checkpoint store that stores nothing."""

    def save(self, *given: Any) -> None:
        """Do nothing."""

    def newest(self, run: str, step: int) -> None:
        """Return None: there is no checkpoint."""


def serve(name: str, port: int, folder: Path, rows: int) -> None:
    """Run a party."""
    train = TrainConfig(batch_size=rows, device="cpu")
    made = stack(train)
    with limit_threads(any_image(made.task.layouts), torch.device("cpu")):
        worker = next(s for s in made.federation.workers if s.name == name)
        row_status = torch.zeros(len(worker.table), dtype=torch.uint8)
        hello = Hello(0, name, False, len(worker.table), "", "")
        end = Endpoint(hello, lambda s, t: PartyRun(worker, row_status), Nowhere())  # type: ignore[arg-type]
        over = lambda: end.end_reason is not None  # noqa: E731
        PartyClient(
            f"localhost:{port}",
            tls(folder, name).client_credentials,
            lambda: hello,
            end.handle,
            over,
        ).run()


def timed(steps: Any, count: int) -> float:
    """Return the median seconds of a step."""
    times = []
    for _ in range(WARM + count):
        started = time.perf_counter()
        while next(steps).kind != "step":
            started = time.perf_counter()
        times.append(time.perf_counter() - started)
    return statistics.median(times[WARM:])


def over_grpc(folder: Path, rows: int, count: int) -> tuple[float, float, float]:
    """Return the seconds of a step, its bytes, and the bytes of its tensors alone."""
    train = TrainConfig(epochs=1000, batch_size=rows, device="cpu", patience=0)
    made = stack(train)
    peers = PeerVerifier(folder / "ca.crt", None)
    listener = CoordinatorServer(
        "localhost:0",
        server_credentials(folder),
        PARTIES,
        peers.check,
    )
    spawn = multiprocessing.get_context("spawn")
    running = [
        spawn.Process(target=serve, args=(name, listener.port, folder, rows), daemon=True)
        for name in PARTIES
    ]
    for each in running:
        each.start()
    lines = [listener.transports[name] for name in PARTIES]
    net, loss, train = made.options.net, made.options.loss, made.options.train
    said = json.dumps(asdict(RunSettings("xvfl+", net, train, loss.reconstruction_weight)))
    federation = SplitFederation([RemoteParty(line.name, line) for line in lines], 64)
    begin_run(federation, RunTerms("run", said))
    trainer = Trainer(federation, made.method, made.rows("train"), train)
    steps = trainer.run(lambda: 0.0)
    timed(steps, 1)
    before = sum(sum(line.traffic()) for line in lines)
    seconds = timed(steps, count)
    after = sum(sum(line.traffic()) for line in lines)
    for party in federation.parties:
        end_party(party)
    for each in running:
        each.join(30)
    listener.close()
    views = 1 + 2 * loss.n_masks
    per_row = 4 * 64 * (2 * views + 4)
    own = len(PARTIES) * trainer.batch_size * per_row
    return seconds, (after - before) / (WARM + count), own


def raw(folder: Path, payload: int, count: int) -> float:
    """Return the median seconds of a plain round trip to both parties, payload each way."""
    started: Future[int] = Future()
    result: Future[float] = Future()
    threading.Thread(
        target=asyncio.run, args=(_raw(folder, payload, count, started, result),)
    ).start()
    spawn = multiprocessing.get_context("spawn")
    port = started.result(30)
    running = [
        spawn.Process(target=bare, args=(name, port, folder, payload), daemon=True)
        for name in PARTIES
    ]
    for each in running:
        each.start()
    seconds = result.result(120)
    for each in running:
        each.join(30)
    return seconds


async def _raw(
    folder: Path, payload: int, count: int, started: Future[int], result: Future[float]
) -> None:
    streams: list[Any] = []
    ready, over = asyncio.Event(), asyncio.Event()

    async def join(frames: Any, stream: Any) -> None:
        streams.append((frames, stream))
        if len(streams) == len(PARTIES):
            ready.set()
        await over.wait()

    server = grpc.aio.server(options=channel_options())
    handler = grpc.stream_stream_rpc_method_handler(join)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Raw", {"Go": handler}),))
    started.set_result(server.add_secure_port("localhost:0", server_credentials(folder)))
    await server.start()
    await ready.wait()
    body, times = bytes(payload), []

    async def once(frames: Any, stream: Any) -> None:
        await stream.write(body)
        await anext(frames)

    iterators = [(aiter(frames), stream) for frames, stream in streams]
    for _ in range(3 * (WARM + count)):
        begun = time.perf_counter()
        await asyncio.gather(*(once(*each) for each in iterators))
        times.append(time.perf_counter() - begun)
    over.set()
    await server.stop(1)
    result.set_result(statistics.median(times[WARM:]))


def bare(name: str, port: int, folder: Path, payload: int) -> None:
    """Run a party that only sends bytes back."""

    async def run() -> None:
        body = bytes(payload)
        credentials = tls(folder, name).client_credentials()
        async with grpc.aio.secure_channel(
            f"localhost:{port}", credentials, channel_options()
        ) as channel:
            call = channel.stream_stream("/Raw/Go")()
            try:
                while (await call.read()) is not grpc.aio.EOF:
                    await call.write(body)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return

    asyncio.run(run())


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as made,
        limit_threads(any_image(digits().layouts), torch.device("cpu")),
    ):
        folder = Path(made) / "certs"
        authority = create_authority(folder)
        authority.issue("coordinator", hosts=("localhost",))
        for name in PARTIES:
            authority.issue(name)
        seconds, sent, own = over_grpc(folder, options.rows, options.steps)
        trip = raw(folder, round(own / len(PARTIES) / 6), options.steps)
        train = TrainConfig(epochs=1000, batch_size=options.rows, device="cpu", patience=0)
        alone = stack(train)
        rows = alone.rows("train")
        fused = timed(
            Trainer(alone.federation, alone.method, rows, alone.options.train).run(lambda: 0.0),
            options.steps,
        )
    print(f"rows of a step          {options.rows}")
    print(f"bytes a step            {sent:,.0f}, the tensors' own {own:,.0f}: x {sent / own:.4f}")
    print(f"fused step              {1000 * fused:.1f} ms")
    print(f"raw round trip          {1000 * trip:.1f} ms, three of them {3000 * trip:.1f} ms")
    print(f"step over gRPC          {1000 * seconds:.1f} ms: x {seconds / (fused + 3 * trip):.2f}")


if __name__ == "__main__":
    main()
