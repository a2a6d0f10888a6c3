"""Parties behind a transport: send requests to several at once, with a timeout per party."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from xvfl.errors import PartyError, WireError
from xvfl.federation.message_checks import check_tensor
from xvfl.wire.messages import ErrorReply, Gradient, Instruction, Message
from xvfl.wire.transport import Transport

Reply = TypeVar("Reply")


@dataclass
class RemoteParty:
    """A party as seen by the coordinator."""

    name: str
    transport: Transport
    timeout: float = 60.0
    """Seconds to wait for a reply."""
    latency: float | None = None
    """Seconds that the last reply took."""
    instance_id: str = ""
    """The process that received `Begin`."""
    gradients: list[Gradient] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    """Pending; the next request carries them."""

    def take_pending(self) -> tuple[tuple[Gradient, ...], tuple[Instruction, ...]]:
        """Return and clear pending gradients and instructions."""
        pending = tuple(self.gradients), tuple(self.instructions)
        self.gradients, self.instructions = [], []
        return pending

    def restarted(self) -> bool:
        """Return whether another process is connected than the one that received `Begin`."""
        hello = self.transport.hello()
        return hello is not None and hello.instance_id != self.instance_id

    def check(self, name: str, value: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Validate a tensor of a reply; raise `PartyError` if it is invalid."""
        try:
            return check_tensor(name, value, shape, dtype)
        except WireError as error:
            text = f"party {self.name!r} sent an invalid reply: {error}"
            raise PartyError(text, (self.name,), "wrong") from error


def request_all(
    parties: Sequence[RemoteParty], requests: Sequence[Message], reply_type: type[Reply]
) -> list[Reply]:
    """Send each party its request at once; raise one `PartyError` for all that failed."""
    started = time.monotonic()
    pending = [
        (party, party.transport.request(request))
        for party, request in zip(parties, requests, strict=True)
    ]
    replies, timed_out = [], []
    faults: list[PartyError] = []
    for party, future in pending:
        reply = _wait(party, future, started)
        is_error = isinstance(reply, ErrorReply)
        if reply is None or (is_error and party.instance_id and party.restarted()):
            timed_out.append(party.name)
        elif isinstance(reply, reply_type):
            replies.append(reply)
        elif isinstance(reply, ErrorReply):
            text = f"party {party.name!r} rejected the request: {reply.text}"
            faults.append(PartyError(text, (party.name,), "refused"))
        else:
            text = f"expected {reply_type.__name__}, got {type(reply).__name__}"
            faults.append(PartyError(f"party {party.name!r}: {text}", (party.name,), "wrong"))
    if timed_out:
        text = f"no reply in time from {', '.join(timed_out)}"
        faults.append(PartyError(text, tuple(timed_out)))
    if faults:
        raise PartyError.joined(faults)
    return replies


def _wait(party: RemoteParty, future: Future[Message], started: float) -> Message | None:
    remaining = started + party.timeout - time.monotonic()
    try:
        reply = future.result(max(remaining, 0.001))
    except (TimeoutError, PartyError):
        return None
    party.latency = time.monotonic() - started
    return reply
