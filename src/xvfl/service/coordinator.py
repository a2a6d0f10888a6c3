"""`xvfl coordinator`: matches ids, trains with whoever is there, evaluates, releases."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import pandas as pd
import torch

from xvfl.certs import Peers
from xvfl.data.frames import read_labels
from xvfl.errors import RunError, WireError
from xvfl.federation.ask import Deadline, Peer
from xvfl.federation.kernels import small_kernels
from xvfl.federation.split import Counters
from xvfl.matching import CoordinatorSession
from xvfl.matching.alignment import CoordinatorAlignment, TableMark, load_coordinator
from xvfl.runs import Folder
from xvfl.service.config import CoordinatorConfig
from xvfl.service.log import Log
from xvfl.service.monitor import Monitor
from xvfl.service.party import TABLE
from xvfl.service.release import check_releasable
from xvfl.service.run import Outcome, Run
from xvfl.service.work import ALIGNMENT, Own, PartyWork
from xvfl.wire.listen import Listener
from xvfl.wire.memory import Memory
from xvfl.wire.messages import Hello, Match, Matched
from xvfl.wire.transport import Transport
from xvfl.workflow import read_source

MATCHING_S = 600.0
"""Seconds to wait for one answer in matching: a party may multiply many points."""
LOOK_S = 0.05


def serve_coordinator(
    config: CoordinatorConfig, only_align: bool = False, show: bool = True
) -> Outcome | None:
    """Run to the end, or to Ctrl-C; started again, it goes on from the last common checkpoint."""
    check_releasable(config.loss, config.release)
    folder = Folder(config.folder).create()
    log = Log(folder.path, "coordinator", show)
    labels = read_labels(
        str(config.labels.table),
        id_column=config.labels.id,
        column=config.labels.column,
        where="labels",
    )
    with ExitStack() as stack:
        stop = stack.enter_context(_stoppable())
        side = _Side(config, folder, labels, log)
        stack.callback(side.close)
        alignment = side.align(stop)
        if only_align or stop.is_set():
            side.send_home("matched")
            return None
        stack.enter_context(small_kernels(TABLE, torch.device("cpu")))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        run = Run(config, folder, labels, alignment, side.peers, side.counters, log.note)
        if config.health is not None:
            stack.callback(Monitor(config.health, run.status).close)
        return run.run(stop)


class _Side:
    """The lines to the parties, and the alignment with them."""

    def __init__(
        self, config: CoordinatorConfig, folder: Folder, labels: pd.Series, log: Log
    ) -> None:
        self.config, self.folder, self.labels, self.log = config, folder, labels, log
        # Turns go up from one start to the next, so that an old one is never taken for new.
        self.counters = Counters(turn=time.time_ns() // 1_000_000)
        self.alignment = self._known_alignment()
        self._columns: dict[str, str] = {}
        revoked = config.tls.revoked
        peers = Peers(Path(config.tls.authority), Path(revoked) if revoked else None)
        self.listener = Listener(
            config.listen,
            config.tls.tls,
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

    def send_home(self, reason: str) -> None:
        """Leave the parties as they are: they dial again until training begins."""
        self.log.note({"event": "stopped", "why": reason})

    def align(self, stop: Event) -> CoordinatorAlignment:
        """Match ids with every party that has not been matched yet."""
        matches = dict(self.alignment.matches) if self.alignment else {}
        for peer in self.peers:
            if peer.name in matches or stop.is_set():
                continue
            hello = self._wait_for(peer, stop)
            if hello is None:
                break
            session = CoordinatorSession(list(self.labels.index), self.config.rule)
            found = session.match(partial(self._exchange, peer))
            matches[peer.name] = found
            common = int((found.handles >= 0).sum())
            self.log.note(
                {
                    "event": "matched",
                    "party": peer.name,
                    "ids": found.party_ids,
                    "common": common,
                }
            )
            mark = TableMark.of(("label",), list(self.labels.index))
            if self.alignment is not None:
                mark = self.alignment.labels
            self.alignment = CoordinatorAlignment(matches, self.config.rule, mark)
            self.alignment.save(self.folder / ALIGNMENT)
        if self.alignment is None:
            raise RunError("stopped before any ids were matched")
        return self.alignment

    def _own(self) -> dict[str, Transport]:
        own = self.config.own
        if own is None:
            return {}
        folder = Folder(self.folder / own.name).create()
        source = read_source(own.table, own.id, own.name)
        work = PartyWork(
            Own(own.name, source, own.options, folder, self.config.rule), self.log.note
        )
        return {own.name: Memory(work.endpoint.hello, work.endpoint.handle)}

    def _known_alignment(self) -> CoordinatorAlignment | None:
        if not self.folder.has(ALIGNMENT):
            return None
        found = load_coordinator(self.folder / ALIGNMENT)
        found.labels.check(("label",), list(self.labels.index), "labels")
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

    def _wait_for(self, peer: Peer, stop: Event) -> Hello | None:
        until = time.monotonic() + self.config.waiting.parties
        while not stop.is_set():
            hello = peer.transport.hello()
            if hello is not None:
                return hello
            if time.monotonic() > until:
                raise RunError(
                    f"party {peer.name!r} did not come within {self.config.waiting.parties:.0f} s; "
                    "start it with `xvfl party`"
                )
            time.sleep(LOOK_S)
        return None

    def _exchange(self, peer: Peer, body: bytes) -> bytes:
        self.counters.turn += 1
        reply: Any = peer.transport.exchange(Match(self.counters.turn, body)).result(MATCHING_S)
        if not isinstance(reply, Matched):
            raise WireError(f"party {peer.name!r} refused to match: {getattr(reply, 'text', '')}")
        return reply.body


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
