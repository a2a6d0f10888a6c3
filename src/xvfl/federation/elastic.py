"""Who takes part right now (D7): parties come, go and come back; the run goes on with who is there.

A batch that loses a party on the way is begun again with the others. A party that is away keeps
out until it is on the line again and free; it then says where it stands, and goes on from there:
what was done without it is lost to it, and noted. One that fails in a batch, however it does, sits
that batch out, the next time longer; one that goes on refusing is kept out at last.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from xvfl.config import TrainConfig
from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.membership import MOST_REFUSALS, FaultCounts, Member, RunTerms
from xvfl.federation.message_checks import check_ready
from xvfl.federation.remote_party import RemoteParty, ask
from xvfl.federation.split import Counters, SplitFederation
from xvfl.methods.base import Method, Work
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, Update
from xvfl.wire.messages import Begin, Done, End, Hello, Ready
from xvfl.wire.payload import Packer

T = TypeVar("T")
Note = Callable[[dict[str, Any]], None]
LOOK_S = 0.02
"""Seconds between looks at who has come, while too few are there."""


class ElasticFederation:
    """A federation of whoever is there; drives `SplitFederation`s over them."""

    def __init__(
        self, peers: Sequence[RemoteParty], terms: RunTerms, note: Note = lambda event: None
    ) -> None:
        """Wait for nobody yet; `gather` does."""
        self.members = [Member(peer) for peer in peers]
        for peer in peers:
            peer.packer = Packer(terms.payload)
        self.terms, self._note = terms, note
        self.counters = Counters()
        self.step = 0
        """The training step the run is at."""
        self.optimized_nets: dict[str, OptimizedNet] = {}
        self.fault_counts = FaultCounts()
        self._training = True
        self._active: tuple[int, ...] = ()
        self._keepers: set[str] = set()
        self._last_keep = 0
        self._batch = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody's names."""
        return tuple(member.peer.name for member in self.members)

    @property
    def present(self) -> tuple[int, ...]:
        """The places of those who take part."""
        return tuple(i for i, member in enumerate(self.members) if member.present)

    def gather(self, wanted: int) -> tuple[int, ...]:
        """Let in whoever is waiting; wait until so many are there."""
        until = time.monotonic() + self.terms.patience_s
        while True:
            for member in self.members:
                if member.present and member.peer.restarted():
                    # Nothing was asked of it yet: it holds up no batch, and need not sit one out.
                    self._leave(member, "it was started again")
                self._let_in(member, needed=len(self.present) < wanted)
            if len(self.present) >= wanted:
                return self.present
            self._see_enough(wanted)
            if time.monotonic() > until:
                away = [m.peer.name for m in self.members if not m.present]
                raise RunError(
                    f"expected {wanted} parties, but after {self.terms.patience_s:.0f} s "
                    f"{', '.join(away)} are away; start them and resume the run"
                )
            time.sleep(LOOK_S)

    def _see_enough(self, wanted: int) -> None:
        """End the run when too few are left that may come back."""
        out = {m.peer.name: m.barred for m in self.members if m.barred is not None}
        if len(self.members) - len(out) < wanted:
            why = "; ".join(f"{name} is kept out: {why}" for name, why in out.items())
            raise RunError(f"expected {wanted} parties, but {why}; mend it and resume the run")

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Hold the heads alone: a party makes its optimizer when it is let in."""
        return OptimizedNet(heads, config)

    def train(self, on: bool) -> None:
        """Say whether the next batches are for training or for prediction."""
        self._training = on

    def run_batch(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch, again and with fewer parties when some are lost on the way."""
        if self._training:
            self.step = int(rows.step)
        self._batch += 1
        while True:
            here = self.gather(self.terms.minimum)
            if alone in here:
                here = (alone,)
            whole = len(here) == len(self.members)
            split = self._split(here)
            split.train(self._training)
            try:
                done = work(
                    split,
                    method if whole else method.select_parties(here),
                    rows if whole else rows.select_parties(here),
                )
            except PartyError as error:
                self._part(error)
                self.fault_counts.batches += 1
                continue
            for place in here:
                self.members[place].succeeded()
            if self._training:
                self._active = here
            return done

    def update(self, update: Update) -> None:
        """Have the parties of the last batch update their weights; all keep or load the best."""
        asked = self.present if update.kind in ("keep", "best") else self._active
        told = [i for i in asked if self.members[i].present]
        self._split(told).update(update)
        if update.kind == "keep":
            self._keepers = {self.members[i].peer.name for i in told}
            self._last_keep = self.counters.update

    @property
    def agreed(self) -> bool:
        """Whether all who are here remember the same best weights."""
        return {self.members[i].peer.name for i in self.present} <= self._keepers

    def keep_state(self) -> tuple[int, list[str]]:
        """Give who remembers the best weights, and since which update."""
        return self._last_keep, sorted(self._keepers)

    def restore_keep(self, state: Sequence[Any]) -> None:
        """Take up what `keep_state` gave."""
        self._last_keep, self._keepers = int(state[0]), set(state[1])

    def flush(self, save: int = -1) -> None:
        """Have all_parties finish the last step; `save` names the checkpoint they keep."""
        while self.present:
            try:
                self._split(self.present).flush(save)
                return
            except PartyError as error:
                self._part(error)

    def end(self, reason: str) -> None:
        """Tell all_parties that the run is over."""
        while self.present:
            peers = [self.members[i].peer for i in self.present]
            try:
                ask(peers, [End(self._turn(), reason) for _ in peers], Done)
                return
            except PartyError as error:
                self._part(error)

    def _split(self, places: Sequence[int]) -> SplitFederation:
        return SplitFederation(
            [self.members[i].peer for i in places], self.terms.width, self.counters
        )

    def _turn(self) -> int:
        self.counters.turn += 1
        return self.counters.turn

    def _part(self, error: PartyError) -> None:
        """Go on without those who failed, each for its own fault."""
        if not error.parties:
            raise error
        for each in error.each:
            for member in self.members:
                if member.peer.name in each.parties and member.present:
                    self._leave(member, str(each))
                    self._judge(member, each)

    def _leave(self, member: Member, why: str) -> None:
        name = member.peer.name
        member.present, member.left_at = False, self.step
        member.peer.take_pending()
        self.fault_counts.left[name] = self.fault_counts.left.get(name, 0) + 1
        self._note({"event": "party_left", "party": name, "step": self.step, "reason": why})

    def _judge(self, member: Member, error: PartyError) -> None:
        """Let rest who failed; keep out who answers wrongly, or will not answer at all."""
        member.failed(self._batch, error.fault)
        if error.fault == "refused":
            name = member.peer.name
            self.fault_counts.refusals[name] = self.fault_counts.refusals.get(name, 0) + 1
        if error.fault == "wrong" or member.refusals >= MOST_REFUSALS:
            self._bar(member, str(error))

    def _bar(self, member: Member, why: str) -> None:
        """Keep a party out for good, and tell it why; the others go on."""
        member.present, member.barred = False, why
        self._note({"event": "party_excluded", "party": member.peer.name, "reason": why})
        member.peer.transport.exchange(End(self._turn(), f"refused: {why}"))

    def _let_in(self, member: Member, needed: bool) -> None:
        hello = None if member.present or member.barred else member.peer.transport.hello()
        if hello is None or member.rests(self._batch, needed):
            return
        try:
            ready = self._welcome(member, hello)
        except PartyError as error:
            self._note({"event": "join_failed", "party": member.peer.name, "reason": str(error)})
            self._judge(member, error)
            return
        if (fault := self._fault(member, ready)) is not None:
            self._bar(member, fault)
            return
        returned = member.began == hello.life
        member.present, member.began, member.holdings = True, hello.life, ready.holdings
        member.peer.take_pending()
        if ready.applied < self._last_keep:
            self._keepers.discard(member.peer.name)
        lost = self.counters.update - ready.applied
        since = member.left_at if returned else ready.step
        name = member.peer.name
        self.fault_counts.updates[name] = self.fault_counts.updates.get(name, 0) + lost
        self._note(
            {
                "event": "party_joined",
                "party": name,
                "step": self.step,
                "from_checkpoint": ready.step,
                "last_update": ready.applied,
                "lost_updates": [ready.applied + 1, self.counters.update] if lost else [],
                "lost_steps": [since, max(since, self.step - 1)] if lost else [],
            }
        )

    def _fault(self, member: Member, ready: Ready) -> str | None:
        """Say what is wrong with where a party says it stands."""
        try:
            # A checkpoint is named by the step that comes next.
            check_ready(
                ready, self.step + 1, self.counters.update, self.terms.rows.get(member.peer.name)
            )
        except WireError as error:
            return str(error)
        if member.holdings is not None and not member.holdings.equal(ready.holdings):
            return "its rows changed since the run began; match ids again"
        return None

    def _welcome(self, member: Member, hello: Hello) -> Ready:
        step = -1 if hello.life == member.began else self.step
        member.peer.life = hello.life
        training = self.terms.training.get(member.peer.name, torch.zeros(0, dtype=torch.int32))
        question = Begin(self._turn(), self.terms.run, step, self.terms.settings, training)
        usual, member.peer.deadline.usual = member.peer.deadline.usual, None
        try:
            return ask([member.peer], [question], Ready)[0]
        finally:
            member.peer.deadline.usual = usual
