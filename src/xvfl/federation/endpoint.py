"""A party behind a wire: answers messages with its own nets, optimizer and checkpoints.

Every message is checked in full before anything changes; a wrong one ends in a refusal, and so does
one that fails here in a way nobody thought of. The last answer is kept: a question that comes again
gets it, and nothing is done twice.
Shapes: B rows of a batch, H of them held here, v views, d embedding width.
"""

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from xvfl.errors import WireError, XVFLError
from xvfl.federation.checkpoint_store import CheckpointStore
from xvfl.federation.message_checks import (
    check_handles,
    check_instructions,
    check_tensor,
    check_views,
)
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.run_settings import RunSettings, parse_run_settings
from xvfl.federation.sent_tensors import SentTensor, SentTensors, run_back
from xvfl.methods.base import View
from xvfl.training.optimizer import Kind, OptimizedNet, Update, under
from xvfl.training.page import Page
from xvfl.training.precision import configure_precision
from xvfl.wire import codec
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    Completed,
    CueGradient,
    Done,
    Embed,
    Embedded,
    End,
    ErrorReply,
    Flush,
    Gradient,
    Hello,
    Instruction,
    Match,
    Message,
    Ready,
    Release,
)
from xvfl.wire.payload import Packer

COMPUTING = threading.Lock()
"""Torch has one random stream a process: parties in one process compute one after the other."""
LATEST = 2**62
"""A step after every other."""
LONGEST_WHY = 2000
"""Characters of a refusal: it may quote what came."""


@dataclass(frozen=True)
class PartyRun:
    """What a party makes of a run's settings."""

    worker: PartyWorker
    holdings: Tensor
    """(n,) uint8: how it holds the row of each handle; see `Ready`."""


