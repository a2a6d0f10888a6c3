"""A federation whose parties may leave and rejoin while training continues (D7).

A batch during which a party fails is repeated with the others. A disconnected party rejoins when it
is connected and idle again. It continues from the state it has: updates made without it are lost to
it, and logged. After a fault, a party pauses for a batch, longer with every further fault; after
repeated error replies or an invalid reply it is excluded from the run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from xvfl.config import TrainConfig
from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.membership import EXCLUDED, MAX_REJECTIONS, FaultCounts, Member, RunTerms
from xvfl.federation.message_checks import check_ready
from xvfl.federation.monitored_split import MonitoredSplit
from xvfl.federation.party_monitor import PartyMonitor
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.federation.split import Counters, SplitFederation
from xvfl.methods.base import BatchFunction, Method
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, WeightUpdate
from xvfl.wire.messages import Begin, End, Hello, Ready
from xvfl.wire.payload import Packer

T = TypeVar("T")
LogEvent = Callable[[dict[str, Any]], None]
POLL_S = 0.02
"""Seconds between checks for connected parties while too few are present."""


class ElasticFederation:
    """The parties that are available; runs each batch on a `SplitFederation` of them."""

    def __init__(
        self,
        parties: Sequence[RemoteParty],
        terms: RunTerms,
        log_event: LogEvent = lambda event: None,
        monitor: PartyMonitor | None = None,
    ) -> None:
        """Create a federation in which no party is present yet; `wait_for` lets them join.

        A monitor checks all answers; by default none does.
        """
        self.members = [Member(party) for party in parties]
        for party in parties:
            party.packer = Packer(terms.payload)
        self.terms, self._log_event, self.monitor = terms, log_event, monitor
        self.counters = Counters()
        self.step = 0
        """The current training step."""
        self.optimized_nets: dict[str, OptimizedNet] = {}
        self.fault_counts = FaultCounts()
        self.batches = 0
        """Training batches so far."""
        self._training = True
        self._active: tuple[int, ...] = ()
        self._have_best: set[str] = set()
        self._best_update = 0
        self._batch = 0
        self._left_out: int | None = None
        self.contributors: frozenset[str] = frozenset(self.names)
        """The parties that took part in every batch since the last call of `train`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parties, present or not."""
        return tuple(member.party.name for member in self.members)

    @property
    def present(self) -> tuple[int, ...]:
        """Indices of the parties that take part."""
        return tuple(i for i, member in enumerate(self.members) if member.present)

    @property
    def excluded(self) -> frozenset[str]:
        """Names of the parties that may not join again."""
        members = self.members
        return frozenset(m.party.name for m in members if m.exclusion_reason is not None)

    def wait_for(self, n_parties: int) -> tuple[int, ...]:
        """Let connected parties join; block until `n_parties` are present.

        With 0, for use after the last batch, a party that failed pauses for seconds, not batches.
        """
        deadline = time.monotonic() + self.terms.join_timeout
        while True:
            for member in self.members:
                if member.present and member.party.restarted():
                    # No request is open: the party fails no batch and need not pause.
                    self._leave(member, "it was restarted")
                self._try_join(member, needed=not n_parties or len(self.present) < n_parties)
            if len(self.present) >= n_parties:
                return self.present
            self._check_enough_left(n_parties)
            if time.monotonic() > deadline:
                offline = [m.party.name for m in self.members if not m.present]
                raise RunError(
                    f"expected {n_parties} parties, but after {self.terms.join_timeout:.0f} s "
                    f"these are offline: {', '.join(offline)}; start them and resume the run"
                )
            time.sleep(POLL_S)

    def _check_enough_left(self, n_parties: int) -> None:
        """Raise if too few parties are left that may join."""
        excluded = {
            m.party.name: m.exclusion_reason for m in self.members if m.exclusion_reason is not None
        }
        if len(self.members) - len(excluded) < n_parties:
            reasons = "; ".join(f"{name} is excluded: {why}" for name, why in excluded.items())
            raise RunError(f"expected {n_parties} parties, but {reasons}; fix it and resume")

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Create the optimizer of the heads; a party creates its own when it joins."""
        return OptimizedNet(heads, config)

    def train(self, on: bool) -> None:
        """Set whether the next batches are for training or for prediction."""
        self._training = on
        self.contributors = frozenset(self.names)

    @contextmanager
    def leave_out(self, party: int) -> Iterator[None]:
        """Run the batches of a `with` block without a party, if others are present."""
        self._left_out = party
        try:
            yield
        finally:
            self._left_out = None

    def run_batch(
        self,
        method: Method,
        rows: Rows,
        function: BatchFunction[T],
        only_party: int | None = None,
    ) -> T:
        """Run a function on a batch; after a fault, repeat it with the remaining parties."""
        if self._training:
            self.step = int(rows.step)
        self._batch += 1
        while True:
            present = self.wait_for(self.terms.min_parties)
            if only_party in present:
                present = (only_party,)
            present = tuple(i for i in present if i != self._left_out) or present
            complete = len(present) == len(self.members)
            batch = rows if complete else rows.select_parties(present)
            if self._training:
                batch = batch.drop_small_requests([self.members[i].min_rows for i in present])
            split = self._split(present)
            split.train(self._training)
            try:
                result = function(
                    split,
                    method if complete else method.select_parties(present),
                    batch,
                )
            except PartyError as error:
                self._handle_fault(error)
                self.fault_counts.repeated_batches += 1
                continue
            for place, handles in zip(present, batch.handles.T, strict=True):
                held = int((handles >= 0).sum()) if self._training else 0
                self.members[place].record_success(self._training, held)
            names = self.names
            self.contributors &= {names[place] for place in present}
            if self._training:
                self._active = present
                self.batches += 1
            return result

    def update(self, update: WeightUpdate) -> None:
        """Send an update to the parties of the last batch; `save_best`, `load_best` to all."""
        to_all = update.kind in ("save_best", "load_best")
        places = self.present if to_all else self._active
        places = tuple(i for i in places if self.members[i].present)
        self._split(places).update(update)
        for i in places:
            self.members[i].record_update(self.counters.update)
        if update.kind == "save_best":
            self._have_best = {self.members[i].party.name for i in places}
            self._best_update = self.counters.update

    @property
    def best_weights_agree(self) -> bool:
        """Whether all present parties saved the best weights at the same update."""
        return {self.members[i].party.name for i in self.present} <= self._have_best

    def best_state(self) -> tuple[int, list[str]]:
        """Return the update of the best weights and the parties that saved them."""
        return self._best_update, sorted(self._have_best)

    def restore_best_state(self, state: Sequence[Any]) -> None:
        """Restore what `best_state` returned."""
        self._best_update, self._have_best = int(state[0]), set(state[1])

    def flush(self, save: int = -1) -> None:
        """Send pending updates to all present parties; `save` is the step of a checkpoint."""
        while self.present:
            try:
                self._split(self.present).flush(save)
                return
            except PartyError as error:
                self._handle_fault(error)

    def end(self, reason: str) -> None:
        """Tell present parties that the run has ended; those that do not confirm it leave."""
        ending = [self.members[i] for i in self.present if not self.members[i].informed]
        for member in ending:
            self._send_end(member, reason)
        for member in ending:
            assert member.ended is not None
            with suppress(PartyError, TimeoutError):
                member.ended[1].result(member.party.timeout.seconds)
            if not member.informed:
                self._leave(member, "it did not confirm the end of the run")

    def _send_end(self, member: Member, reason: str) -> None:
        reply = member.party.transport.request(End(self._next_request_id(), reason))
        member.ended = member.party.instance_id, reply

    def _repeat_exclusion(self, member: Member) -> None:
        """Send the reason to an excluded party that was restarted."""
        hello = member.party.transport.hello()
        if hello is None or (member.ended and member.ended[0] == hello.instance_id):
            return
        member.party.instance_id = hello.instance_id
        self._send_end(member, f"{EXCLUDED}{member.exclusion_reason}")

    def _split(self, places: Sequence[int]) -> SplitFederation:
        arguments = (
            [self.members[i].party for i in places],
            self.terms.width,
            self.counters,
            self.terms.sends_gradients,
            self.terms.members,
        )
        if self.monitor is None:
            return SplitFederation(*arguments)
        return MonitoredSplit(self.monitor, *arguments)

    def _next_request_id(self) -> int:
        self.counters.request_id += 1
        return self.counters.request_id

    def _handle_fault(self, error: PartyError) -> None:
        """Continue without the parties that failed."""
        if not error.parties:
            raise error
        for each in error.each:
            for member in self.members:
                if member.party.name in each.parties and member.present:
                    self._leave(member, str(each))
                    self._count_fault(member, each)

    def _leave(self, member: Member, reason: str) -> None:
        name, counts = member.party.name, self.fault_counts.departures
        member.present, member.left_at = False, self.step
        member.party.take_pending()
        counts[name] = counts.get(name, 0) + 1
        self._log_event({"event": "party_left", "party": name, "step": self.step, "reason": reason})

    def _count_fault(self, member: Member, error: PartyError) -> None:
        """Let the party pause; exclude it after an invalid reply or repeated error replies."""
        member.record_fault(self._batch, error.fault)
        if error.fault == "refused":
            name, counts = member.party.name, self.fault_counts.rejections
            counts[name] = counts.get(name, 0) + 1
        if error.fault == "wrong" or member.rejections >= MAX_REJECTIONS:
            self._exclude(member, str(error))

    def exclude(self, party: int, reason: str) -> None:
        """Exclude a party from the run between two batches."""
        if self.members[party].present:
            self._leave(self.members[party], reason)
        self._exclude(self.members[party], reason)

    def _exclude(self, member: Member, reason: str) -> None:
        """Exclude a party from the run, and send it the reason."""
        member.present, member.exclusion_reason = False, reason
        self._log_event({"event": "party_excluded", "party": member.party.name, "reason": reason})
        self._send_end(member, EXCLUDED + reason)

    def _try_join(self, member: Member, needed: bool) -> None:
        if member.exclusion_reason is not None:
            self._repeat_exclusion(member)
        may_join = not (member.present or member.exclusion_reason)
        hello = member.party.transport.hello() if may_join else None
        if hello is None or member.is_backing_off(self._batch, needed):
            return
        name = member.party.name
        try:
            ready = self._request_begin(member, hello)
        except PartyError as error:
            self._log_event({"event": "join_failed", "party": name, "reason": str(error)})
            self._count_fault(member, error)
            return
        if (problem := self._check_ready(member, ready)) is not None:
            self._exclude(member, problem)
            return
        same_process = member.instance_id == hello.instance_id
        member.present, member.instance_id, member.ended = True, hello.instance_id, None
        member.row_status, member.min_rows = ready.row_status, ready.min_rows
        member.party.take_pending()
        member.resume_at(ready.last_update)
        if ready.last_update < self._best_update:
            self._have_best.discard(name)
        lost = self.counters.update - ready.last_update
        if self.monitor is not None and (lost or not same_process):
            self.monitor.forget(name)
        since = member.left_at if same_process else ready.step
        counts = self.fault_counts.lost_updates
        counts[name] = counts.get(name, 0) + lost
        self._log_event(
            {
                "event": "party_joined",
                "party": name,
                "step": self.step,
                "from_checkpoint": ready.step,
                "last_update": ready.last_update,
                "lost_updates": [ready.last_update + 1, self.counters.update] if lost else [],
                "lost_steps": [since, max(since, self.step - 1)] if lost else [],
            }
        )

    def _check_ready(self, member: Member, ready: Ready) -> str | None:
        """Return what is wrong with the state that a party reports, or None."""
        n_rows = self.terms.rows.get(member.party.name)
        try:
            # A checkpoint is named after the next step.
            check_ready(ready, self.step + 1, self.counters.update, n_rows)
        except WireError as error:
            return str(error)
        if member.row_status is not None and not member.row_status.equal(ready.row_status):
            return "its rows changed since the run started; match ids again"
        return None

    def _request_begin(self, member: Member, hello: Hello) -> Ready:
        party, terms = member.party, self.terms
        step = -1 if hello.instance_id == member.instance_id else self.step
        party.instance_id = hello.instance_id
        training = terms.training.get(party.name, torch.zeros(0, dtype=torch.int32))
        request = Begin(self._next_request_id(), terms.run, step, terms.settings, training)
        # Encoding and building nets take longer than a usual reply.
        typical, party.timeout.typical = party.timeout.typical, None
        try:
            return request_all([party], [request], Ready)[0]
        finally:
            party.timeout.typical = typical
