"""A party's endpoint: handles the coordinator's requests with the party's nets and checkpoints.

Every request is validated before it has any effect.
Shapes: B rows of a batch, H of them held by the party, v views, M members, d embedding width of a
member; a message has the members of a row side by side, M·d numbers (`member_rows`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, cast

import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.federation.member_rows import complete_rows, embed_rows
from xvfl.federation.message_checks import (
    check_completion,
    check_handles,
    check_instructions,
    check_tensor,
    check_views,
)
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.request_endpoint import Replies, RequestEndpoint
from xvfl.federation.run_settings import RunSettings, parse_run_settings
from xvfl.methods.base import View
from xvfl.training.optimizer import OptimizedNet, UpdateKind, WeightUpdate
from xvfl.training.page import Page
from xvfl.training.precision import configure_precision
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    Completed,
    CueGradient,
    Done,
    Embed,
    Embedded,
    FinishStep,
    Flush,
    Gradient,
    Hello,
    Ready,
)

NO_REQUEST = "expected a request of a coordinator that trains"
LAST_STEP = 2**62
"""A step after every other step."""
MAX_COPIES = 2**18
"""Rows of one request, times its views."""
MAX_SENT_TENSORS = 8
"""Embeddings and completions of a batch."""
BEST_KINDS = frozenset(("save_best", "load_best"))
"""Updates that use no gradients."""


class CheckpointStore(Protocol):
    """Store checkpoints of a party."""

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], last_update: int) -> None:
        """Write a checkpoint."""

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        """Return the newest checkpoint of a run at or before a step: step, tensors, last update."""


@dataclass(frozen=True)
class PartyRun:
    """A party's nets and rows for a run."""

    worker: PartyWorker
    row_status: Tensor
    """(n,) uint8, by handle; see `Ready`."""


@dataclass(frozen=True)
class SentTensor:
    """A tensor that the party sent, with its autograd graph, as it was before encoding.

    The autograd graph of a step is split across the wire: the coordinator returns the gradient of
    each sent tensor, and the party continues the backward pass from there.
    """

    output: Tensor
    held: Tensor | None = None
    """Indices of the batch rows that were sent; None = all."""
    cue: Tensor | None = None
    """The cue that the rows were completed from; None for an embedding."""
    training: bool = True

    def check_gradient(self, gradient: Gradient) -> None:
        """Validate the gradient of this tensor; it has the shape of the tensor on the wire."""
        rows = len(self.output) if self.held is None else len(self.held)
        shape = (rows, *self.output.shape[1:])
        check_tensor("gradient", gradient.values, shape, self.output.dtype)
        if not self.training:
            raise WireError(f"gradient: tensor {gradient.tensor_id} was not computed in training")