class Endpoint:
    """One party of one coordinator."""

    def __init__(
        self,
        hello: Hello,
        make: Callable[[RunSettings, Tensor], PartyRun],
        store: CheckpointStore,
        note: Callable[[dict[str, Any]], None] = lambda event: None,
        other: Callable[[Match | Release], Message] | None = None,
    ) -> None:
        """Answer for a party; `make` builds its nets, `other` answers what is not training."""
        self.hello = hello
        self.over: str | None = None
        """Why the run is over, once it is."""
        self._make, self._store, self._note, self._other = make, store, note, other
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] = (b"", b"")
        self._turn = 0
        self.run = ""
        self.step = 0
        """The training step it is at."""
        self.refused = 0
        """Messages refused so far."""
        self._worker: PartyWorker | None = None
        self._holdings = torch.zeros(0, dtype=torch.uint8)
        self._applied = self._kept = 0
        self._tickets = SentTensors()
        self._packer = Packer()

    @property
    def worker(self) -> PartyWorker:
        """The party at work, once a run has begun."""
        if self._worker is None:
            raise WireError("expected Begin first: no run has begun here")
        return self._worker

    @property
    def applied(self) -> int:
        """Number of the last update made."""
        return self._applied

    def keep(self) -> None:
        """Keep a checkpoint of what is done, before leaving of one's own will."""
        with self._lock:
            if self.run and self.step > self._kept:
                self._holder.settle()
                state = self._holder.state(self.worker.name)
                self._store.save(self.run, self.step, state, self._applied)
                self._kept = self.step

    def handle(self, frame: bytes) -> bytes:
        """Answer a frame with a frame."""
        with self._lock:
            if frame == self._last[0]:
                return self._last[1]
            try:
                message = codec.decode(frame)
                with COMPUTING:
                    reply = codec.encode(self._answer(message))
            except XVFLError as error:
                return self._refuse(frame, error, str(error))
            except Exception as error:
                self._tickets.clear()  # What is half done must not be gone on with.
                self._note({"event": "internal_error", "traceback": traceback.format_exc()})
                # The error itself may hold this side's data: the other side gets its kind alone.
                said = f"this party failed inside with {type(error).__name__}; its own log says how"
                return self._refuse(frame, error, said)
            self._last, self._turn = (frame, reply), message.turn
            return reply

    def _refuse(self, frame: bytes, error: Exception, why: str) -> bytes:
        self.refused += 1
        turn = codec.kind_and_turn(frame)[1] if len(frame) >= codec.OVERHEAD else 0
        why = why[:LONGEST_WHY].encode(errors="replace").decode()
        self._note({"event": "request_rejected", "turn": turn, "reason": why})
        return codec.encode(ErrorReply(turn, type(error).__name__, why))

    def _answer(self, message: Message) -> Message:
        if message.turn <= self._turn and not (isinstance(message, Begin) and message.step >= 0):
            raise WireError(
                f"{type(message).__name__}: expected a turn after {self._turn}, got "
                f"{message.turn}: stale or replayed"
            )
        if isinstance(message, Begin):
            return self._begin(message)
        if isinstance(message, Embed):
            return self._embed(message)
        if isinstance(message, Complete):
            return self._complete(message)
        if isinstance(message, Backward):
            return self._backward(message)
        if isinstance(message, Flush):
            return self._flush(message)
        if isinstance(message, End):
            self.over = message.reason
            return Done(message.turn, self._applied)
        if isinstance(message, Match | Release) and self._other is not None:
            return self._other(message)
        raise WireError(f"expected a coordinator's message, got {type(message).__name__}")

    def _begin(self, message: Begin) -> Ready:
        if message.step < 0:
            if message.run != self.run:
                raise WireError(f"Begin: expected run {self.run!r}, got {message.run!r}")
            self._holder.settle()
            self._tickets.clear()
            return Ready(message.turn, self._kept, self._applied, self._holdings)
        settings = parse_run_settings(message.settings)
        check_handles(message.training, self.hello.rows)
        party_run = self._make(settings, message.training.long())
        configure_precision(party_run.worker.net, settings.train)
        holder = OptimizedNet(party_run.worker.net, settings.train)
        found = self._store.newest(message.run, message.step)
        kept = applied = 0
        if found is not None:
            kept, tensors, applied = found
            holder.restore(party_run.worker.name, tensors)
        elif settings.warm:
            self._warm(party_run.worker, settings.warm)
        party_run.worker.optimized_net = holder
        self._worker, self._holdings = party_run.worker, party_run.holdings
        self.run, self.step = message.run, kept
        self._kept, self._applied = kept, applied
        self._tickets.clear()
        self._packer = Packer(settings.payload)
        self._note({"event": "run_started", "run": message.run, "from_checkpoint": self._kept})
        return Ready(message.turn, self._kept, self._applied, self._holdings)

    def _warm(self, worker: PartyWorker, run: str) -> None:
        """Take the weights of an earlier run, if they are here and fit."""
        found = self._store.newest(run, LATEST)
        if found is not None:
            try:
                worker.net.load_state_dict(under(found[1], f"net/{worker.name}/"))
            except RuntimeError as error:
                raise WireError(
                    f"Begin: the weights of run {run!r} do not fit ({error})"
                ) from error
        self._note({"event": "warm_start", "run": run, "loaded": found is not None})

    def _embed(self, message: Embed) -> Embedded:
        worker = self.worker
        gradients = self._check_finish(message.gradients, message.instructions)
        check_handles(message.handles, len(worker.table))
        check_views(message.views, worker.net.completes)
        if message.step < 0:
            raise WireError(f"Embed: expected a step of 0 or more, got {message.step}")
        self._finish(gradients, message.instructions)
        self.step = message.step if message.training else self.step
        handles = message.handles.to(worker.table.device).long()
        held = (handles >= 0).nonzero().flatten()
        worker.net.train(message.training)
        with torch.set_grad_enabled(message.training):
            output = worker.embed(handles, cast(tuple[View, ...], message.views), message.step)
        self._tickets.keep(
            message.turn, SentTensor(output, handles, held, training=message.training)
        )
        return Embedded(message.turn, self._applied, self._packer.pack(output[held]))

    def _complete(self, message: Complete) -> Completed:
        worker, cut = self.worker, self._tickets.embedding(message.ticket)
        if not worker.net.completes:
            raise WireError("Complete: expected none: this run's method completes nothing")
        rows, width = len(cut.output), cut.output.shape[-1]
        cue = self._packer.unpack(message.cue, "cue")
        check_tensor("cue", cue, (rows, width), cut.output.dtype)
        check_tensor("whole", message.whole, (rows,), torch.bool)
        training = worker.net.training
        cue = cue.to(cut.output.device).requires_grad_(training)
        with torch.set_grad_enabled(training):
            output = worker.complete(cue, message.whole.to(cue.device))
        self._tickets.keep(message.turn, SentTensor(output, cut.handles, None, cue, training))
        return Completed(message.turn, self._packer.pack(output))

    def _backward(self, message: Backward) -> CueGradient:
        given = self._tickets.opened(message.gradient, self._packer)
        cut, cue = self._tickets.take_completion(given.ticket)
        self._run_back([(cut, given)], retain=True)
        gradient = torch.zeros_like(cue) if cue.grad is None else cue.grad
        return CueGradient(message.turn, self._packer.pack_gradient("cue", gradient, cut.handles))

    def _flush(self, message: Flush) -> Done:
        gradients = self._check_finish(message.gradients, message.instructions)
        self._finish(gradients, message.instructions)
        if message.save >= 0:
            state = self._holder.state(self.worker.name)
            self._store.save(self.run, message.save, state, self._applied)
            self._kept = message.save
        return Done(message.turn, self._applied)

    def _check_finish(
        self, gradients: tuple[Gradient, ...], instructions: tuple[Instruction, ...]
    ) -> tuple[Gradient, ...]:
        """Refuse what cannot be done; give the gradients unpacked."""
        page = isinstance(self._holder.optimizer, Page)
        check_instructions(instructions, self._applied, page)
        if len({gradient.ticket for gradient in gradients}) < len(gradients):
            raise WireError("gradients: expected each ticket once")
        return tuple(self._tickets.opened(gradient, self._packer) for gradient in gradients)

    def _finish(
        self, gradients: tuple[Gradient, ...], instructions: tuple[Instruction, ...]
    ) -> None:
        """Make the update of the last step; where none came, that step was given up."""
        if gradients:
            self._run_back([(self._tickets.of(g.ticket), g) for g in gradients], retain=False)
        if gradients or instructions:
            self._tickets.clear()
        for each in instructions:
            self._holder.update(Update(cast(Kind, each.kind), each.rate))
            self._applied = each.number
        if not instructions:
            self._holder.forget()

    def _run_back(self, pairs: list[tuple[SentTensor, Gradient]], retain: bool) -> None:
        objective, self.worker.objective = self.worker.objective, None
        run_back(pairs, objective, retain)

    @property
    def _holder(self) -> OptimizedNet:
        holder = self.worker.optimized_net
        assert holder is not None
        return holder
