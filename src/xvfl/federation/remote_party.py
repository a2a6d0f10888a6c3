"""Put questions to parties side by side, and wait for each no longer than it is worth."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from xvfl.errors import PartyError, WireError
from xvfl.federation.message_checks import check_size, check_tensor
from xvfl.wire.messages import ErrorReply, Gradient, Instruction, Message
from xvfl.wire.payload import Packer
from xvfl.wire.transport import Transport

A = TypeVar("A")


@dataclass
class AdaptiveTimeout:
    """How long to wait for a party: a multiple of what it usually needs."""

    least: float = 5.0
    """Seconds to wait in any case; a broken line may come back in them."""
    factor: float = 10.0
    first: float = 60.0
    """Seconds to wait while nothing is known, and the most ever: who answers ever later, always
    just in time, must not stretch its own deadline without end."""
    usual: float | None = None
    """A high quantile of its answers' seconds, forgetting slowly."""

    @property
    def seconds(self) -> float:
        """How long to wait now."""
        wanted = self.first if self.usual is None else self.factor * self.usual
        return max(self.least, min(self.first, wanted))

    def observe(self, seconds: float) -> None:
        """Take in how long an answer took: up quickly, down slowly."""
        if self.usual is None:
            self.usual = seconds
        else:
            self.usual += (0.3 if seconds > self.usual else 0.02) * (seconds - self.usual)


@dataclass
class RemoteParty:
    """A party as the coordinator knows it."""

    name: str
    transport: Transport
    deadline: AdaptiveTimeout = field(default_factory=AdaptiveTimeout)
    life: str = ""
    """The process that was told of the run."""
    gradients: list[Gradient] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    """What its next question carries."""
    packer: Packer = field(default_factory=Packer)

    def take_pending(self) -> tuple[tuple[Gradient, ...], tuple[Instruction, ...]]:
        """Take what waits to go out, once."""
        taken = tuple(self.gradients), tuple(self.instructions)
        self.gradients, self.instructions = [], []
        return taken

    def restarted(self) -> bool:
        """Say whether another process is on the line than the one that was told of the run."""
        hello = self.transport.hello()
        return hello is not None and hello.life != self.life

    def checked(self, what: str, value: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Unpack an answer's numbers and check them; wrong ones are this party's fault.

        Unpacked numbers are float32, whatever the type that others compute in.
        """
        expected = dtype if self.packer.payload == "float32" else torch.float32
        try:
            made = check_tensor(what, self.packer.unpack(value, what), shape, expected)
            return check_size(what, made)
        except WireError as error:
            text = f"party {self.name!r} answered wrongly: {error}"
            raise PartyError(text, (self.name,), "wrong") from error


def ask(peers: Sequence[RemoteParty], questions: Sequence[Message], answer: type[A]) -> list[A]:
    """Ask every party its question at once; name all that did not answer, and each one's fault."""
    started = time.monotonic()
    open_ = [
        (peer, peer.transport.exchange(question))
        for peer, question in zip(peers, questions, strict=True)
    ]
    answers, away = [], []
    faults: list[PartyError] = []
    for peer, future in open_:
        reply = _wait(peer, future, started)
        if reply is None or (isinstance(reply, ErrorReply) and peer.life and peer.restarted()):
            away.append(peer.name)
        elif isinstance(reply, answer):
            answers.append(reply)
        else:
            faults.append(_fault(peer.name, reply, answer))
    if away:
        faults.append(PartyError(f"no answer in time from {', '.join(away)}", tuple(away)))
    if faults:
        raise PartyError.joined(faults)
    return answers


def _fault(name: str, reply: Message, answer: type[Any]) -> PartyError:
    """Say how a party answered otherwise than asked."""
    if isinstance(reply, ErrorReply):
        return PartyError(f"party {name!r} refused: {reply.text}", (name,), "refused")
    text = f"party {name!r}: expected {answer.__name__}, got {type(reply).__name__}"
    return PartyError(text, (name,), "wrong")


def _wait(peer: RemoteParty, future: Future[Message], started: float) -> Message | None:
    left = started + peer.deadline.seconds - time.monotonic()
    try:
        reply = future.result(max(left, 0.001))
    except (TimeoutError, PartyError):
        return None
    peer.deadline.observe(time.monotonic() - started)
    return reply
