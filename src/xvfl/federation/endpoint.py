"""A party's endpoint: handles the coordinator's requests with the party's nets and checkpoints.

Every request is validated before it has any effect.
Shapes: B rows of a batch, H of them held by the party, v views, M members, d embedding width of a
member; a message has the members of a row side by side, M·d numbers (`member_rows`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.federation.checkpoint_store import CheckpointStore
from xvfl.federation.interactions import InteractionProbe, flat_weights, relative_change
from xvfl.federation.member_rows import join_members, split_members
from xvfl.federation.message_checks import (
    check_handles,
    check_instructions,
    check_tensor,
    check_views,
)
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.federation.request_ledger import UNLIMITED, RequestLedger
from xvfl.federation.run_settings import RunSettings, parse_run_settings
from xvfl.federation.sent_tensors import SentTensor, SentTensors, run_backward
from xvfl.methods.base import View
from xvfl.system.write_guard import WriteGuard
from xvfl.training.optimizer import OptimizedNet, UpdateKind, WeightUpdate, strip_prefix
from xvfl.training.page import Page
from xvfl.training.precision import configure_precision
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

LAST_STEP = 2**62
"""A step after every other step."""
STEP_KINDS = frozenset(("step", "page_refresh", "page_correct"))
"""Updates that step; after `page_look_back`, the same batch is computed at the last weights."""


@dataclass(frozen=True)
class PartyRun:
    """A party's nets and rows for a run."""

    worker: PartyWorker
    row_status: Tensor
    """(n,) uint8, by handle; see `Ready`."""
    ledger: RequestLedger | None = None
    """The party's limits on requests; None = unlimited."""
    on_accept: Callable[[], None] = lambda: None
    """Called when the run is accepted."""
    copy_bytes: int = 0
    """Estimated memory of one copy of a row in a training step."""


