"""The calls of its nets that a party's work is made of, done by whoever drives it.

A work on a batch is a generator: it yields a call and is sent the answer. Driven `alone` it goes
call by call. Driven `together`, the parties' works go in step, so that the same call of small nets
of one shape is one stacked call.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xvfl.nets.joined import join
from xvfl.nets.row_wise import apply_to_rows


@dataclass(frozen=True)
class Call:
    """A net to apply to rows."""

    net: nn.Module
    apply: Callable[[Tensor], Tensor]
    """Applies it as its party does."""
    x: Tensor
    wanted: Tensor | None
    """The rows whose answer somebody looks at; None = all."""

    def answer(self) -> Tensor:
        """Do it by itself."""
        return apply_to_rows(self.apply, self.wanted, self.x)


Calls = Generator[Call, Tensor, Tensor]


def alone(work: Calls) -> Tensor:
    """Do one party's work."""
    answer: Tensor | None = None
    try:
        while True:
            answer = work.send(answer).answer()  # type: ignore[arg-type]
    except StopIteration as done:
        made: Tensor = done.value
        return made


class Together:
    """Does the works of several parties in step; remembers which of their nets are joined."""

    def __init__(self) -> None:
        """Begin with no net joined."""
        self._joined: dict[tuple[nn.Module, ...], nn.Module | None] = {}

    def __call__(self, works: Sequence[Calls]) -> list[Tensor]:
        """Do the works, all of which are made of the same calls."""
        answers: Sequence[Tensor | None] = [None] * len(works)
        while True:
            calls, made = [], []
            for work, answer in zip(works, answers, strict=True):
                try:
                    calls.append(work.send(answer))  # type: ignore[arg-type]
                except StopIteration as done:
                    made.append(done.value)
            if made:
                return made
            answers = self._answers(calls)

    def _answers(self, calls: Sequence[Call]) -> Sequence[Tensor]:
        nets = tuple(call.net for call in calls)
        if nets not in self._joined:
            self._joined[nets] = join(nets)
        joined = self._joined[nets]
        if joined is None:
            return [call.answer() for call in calls]
        x = torch.stack([call.x for call in calls])
        out: Tensor = joined(x.flatten(0, 1))
        return out.view(len(calls), -1, *out.shape[1:]).unbind(0)
