"""`xvfl party`: one party's process. It dials out, answers, and keeps its own checkpoints."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from xvfl.certs import peer_name
from xvfl.errors import PartyError
from xvfl.model.fitting import choose_device
from xvfl.model.run_dir import RunDir
from xvfl.service.config import PartyProcessConfig
from xvfl.service.log import Log
from xvfl.service.monitor import StatusServer
from xvfl.service.party_work import Own, PartyWork
from xvfl.training.threads import limit_threads
from xvfl.wire.client import PartyClient

FINISHED = "finished"


def serve_party(config: PartyProcessConfig, show: bool = True) -> None:
    """Take part until the coordinator says that the run is over."""
    name = peer_name(config.tls.read()[1])
    folder = RunDir(config.state_dir).create()
    log = Log(folder.path, name, show)
    work = PartyWork(Own.of(name, config, folder), log.note)
    endpoint = work.endpoint
    dialler = PartyClient(
        config.coordinator,
        config.tls,
        work.hello,
        endpoint.handle,
        lambda: endpoint.over is not None,
        log.note,
        config.max_message_bytes,
        config.reconnect_timeout,
    )
    monitor = (
        StatusServer(config.status_address, lambda: _status(work, dialler))
        if config.status_address
        else None
    )
    log.note({"event": "started", "coordinator": config.coordinator, "rows": len(work.ids)})
    device = choose_device(config.device)
    try:
        with (
            _stopped_by_signals(dialler.stop),
            limit_threads(False, device),
            torch.random.fork_rng(devices=[]),
        ):
            dialler.run()
    finally:
        endpoint.keep()
        if monitor is not None:
            monitor.close()
    log.note({"event": "stopped", "reason": endpoint.over or "stop signal"})
    if endpoint.over is not None and endpoint.over != FINISHED:
        raise PartyError(f"the coordinator ended this party's part: {endpoint.over}")


def _status(work: PartyWork, dialler: PartyClient) -> dict[str, Any]:
    endpoint = work.endpoint
    return {
        "healthy": True,
        "side": "party",
        "name": work.own.name,
        "connected": dialler.connected,
        "matched_rows": endpoint.hello.rows,
        "run": endpoint.run,
        "step": endpoint.step,
        "updates_applied": endpoint.applied,
        "refused": endpoint.refused,
    }


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    def ask(number: int, frame: FrameType | None) -> None:
        stop()

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