class Endpoint(RequestEndpoint):
    """One party of one coordinator."""

    def __init__(
        self,
        hello: Hello,
        start_run: Callable[[RunSettings, Tensor], PartyRun],
        store: CheckpointStore,
        log_event: Callable[[dict[str, Any]], None] = lambda event: None,
        handle_other: Callable[[Match | Release], Message] | None = None,
    ) -> None:
        """Create an endpoint.

        Parameters
        ----------
        hello
            What the party reports about itself when it connects.
        start_run
            Builds nets and rows from the run's settings and the handles of the training rows.
        store
            Storage of checkpoints.
        log_event
            Receives log events.
        handle_other
            Handles requests that are not part of training.
        """
        super().__init__(hello, log_event)
        self._start_run, self._store = start_run, store
        self._handle_other = handle_other
        self._writes = WriteGuard(log_event)
        self.run = ""
        self.step = 0
        """The current training step."""
        self._worker: PartyWorker | None = None
        self._ledger = RequestLedger(UNLIMITED, 0)
        self._row_status = torch.zeros(0, dtype=torch.uint8)
        self._last_update = self._checkpoint_step = self._copy_bytes = 0
        self._probe: InteractionProbe | None = None
        self._sent = SentTensors()
        self._packer = Packer()

    @property
    def worker(self) -> PartyWorker:
        """The party's worker, once a run has started."""
        if self._worker is None:
            raise WireError("expected Begin first: no run has started at this party")
        return self._worker

    @property
    def usage(self) -> dict[str, object]:
        """What the coordinator has used of the party's limits."""
        return self._ledger.usage()

    @property
    def last_update(self) -> int:
        """Number of the last update applied."""
        return self._last_update

    def _discard(self) -> None:
        self._sent.clear()

    def save_checkpoint(self) -> None:
        """Save a checkpoint before a voluntary shutdown."""
        with self._lock:
            if self.run and self.step > self._checkpoint_step:
                self._net.abort_step()
                self._save(self.step)

    def _dispatch(self, message: Message) -> Message:
        restarts = isinstance(message, Begin) and message.step >= 0
        if not restarts:
            self._check_fresh(message)
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
            self.end_reason = message.reason
            return Done(message.request_id, self._last_update)
        if isinstance(message, Match | Release) and self._handle_other is not None:
            return self._handle_other(message)
        raise WireError(f"expected a request of a coordinator, got {type(message).__name__}")

    def _begin(self, message: Begin) -> Ready:
        if message.step < 0:
            if message.run != self.run:
                raise WireError(f"Begin: expected run {self.run!r}, got {message.run!r}")
            self._net.abort_step()
            self._sent.clear()
            return self._ready(message)
        settings = parse_run_settings(message.settings)
        check_handles(message.training, self.hello.rows)
        if settings.run not in ("", message.run):
            raise WireError(f"Begin: expected settings of {message.run!r}, got {settings.run!r}")
        party_run = self._start_run(settings, message.training.long())
        worker = party_run.worker
        ledger = party_run.ledger or RequestLedger(UNLIMITED, len(worker.table))
        ledger.begin(message.run, settings, message.training, worker.privacy)
        if worker.privacy is not None and settings.warm:
            raise WireError(
                "Begin: a run with differential privacy cannot start from the weights of another "
                "run, which depend on all rows; leave out `warm_start`"
            )
        party_run.on_accept()
        configure_precision(worker.net, settings.train)
        net = OptimizedNet(worker.net, settings.train)
        probe = InteractionProbe(worker) if ledger.measures(worker, settings) else None
        checkpoint = self._store.newest(message.run, message.step)
        step = last_update = 0
        if checkpoint is not None:
            step, tensors, last_update = checkpoint
            net.load_state_tensors(worker.name, tensors)
        elif settings.warm:
            self._load_warm_start(worker, settings.warm)
        worker.optimized_net = net
        self._worker, self._row_status = worker, party_run.row_status
        self._ledger, self._copy_bytes = ledger, party_run.copy_bytes
        self._probe = probe
        self.run, self.step = message.run, step
        self._checkpoint_step, self._last_update = step, last_update
        self._sent.clear()
        self._packer = Packer(settings.payload)
        self._log_event({"event": "run_started", "run": message.run, "from_checkpoint": step})
        if worker.privacy is not None:
            self._log_event({"event": "differential_privacy", **worker.privacy.to_dict()})
        return self._ready(message)

    def _ready(self, message: Begin) -> Ready:
        return Ready(
            message.request_id,
            self._checkpoint_step,
            self._last_update,
            self._row_status,
            self._ledger.limits.min_rows,
        )

    def _load_warm_start(self, worker: PartyWorker, run: str) -> None:
        """Load the weights of an earlier run, if they exist."""
        checkpoint = self._store.newest(run, LAST_STEP)
        if checkpoint is not None:
            try:
                weights = strip_prefix(checkpoint[1], f"net/{worker.name}/")
                worker.net.load_state_dict(weights)
            except RuntimeError as error:
                raise WireError(
                    f"Begin: the weights of run {run!r} do not fit ({error})"
                ) from error
        self._log_event({"event": "warm_start", "run": run, "loaded": checkpoint is not None})

    def _embed(self, message: Embed) -> Embedded:
        worker = self.worker
        members = len(worker.seeds)
        gradients = self._check_pending(message.gradients, message.instructions)
        check_handles(message.handles, len(worker.table))
        check_views(message.views, worker.net.completes)
        if worker.private is not None:
            worker.private.check_views(message.views)
        if message.step < 0:
            raise WireError(f"Embed: expected a step of 0 or more, got {message.step}")
        held_rows = message.handles[message.handles >= 0].long().numpy()
        # Evaluation keeps no graph and draws no masks.
        copies = len(message.handles) * (len(message.views) if message.training else 0.5)
        self._ledger.check_size(len(message.handles), int(copies * self._copy_bytes))
        self._ledger.count_embed(held_rows, message.views, message.training)
        change = self._weight_change(message.instructions)
        if message.training and len(held_rows):
            self._ledger.count_batch(_batch_digest(message), *change)
        else:
            self._ledger.record_update(*change)
        self._apply_pending(gradients, message.instructions)
        self._check_net()
        self.step = message.step if message.training else self.step
        handles = message.handles.to(worker.table.device).long()
        held = (handles >= 0).nonzero().flatten()
        worker.net.train(message.training)
        with torch.set_grad_enabled(message.training):
            views, repeated = cast(tuple[View, ...], message.views), handles.repeat(members)
            output = join_members(worker.embed(repeated, views, message.step), members)
        sent = SentTensor(output, handles, held, training=message.training)
        self._sent.add(message.request_id, sent)
        return Embedded(message.request_id, self._last_update, self._packer.pack(output[held]))

    def _complete(self, message: Complete) -> Completed:
        worker, embedding = self.worker, self._sent.get_last_embedding(message.tensor_id)
        if not worker.net.completes:
            raise WireError("Complete: needs a completer, and this run's method has none")
        rows, width = len(embedding.output), embedding.output.shape[-1]
        cue = self._packer.unpack(message.cue, "cue")
        check_tensor("cue", cue, (rows, width), embedding.output.dtype)
        check_tensor("replace_observed", message.replace_observed, (rows,), torch.bool)
        training = worker.net.training
        held_rows = embedding.handles[embedding.handles >= 0].cpu().numpy()
        self._ledger.count_complete(held_rows, training)
        cue = cue.to(embedding.output.device).requires_grad_(training)
        with torch.set_grad_enabled(training):
            members = len(worker.seeds)
            replaced = message.replace_observed.to(cue.device).repeat(members)
            completed = worker.complete(split_members(cue, members), replaced)
            output = join_members(completed, members)
        sent = SentTensor(output, embedding.handles, None, cue, training)
        self._sent.add(message.request_id, sent)
        return Completed(message.request_id, self._packer.pack(output))

    def _backward(self, message: Backward) -> CueGradient:
        self._ledger.check_gradients()
        gradient = self._sent.unpack_gradient(message.gradient, self._packer)
        sent, cue = self._sent.pop_completion(gradient.tensor_id)
        self._run_backward([(sent, gradient)], retain_graph=True)
        values = torch.zeros_like(cue) if cue.grad is None else cue.grad
        packed = self._packer.pack_gradient("cue", values, sent.handles)
        return CueGradient(message.request_id, packed)

    def _flush(self, message: Flush) -> Done:
        gradients = self._check_pending(message.gradients, message.instructions)
        self._ledger.record_update(*self._weight_change(message.instructions))
        self._apply_pending(gradients, message.instructions)
        self._check_net()
        if message.save >= 0:
            self._save(message.save)
        return Done(message.request_id, self._last_update)

    def _save(self, step: int) -> None:
        tensors = self._net.state_tensors(self.worker.name)

        def write() -> None:
            self._store.save(self.run, step, tensors, self._last_update)
            self._ledger.save()

        # Without it training continues; a restart would begin from an older checkpoint.
        if self._writes.attempt("checkpoint", write):
            self._checkpoint_step = step

    def _check_pending(
        self, gradients: tuple[Gradient, ...], instructions: tuple[Instruction, ...]
    ) -> tuple[Gradient, ...]:
        """Validate gradients and instructions; return the gradients unpacked."""
        optimizer = self._net.optimizer
        page, looking_back = isinstance(optimizer, Page), False
        if isinstance(optimizer, Page):
            looking_back = optimizer.looking_back
        check_instructions(instructions, self._last_update, page, looking_back)
        for each in instructions:
            self._ledger.check_rate(each.rate)
        if gradients:
            self._ledger.check_gradients()
        if len({gradient.tensor_id for gradient in gradients}) < len(gradients):
            raise WireError("gradients: expected each tensor id once")
        return tuple(self._sent.unpack_gradient(gradient, self._packer) for gradient in gradients)

    def _weight_change(self, instructions: tuple[Instruction, ...]) -> tuple[bool, bool]:
        """Return whether instructions update the weights, and whether they load earlier ones."""
        kinds = {each.kind for each in instructions}
        return not kinds.isdisjoint(STEP_KINDS), "load_best" in kinds

    def _apply_pending(
        self, gradients: tuple[Gradient, ...], instructions: tuple[Instruction, ...]
    ) -> None:
        """Finish the last step; without instructions, the step was aborted."""
        if gradients or instructions:
            pairs = [(self._sent.get(gradient.tensor_id), gradient) for gradient in gradients]
            self._run_backward(pairs, retain_graph=False)
            self._sent.clear()
        before = flat_weights(self.worker.net.bottom) if instructions else None
        for each in instructions:
            self._net.update(WeightUpdate(cast(UpdateKind, each.kind), each.rate))
            self._last_update = each.number
        if before is None:
            self._net.zero_grad()
            return
        change = relative_change(before, flat_weights(self.worker.net.bottom))
        self._ledger.record_change(change)
        if self._probe is not None:
            self._probe.change += change

    def _check_net(self) -> None:
        """Leave the run if embeddings become sums of functions of single features."""
        if self._probe is None or not self._probe.due:
            return
        try:
            self._ledger.check_net(self._probe.measure(), self._probe.measure_norms())
        except WireError:
            # Neither a checkpoint nor a release may contain these weights.
            self._worker, self.run, self._probe = None, "", None
            raise

    def _run_backward(self, pairs: list[tuple[SentTensor, Gradient]], retain_graph: bool) -> None:
        objective, self.worker.objective = self.worker.objective, None
        run_backward(pairs, objective, retain_graph)

    @property
    def _net(self) -> OptimizedNet:
        net = self.worker.optimized_net
        assert net is not None
        return net


def _batch_digest(message: Embed) -> str:
    """Return a digest of what decides the reply to a training request, besides the weights."""
    digest = blake2b(repr((message.step, message.views)).encode(), digest_size=16)
    digest.update(message.handles.numpy().tobytes())
    return digest.hexdigest()
