"""`xvfl coordinator`: matches ids, trains with whoever is there, evaluates, releases."""

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import pandas as pd
import torch

from xvfl.align import ask_parties
from xvfl.certs import Peers
from xvfl.data.frames import read_labels
from xvfl.errors import WireError
from xvfl.federation.ask import Deadline, Peer
from xvfl.federation.kernels import small_kernels
from xvfl.federation.split import Counters
from xvfl.matching.alignment import CoordinatorAlignment, load_coordinator
from xvfl.runs import Folder
from xvfl.service.log import Log
from xvfl.service.monitor import Monitor
from xvfl.service.party import TABLE
from xvfl.service.release import check_releasable
from xvfl.service.run import Outcome, Run
from xvfl.service.work import Own, PartyWork
from xvfl.sides import ALIGNMENT, CoordinatorFile
from xvfl.wire.handshakes import noted_handshakes
from xvfl.wire.listen import Listener
from xvfl.wire.memory import Memory
from xvfl.wire.messages import Hello
from xvfl.wire.transport import Transport
from xvfl.workflow import read_source


def serve_coordinator(config: CoordinatorFile, show: bool = True) -> Outcome:
    """Run to the end, or to Ctrl-C; started again, it goes on from the last common checkpoint."""
    check_releasable(config.loss, config.release)
    folder = Folder(config.state).create()
    log = Log(folder.path, "coordinator", show)
    labels = read_labels(
        str(config.labels.table),
        id_column=config.labels.id,
        column=config.labels.column,
        where="labels",
    )
    with ExitStack() as stack:
        stop = stack.enter_context(_stoppable())
        stack.enter_context(noted_handshakes(log.note))
        side = _Side(config, folder, labels, log)
        stack.callback(side.close)
        runs: list[Run] = []
        if config.health is not None:
            monitor = Monitor(config.health, lambda: runs[0].status() if runs else side.status())
            stack.callback(monitor.close)
            log.note({"event": "health", "port": monitor.port})
        alignment = side.align()
        stack.enter_context(small_kernels(TABLE, torch.device("cpu")))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        run = Run(config, folder, labels, alignment, side.peers, side.counters, log.note)
        runs.append(run)
        return run.run(stop)


class _Side:
    """The lines to the parties, and the alignment with them."""

    def __init__(
        self, config: CoordinatorFile, folder: Folder, labels: pd.Series, log: Log
    ) -> None:
        self.config, self.folder, self.labels, self.log = config, folder, labels, log
        # Turns go up from one start to the next, so that an old one is never taken for new.
        self.counters = Counters(turn=time.time_ns() // 1_000_000)
        self.alignment = self._known_alignment()
        self._columns: dict[str, str] = {}
        revoked = config.revoked
        peers = Peers(Path(config.tls.authority), Path(revoked) if revoked else None)
        self.listener = Listener(
            config.listen,
            config.tls,
            config.parties,
            peers.check,
            log.note,
            self._welcome,
            config.largest_message,
        )
        lines: dict[str, Transport] = {**self.listener.lines, **self._own()}
        wait = config.waiting
        self.peers = [
            Peer(name, lines[name], Deadline(wait.least, wait.factor, wait.first))
            for name in config.everybody
        ]
        address = f"{config.listen.rpartition(':')[0]}:{self.listener.port}"
        log.note({"event": "listening", "address": address, "parties": list(config.parties)})

    def close(self) -> None:
        """Hang up."""
        self.listener.close()

    def status(self) -> dict[str, Any]:
        """Say who has come, before training begins."""
        come = {peer.name: int(peer.transport.hello() is not None) for peer in self.peers}
        known = self.alignment.matches if self.alignment else {}
        return {
            "healthy": True,
            "side": "coordinator",
            "waiting": True,
            "party_present": come,
            "party_matched": {name: int(name in known) for name in come},
        }

    def align(self) -> CoordinatorAlignment:
        """Match ids with every party that has not been matched yet."""
        known = self.alignment.matches if self.alignment else {}
        waiting = {p.name: p.transport for p in self.peers if p.name not in known}
        if waiting or self.alignment is None:
            self.alignment = ask_parties(
                waiting,
                list(self.labels.index),
                [self.config.labels.column],
                self.config.matching,
                self.folder / ALIGNMENT,
                self.log.note,
                self.config.waiting.parties,
                then=None,
            )
        return self.alignment

    def _own(self) -> dict[str, Transport]:
        own = self.config.own
        if own is None:
            return {}
        folder, warm = Folder(self.folder / own.name), self.config.warm_start
        if warm is not None and not folder.path.exists() and (Path(warm) / own.name).is_dir():
            shutil.copytree(Path(warm) / own.name, folder.path)
        folder.create()
        source = read_source(own.table, own.id, own.name)
        work = PartyWork(
            Own(own.name, source, own.options, folder, self.config.matching, own.id),
            self.log.note,
        )
        return {own.name: Memory(work.endpoint.hello, work.endpoint.handle)}

    def _known_alignment(self) -> CoordinatorAlignment | None:
        warm = self.config.warm_start
        places = [self.folder, *([Folder(warm)] if warm else [])]
        known = next((each for each in places if each.has(ALIGNMENT)), None)
        if known is None:
            return None
        found = load_coordinator(known / ALIGNMENT)
        if known is not self.folder:
            found.save(self.folder / ALIGNMENT)
        found.labels.check([self.config.labels.column], list(self.labels.index), "labels")
        return found

    def _welcome(self, name: str, hello: Hello) -> None:
        """Refuse a party whose rows or columns are not those that were matched."""
        match = self.alignment.matches.get(name) if self.alignment else None
        if match is not None and hello.session != match.session.hex():
            raise WireError(
                f"party {name!r}: its ids were matched in session {hello.session or 'none'!r}, "
                f"here in {match.session.hex()!r}; put the party's alignment back, or delete "
                "alignment.json on both sides and match again"
            )
        if match is not None and hello.rows != int((match.handles >= 0).sum()):
            raise WireError(f"party {name!r}: expected as many rows as were matched")
        if self._columns.setdefault(name, hello.columns) != hello.columns:
            raise WireError(f"party {name!r}: its columns changed since it first came")


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
