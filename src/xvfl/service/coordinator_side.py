"""A coordinator's side of a run, whatever the lines to its parties are: labels, alignment, run."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Event
from typing import Any

import torch

from xvfl.data.labels import read_labels
from xvfl.errors import WireError
from xvfl.federation.remote_party import AdaptiveTimeout, RemoteParty
from xvfl.federation.split import Counters
from xvfl.matching.alignment import CoordinatorAlignment, load_coordinator_alignment
from xvfl.model.run_dir import RunDir
from xvfl.service.align import ask_parties
from xvfl.service.config import ALIGNMENT, CoordinatorConfig
from xvfl.service.coordinator_run import Outcome, Run
from xvfl.service.log import Log
from xvfl.service.release import check_releasable
from xvfl.training.threads import limit_threads
from xvfl.wire.messages import Hello
from xvfl.wire.transport import Transport


class CoordinatorSide:
    """Its folder, log, labels and alignment; the run, once there are lines."""

    def __init__(self, config: CoordinatorConfig, show: bool = True) -> None:
        """Take up what is in the folder."""
        check_releasable(config.loss, config.release_to)
        self.config = config
        self.folder = RunDir(config.state_dir).create()
        self.log = Log(self.folder.path, "coordinator", show)
        self.labels = read_labels(
            str(config.labels.table),
            id_column=config.labels.id_column,
            column=config.labels.column,
            where="labels",
        )
        # Turns go up from one start to the next, so that an old one is never taken for new.
        self.counters = Counters(turn=time.time_ns() // 1_000_000)
        self.alignment = self._known_alignment()
        self.peers: list[RemoteParty] = []
        self._columns: dict[str, str] = {}
        self._run: Run | None = None

    def connect(self, lines: Mapping[str, Transport]) -> None:
        """Take the lines to all_parties."""
        wait = self.config.timeouts
        self.peers = [
            RemoteParty(
                name,
                lines[name],
                AdaptiveTimeout(wait.min_answer, wait.answer_factor, wait.max_answer),
            )
            for name in self.config.all_parties
        ]

    def run(self, stop: Event) -> Outcome:
        """Match ids where that is still to do, then train to the end or until asked to stop."""
        alignment = self._align()
        with ExitStack() as stack:
            stack.enter_context(limit_threads(False, torch.device("cpu")))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            self._run = Run(
                self.config,
                self.folder,
                self.labels,
                alignment,
                self.peers,
                self.counters,
                self.log.note,
            )
            return self._run.run(stop)

    def status(self) -> dict[str, Any]:
        """Say where the run stands; before training begins, who has come."""
        if self._run is not None:
            return self._run.status()
        come = {peer.name: int(peer.transport.hello() is not None) for peer in self.peers}
        known = self.alignment.matches if self.alignment else {}
        return {
            "healthy": True,
            "side": "coordinator",
            "waiting": True,
            "party_present": come,
            "party_matched": {name: int(name in known) for name in come},
        }

    def welcome(self, name: str, hello: Hello) -> None:
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

    def _align(self) -> CoordinatorAlignment:
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
                self.config.timeouts.join,
                then=None,
            )
        return self.alignment

    def _known_alignment(self) -> CoordinatorAlignment | None:
        warm = self.config.warm_start
        places = [self.folder, *([RunDir(warm)] if warm else [])]
        known = next((each for each in places if each.has(ALIGNMENT)), None)
        if known is None:
            return None
        found = load_coordinator_alignment(known / ALIGNMENT)
        if known is not self.folder:
            found.save(self.folder / ALIGNMENT)
        found.labels.check([self.config.labels.column], list(self.labels.index), "labels")
        return found
