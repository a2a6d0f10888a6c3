"""Tensors that a party sent to the coordinator, with the autograd graphs that computed them.

The autograd graph of a step is split across the wire: the coordinator returns the gradient of each
sent tensor, and the party continues the backward pass from there. A sent tensor is identified by
the id of the request that it answered.
Shapes: B rows of a batch, H of them held by the party.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.federation.message_checks import check_tensor
from xvfl.wire.messages import Gradient

MAX_SENT_TENSORS = 8


@dataclass(frozen=True)
class SentTensor:
    """A tensor with its autograd graph, as it was before encoding for the wire."""

    output: Tensor
    held: Tensor | None = None
    """Indices of the batch rows that were sent; None = all."""
    cue: Tensor | None = None
    """The cue that the rows were completed from; None for an embedding."""
    training: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor on the wire, and of its gradient."""
        rows = len(self.output) if self.held is None else len(self.held)
        return (rows, *self.output.shape[1:])


class SentTensors:
    """The most recent sent tensors; older ones are discarded with their graphs."""

    def __init__(self) -> None:
        """Start empty."""
        self._tensors: dict[int, SentTensor] = {}
        self._last_embedding = 0

    def add(self, tensor_id: int, sent: SentTensor) -> None:
        """Store a sent tensor."""
        self._tensors[tensor_id] = sent
        if sent.cue is None:
            self._last_embedding = tensor_id
        while len(self._tensors) > MAX_SENT_TENSORS:
            del self._tensors[min(self._tensors)]

    def clear(self) -> None:
        """Discard all tensors and their graphs."""
        self._tensors.clear()

    def get(self, tensor_id: int) -> SentTensor:
        """Return a sent tensor."""
        if tensor_id not in self._tensors:
            raise WireError(
                f"expected a tensor id among {sorted(self._tensors)}, got {tensor_id}: unknown or "
                "no longer stored"
            )
        return self._tensors[tensor_id]

    def get_last_embedding(self, tensor_id: int) -> SentTensor:
        """Return the embedding sent last; no other embedding can be completed."""
        sent = self.get(tensor_id)
        if tensor_id != self._last_embedding:
            raise WireError(f"Complete: expected tensor id {self._last_embedding}, got {tensor_id}")
        return sent

    def pop_completion(self, tensor_id: int) -> tuple[SentTensor, Tensor]:
        """Remove and return a completed embedding and its cue."""
        sent = self.get(tensor_id)
        if sent.cue is None:
            raise WireError(f"Backward: tensor {tensor_id} is not a completed embedding")
        del self._tensors[tensor_id]
        return sent, sent.cue

    def check_gradient(self, gradient: Gradient) -> None:
        """Validate a gradient against its tensor."""
        sent = self.get(gradient.tensor_id)
        check_tensor("gradient", gradient.values, sent.shape, sent.output.dtype)
        if not sent.training:
            raise WireError(f"gradient: tensor {gradient.tensor_id} was not computed in training")


def run_backward(
    pairs: Sequence[tuple[SentTensor, Gradient]], objective: Tensor | None, retain_graph: bool
) -> None:
    """Continue the backward pass from sent tensors and the party's own objective."""
    outputs, gradients = [], []
    for sent, gradient in pairs:
        values = gradient.values.to(sent.output.device)
        if sent.held is not None:
            values = torch.zeros_like(sent.output).index_copy(0, sent.held, values)
        if sent.output.requires_grad:
            outputs.append(sent.output)
            gradients.append(values)
    if objective is not None:
        outputs.append(objective)
        gradients.append(torch.ones_like(objective))
    if outputs:
        torch.autograd.backward(outputs, gradients, retain_graph=retain_graph)