class Endpoint(RequestEndpoint):
    """One party of one coordinator."""

    def __init__(
        self,
        hello: Hello,
        start_run: Callable[[RunSettings, Tensor], PartyRun],
        store: CheckpointStore,
        log_event: LogEvent = lambda event: None,
        replies: Replies = MappingProxyType({}),
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
        replies
            Reply to requests that are not part of training.
        """
        training: Replies = {
            Begin: self._begin,
            Embed: self._embed,
            Complete: self._complete,
            Backward: self._backward,
            Flush: self._flush,
        }
        super().__init__(hello, log_event, {**training, **replies}, NO_REQUEST)
        self._start_run, self._store = start_run, store
        self.run = ""
        self.step = 0
        """The current training step."""
        self._worker: PartyWorker | None = None
        self.last_update = 0
        """Number of the last update applied."""
        self._needs_update = False
        """Whether the update of the last training batch has not arrived yet."""
        self._sent: dict[int, SentTensor] = {}
        """Tensors of the last batch, by the id of the request that they answered."""

    @property
    def worker(self) -> PartyWorker:
        """The party's worker, once a run has started."""
        if self._worker is None:
            raise WireError("expected Begin first: no run has started at this party")
        return self._worker

    def _discard(self) -> None:
        self._sent.clear()

    def _begin(self, message: Begin) -> Ready:
        """Start from the newest checkpoint at or before a step, or from the first weights."""
        settings = parse_run_settings(message.settings)
        check_handles(message.training, self.hello.rows)
        if settings.run not in ("", message.run):
            raise WireError(f"Begin: expected settings of {message.run!r}, got {settings.run!r}")
        party_run = self._start_run(settings, message.training.long())
        worker = party_run.worker
        configure_precision(worker.net, settings.train)
        net = OptimizedNet(worker.net, settings.train)
        checkpoint = self._store.newest(message.run, message.step)
        step = last_update = 0
        if checkpoint is not None:
            step, tensors, last_update = checkpoint
            net.load_state_tensors(worker.name, tensors)
        worker.optimized_net = net
        self._worker = worker
        self.run, self.step, self.last_update = message.run, step, last_update
        self._needs_update = False
        self._sent.clear()
        self._log_event({"event": "run_started", "run": message.run, "from_checkpoint": step})
        return Ready(message.request_id, step, last_update, party_run.row_status)

    def _embed(self, message: Embed) -> Embedded:
        worker = self.worker
        self._check_pending(message)
        check_handles(message.handles, len(worker.table))
        check_views(message.views, worker.net.completes)
        if message.step < 0:
            raise WireError(f"Embed: expected a step of 0 or more, got {message.step}")
        if len(message.handles) * len(message.views) > MAX_COPIES:
            raise WireError(
                f"Embed: expected at most {MAX_COPIES} copies of rows; lower `batch_size` or "
                "`n_masks`"
            )
        if message.training and self._needs_update and not _updates(message):
            raise WireError("Embed: expected the update of the last training batch first")
        self._apply_pending(message)
        self._needs_update |= message.training
        self.step = message.step if message.training else self.step
        held = (message.handles >= 0).nonzero().flatten().to(worker.table.device)
        worker.net.train(message.training)
        with torch.set_grad_enabled(message.training):
            views = cast(tuple[View, ...], message.views)
            output = embed_rows(worker, message.handles, views, message.step)
        self._sent = {message.request_id: SentTensor(output, held, training=message.training)}
        return Embedded(message.request_id, output[held].detach())

    def _complete(self, message: Complete) -> Completed:
        worker, embedding = self.worker, self._get_sent(message.tensor_id)
        check_completion(message, worker.net.completes, len(embedding.output), embedding.output)
        if embedding.cue is not None or len(self._sent) >= MAX_SENT_TENSORS:
            raise WireError("Complete: expected the id of an Embed, and few completions of it")
        training = worker.net.training
        cue = message.cue.to(embedding.output.device).requires_grad_(training)
        with torch.set_grad_enabled(training):
            output = complete_rows(worker, cue, message.replace_observed)
        self._sent[message.request_id] = SentTensor(output, None, cue, training)
        return Completed(message.request_id, output.detach())

    def _backward(self, message: Backward) -> CueGradient:
        tensor_id = message.gradient.tensor_id
        sent = self._get_sent(tensor_id)
        sent.check_gradient(message.gradient)
        if sent.cue is None:
            raise WireError(f"Backward: tensor {tensor_id} is not a completed embedding")
        self._run_backward([message.gradient], retain_graph=True)
        del self._sent[tensor_id]
        values = torch.zeros_like(sent.cue) if sent.cue.grad is None else sent.cue.grad
        return CueGradient(message.request_id, values)

    def _flush(self, message: Flush) -> Done:
        self._check_pending(message)
        self._apply_pending(message)
        if message.save >= 0:
            tensors = self._net.state_tensors(self.worker.name)
            self._store.save(self.run, message.save, tensors, self.last_update)
        return Done(message.request_id, self.last_update)

    def _check_pending(self, message: FinishStep) -> None:
        """Validate gradients and instructions."""
        page = isinstance(self._net.optimizer, Page)
        check_instructions(message.instructions, self.last_update, page)
        if len({each.tensor_id for each in message.gradients}) < len(message.gradients):
            raise WireError("gradients: expected each tensor id once")
        for gradient in message.gradients:
            self._get_sent(gradient.tensor_id).check_gradient(gradient)

    def _apply_pending(self, message: FinishStep) -> None:
        """Finish the last step; without instructions, the step was aborted."""
        if message.gradients or message.instructions:
            self._run_backward(message.gradients, retain_graph=False)
            self._sent.clear()
        for each in message.instructions:
            self._net.update(WeightUpdate(cast(UpdateKind, each.kind), each.rate))
            self.last_update = each.number
        if _updates(message):
            self._needs_update = False
        elif not message.instructions:
            self._net.zero_grad()

    def _get_sent(self, tensor_id: int) -> SentTensor:
        if tensor_id not in self._sent:
            raise WireError(
                f"expected a tensor id among {sorted(self._sent)}, got {tensor_id}: unknown or no "
                "longer stored"
            )
        return self._sent[tensor_id]

    def _run_backward(self, gradients: Sequence[Gradient], retain_graph: bool) -> None:
        """Continue the backward pass from sent tensors and the party's own objective."""
        outputs, values = [], []
        for gradient in gradients:
            sent = self._sent[gradient.tensor_id]
            value = gradient.values.to(sent.output.device)
            if sent.held is not None:
                value = torch.zeros_like(sent.output).index_copy(0, sent.held, value)
            if sent.output.requires_grad:
                outputs.append(sent.output)
                values.append(value)
        objective, self.worker.objective = self.worker.objective, None
        if objective is not None:
            outputs.append(objective)
            values.append(torch.ones_like(objective))
        if outputs:
            torch.autograd.backward(outputs, values, retain_graph=retain_graph)

    @property
    def _net(self) -> OptimizedNet:
        net = self.worker.optimized_net
        assert net is not None
        return net


def _updates(message: FinishStep) -> bool:
    """Return whether the instructions use the gradients of a training batch."""
    return any(each.kind not in BEST_KINDS for each in message.instructions)
