"""Tensors that a party sent to the coordinator, with the autograd graphs that computed them.

The autograd graph of a step is split across the wire: the coordinator returns the gradient of each
sent tensor, and the party continues the backward pass from there. A sent tensor is identified by
the id of the request that it answered.
Shapes: B rows of a batch, H of them held by the party.
"""

from dataclasses import dataclass

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

    def check_gradient(self, gradient: Gradient) -> None:
        """Validate the gradient of this tensor; it has the shape of the tensor on the wire."""
        rows = len(self.output) if self.held is None else len(self.held)
        shape = (rows, *self.output.shape[1:])
        check_tensor("gradient", gradient.values, shape, self.output.dtype)
        if not self.training:
            raise WireError(f"gradient: tensor {gradient.tensor_id} was not computed in training")
