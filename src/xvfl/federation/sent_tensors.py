"""What a party sent out, each under its ticket, with the graph that made it.

Shapes: B rows of a batch, H of them held here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.federation.message_checks import check_tensor
from xvfl.wire.messages import Gradient
from xvfl.wire.payload import Packer

MOST_TICKETS = 8


@dataclass(frozen=True)
class SentTensor:
    """What went out, with the graph that made it."""

    output: Tensor
    handles: Tensor
    """(B,) of the batch; −1 a row not held."""
    held: Tensor | None = None
    """Rows of the batch that travel; none of an embedding's other rows do."""
    cue: Tensor | None = None
    training: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what went out, and of its gradient."""
        rows = len(self.output) if self.held is None else len(self.held)
        return (rows, *self.output.shape[1:])


class SentTensors:
    """The newest of them; an older one is forgotten with its graph."""

    def __init__(self) -> None:
        """Hold none."""
        self._cuts: dict[int, SentTensor] = {}
        self._embedded = 0

    def keep(self, turn: int, cut: SentTensor) -> None:
        """Keep what went out in a turn: the turn is its ticket."""
        self._cuts[turn] = cut
        if cut.cue is None:
            self._embedded = turn
        while len(self._cuts) > MOST_TICKETS:
            del self._cuts[min(self._cuts)]

    def clear(self) -> None:
        """Forget all."""
        self._cuts.clear()

    def of(self, ticket: int) -> SentTensor:
        """Give what went out under a ticket."""
        if ticket not in self._cuts:
            raise WireError(
                f"expected a ticket among {sorted(self._cuts)}, got {ticket}: used up or unknown"
            )
        return self._cuts[ticket]

    def embedding(self, ticket: int) -> SentTensor:
        """Give the embedding just sent; no other can be completed."""
        cut = self.of(ticket)
        if ticket != self._embedded:
            raise WireError(f"Complete: expected ticket {self._embedded}, got {ticket}")
        return cut

    def take_completion(self, ticket: int) -> tuple[SentTensor, Tensor]:
        """Take a completion and its cue, once."""
        cut = self.of(ticket)
        if cut.cue is None:
            raise WireError(f"Backward: ticket {ticket} is not a completion")
        del self._cuts[ticket]
        return cut, cut.cue

    def opened(self, gradient: Gradient, packer: Packer) -> Gradient:
        """Unpack a gradient and check it against what it is of."""
        cut = self.of(gradient.ticket)
        values = packer.unpack(gradient.values, "gradient")
        check_tensor("gradient", values, cut.shape, cut.output.dtype)
        if not cut.training:
            raise WireError(f"gradient: ticket {gradient.ticket} was not made for training")
        return replace(gradient, values=values)


def run_back(
    pairs: Sequence[tuple[SentTensor, Gradient]], objective: Tensor | None, retain: bool
) -> None:
    """Run gradients back through what was sent, and the party's own objective with them."""
    outputs, seeds = [], []
    for cut, gradient in pairs:
        values = gradient.values.to(cut.output.device)
        if cut.held is not None:
            values = torch.zeros_like(cut.output).index_copy(0, cut.held, values)
        if cut.output.requires_grad:
            outputs.append(cut.output)
            seeds.append(values)
    if objective is not None:
        outputs.append(objective)
        seeds.append(torch.ones_like(objective))
    if outputs:
        torch.autograd.backward(outputs, seeds, retain_graph=retain)
