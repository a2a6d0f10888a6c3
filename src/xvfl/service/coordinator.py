"""`xvfl coordinator`: matches ids, trains with whoever is there, evaluates, releases."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import read_source
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator_run import Outcome
from xvfl.service.coordinator_side import CoordinatorSide
from xvfl.service.listener import listening
from xvfl.service.monitor import StatusServer
from xvfl.service.party_work import Own, PartyWork
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.transport import Transport


def serve_coordinator(config: CoordinatorConfig, show: bool = True) -> Outcome:
    """Run to the end, or to Ctrl-C; started again, it goes on from the last common checkpoint."""
    side = CoordinatorSide(config, show)
    note = side.log.note
    with ExitStack() as stack:
        stop = stack.enter_context(_stoppable())
        listener = stack.enter_context(listening(config, note, side.welcome))
        side.connect({**listener.lines, **_own(side)})
        address = f"{config.listen.rpartition(':')[0]}:{listener.port}"
        note({"event": "listening", "address": address, "parties": list(config.parties)})
        if config.status_address is not None:
            monitor = StatusServer(config.status_address, side.status)
            stack.callback(monitor.close)
            note({"event": "status_server", "port": monitor.port})
        return side.run(stop)


def _own(side: CoordinatorSide) -> dict[str, Transport]:
    """Put the label holder's own features, if it has any, behind a line like the others'."""
    own = side.config.local_party
    if own is None:
        return {}
    folder, warm = RunDir(side.folder / own.name), side.config.warm_start
    if warm is not None and not folder.path.exists() and (Path(warm) / own.name).is_dir():
        shutil.copytree(Path(warm) / own.name, folder.path)
    folder.create()
    source = read_source(own.table, own.id_column, own.name)
    work = PartyWork(
        Own(own.name, source, own.options, folder, side.config.matching, own.id_column),
        side.log.note,
    )
    return {own.name: InProcessTransport(work.endpoint.hello, work.endpoint.handle)}


@contextmanager
def _stoppable() -> Iterator[Event]:
    """Turn the first Ctrl-C or SIGTERM into a wish to stop."""
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
