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

    def check_gradient(self, gradient: Gradient) -> None:
        """Validate the gradient of this tensor."""
        check_tensor("gradient", gradient.values, self.shape, self.output.dtype)
        if not self.training:
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
