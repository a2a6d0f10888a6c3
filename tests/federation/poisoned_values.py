"""What a dishonest party sends in place of its embeddings."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from xvfl.wire.messages import Completed, Embed, Embedded, Message

Attack = Callable[[Tensor, Tensor], Tensor]
"""Compute the values to send from the honest values and from an old answer."""


def times_1000(values: Tensor, old: Tensor) -> Tensor:
    return 1000 * values


def noise(values: Tensor, old: Tensor) -> Tensor:
    """Send noise of the usual size."""
    return values.square().mean().sqrt() * torch.randn_like(values)


def constant(values: Tensor, old: Tensor) -> Tensor:
    return values.square().mean().sqrt().expand_as(values).clone()


def replay(values: Tensor, old: Tensor) -> Tensor:
    """Send an old answer, repeated or cut to the number of rows and views."""
    if values.dim() == 3 and old.shape[1] != values.shape[1]:
        old = old[:, :1].expand(-1, values.shape[1], -1)
    copies = -(-len(values) // len(old))
    return torch.cat([old] * copies)[: len(values)].clone()


ATTACKS: dict[str, Attack] = {
    "times_1000": times_1000,
    "noise": noise,
    "constant": constant,
    "replay": replay,
}


class Poisoner:
    """Replaces values in a party's replies: embeddings, completed embeddings, or both."""

    def __init__(
        self, replaced: tuple[type[Embedded | Completed], ...] = (Embedded, Completed)
    ) -> None:
        self._replaced = replaced
        self._old: dict[type, Tensor] = {}

    def reply(self, request: Message, reply: Message, attack: Attack | None) -> Message:
        """Return the reply to send; without an attack, the honest one."""
        if not isinstance(reply, Embedded | Completed) or not len(reply.values):
            return reply
        training = not isinstance(request, Embed) or request.training
        if type(reply) not in self._old or (attack is None and training):
            self._old[type(reply)] = reply.values
        if attack is None or not isinstance(reply, self._replaced):
            return reply
        return replace(reply, values=attack(reply.values, self._old[type(reply)]))
