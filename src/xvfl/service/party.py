"""`xvfl party`: one party's process. It dials out, answers, and keeps its own checkpoints."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from xvfl.certs import peer_name
from xvfl.errors import PartyError
from xvfl.federation.kernels import small_kernels
from xvfl.layout import Feature, Layout
from xvfl.runs import Folder
from xvfl.service.log import Log
from xvfl.service.monitor import Monitor
from xvfl.service.work import Own, PartyWork
from xvfl.sides import PartyFile
from xvfl.training import choose_device
from xvfl.wire.dial import Dialler

FINISHED = "finished"
TABLE = {"": Layout((Feature("x", "numeric", 1),))}


def serve_party(config: PartyFile, show: bool = True) -> None:
    """Take part until the coordinator says that the run is over."""
    name = peer_name(config.tls.read()[1])
    folder = Folder(config.state).create()
    log = Log(folder.path, name, show)
    work = PartyWork(Own.of(name, config, folder), log.note)
    endpoint = work.endpoint
    dialler = Dialler(
        config.coordinator,
        config.tls,
        work.hello,
        endpoint.handle,
        lambda: endpoint.over is not None,
        log.note,
        config.largest_message,
        config.give_up,
    )
    monitor = Monitor(config.health, lambda: _status(work, dialler)) if config.health else None
    log.note({"event": "started", "coordinator": config.coordinator, "rows": len(work.ids)})
    device = choose_device(config.device)
    try:
        with (
            _stopped_by_signals(dialler.stop),
            small_kernels(TABLE, device),
            torch.random.fork_rng(devices=[]),
        ):
            dialler.run()
    finally:
        endpoint.keep()
        if monitor is not None:
            monitor.close()
    log.note({"event": "stopped", "why": endpoint.over or "asked to stop"})
    if endpoint.over is not None and endpoint.over != FINISHED:
        raise PartyError(f"the coordinator ended this party's part: {endpoint.over}")


def _status(work: PartyWork, dialler: Dialler) -> dict[str, Any]:
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
