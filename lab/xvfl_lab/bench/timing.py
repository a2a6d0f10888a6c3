"""Times of things that take turns, so that what else a machine does falls on all of them alike."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Times:
    """Milliseconds a step of every contender, round by round."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Give a contender's median."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, to: str) -> float:
        """Give the median, over the rounds, of one contender's time over another's."""
        pairs = zip(self.rounds[name], self.rounds[to], strict=True)
        return statistics.median(a / b for a, b in pairs)


def take_turns(
    contenders: Mapping[str, Iterator[object]], rounds: int, steps: int, warm: int = 3
) -> Times:
    """Time some steps of each contender in turn, so many rounds."""
    for steps_of in contenders.values():
        for _ in range(warm):
            next(steps_of)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, steps_of in contenders.items():
            settle()
            started = time.perf_counter()
            for _ in range(steps):
                next(steps_of)
            settle()
            times[name].append(1000 * (time.perf_counter() - started) / steps)
    return Times(times)


def settle() -> None:
    """Wait for a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
