"""Timing of contenders that take turns, so that other load affects all of them alike."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from xvfl_lab.bench.outcome import Line


@dataclass(frozen=True)
class Times:
    """Milliseconds per step of every contender, by round."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return the median of a contender."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, to: str) -> float:
        """Return the median over the rounds of the ratio of two contenders' times."""
        pairs = zip(self.rounds[name], self.rounds[to], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def lines(self, section: str, case: str, to: str) -> tuple[Line, ...]:
        """List the medians, with their ratios to one contender."""
        return tuple(
            Line(section, case, name, self.median(name), ratio=self.ratio(name, to), to=to)
            for name in self.rounds
        )


def take_turns(
    contenders: Mapping[str, Iterator[object]], rounds: int, steps: int, warm: int = 3
) -> Times:
    """Time some steps of each contender in turn, for several rounds."""
    for steps_of in contenders.values():
        for _ in range(warm):
            next(steps_of)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, steps_of in contenders.items():
            synchronize()
            started = time.perf_counter()
            for _ in range(steps):
                next(steps_of)
            synchronize()
            times[name].append(1000 * (time.perf_counter() - started) / steps)
    return Times(times)


def synchronize() -> None:
    """Wait until the GPU is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
