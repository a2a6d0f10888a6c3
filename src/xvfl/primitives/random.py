"""Random draws without state: the name of a draw decides it.

Two evaluations of one step, a retry and a resumed run all see the same draws, and nobody else's.
Draws of a training step (`Draws`) are computed from their name number by number, so that they are
the same on every device, in a captured step, and for a run alone or among many.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from xvfl.primitives.seeding import seed_of


def stream(device: torch.device | str, *name: int | str) -> torch.Generator:
    """Give the random stream of that name."""
    return torch.Generator(device).manual_seed(seed_of(*name))


def seed_modules(device: torch.device, *name: int | str | Tensor) -> None:
    """Seed the global stream that a net's own dropout draws from; not in a captured step."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    seed = seed_of(*(int(part) if isinstance(part, Tensor) else part for part in name))
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class Draws:
    """Numbers of one purpose in one run, or in several at once: a row knows its run."""

    def __init__(self, seeds: Sequence[int], *purpose: int | str) -> None:
        """Name the draws by the runs' seeds and what they are for."""
        self._keys = torch.tensor([seed_of(seed, *purpose) for seed in seeds])

    @classmethod
    def joined(cls, several: Sequence["Draws"]) -> "Draws":
        """Draw the numbers of several purposes at once, one purpose after the other."""
        made = cls(())
        made._keys = torch.cat([each._keys for each in several])
        return made

    def uniform(self, step: int | Tensor, rows: int, columns: int, device: torch.device) -> Tensor:
        """Draw a step's numbers in [0, 1) for the rows of all runs, run after run. (rows, columns)

        A number depends on its run's seed, the step, and its row and column within the run.
        """
        if self._keys.device != device:
            self._keys = self._keys.to(device)
        runs = len(self._keys)
        # A number is filled in, not copied: a copy would wait for the device.
        at = step if isinstance(step, Tensor) else torch.full((), step, device=device)
        run_step = _mix(self._keys + _mix(at.to(device)))
        row = _mix(run_step.unsqueeze(1) + torch.arange(rows // runs, device=device))
        column = row.unsqueeze(2) + torch.arange(columns, device=device)
        bits = (_mix(column) >> 40) & 0xFFFFFF
        return bits.view(rows, columns).to(torch.float32) * 2.0**-24


def shuffled(places: Tensor, count: int, *name: int | str) -> Tensor:
    """Say where a shuffle of `count` things puts those at the given places, without a list of all.

    A Feistel network over an even number of bits is a permutation of [0, 4^b); what falls outside
    [0, count) is sent round again until it falls inside.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    keys = [seed_of(*name, turn) for turn in range(4)]
    moved = places.clone()
    outside = torch.ones_like(moved, dtype=torch.bool)
    while bool(outside.any()):
        left, right = moved[outside] >> half, moved[outside] & low
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & low)
        moved[outside] = (left << half) | right
        outside = moved >= count
    return moved


def _mix(x: Tensor) -> Tensor:
    """Scramble 64-bit integers one by one (splitmix64, G. Steele, D. Lea, C. Flood 2014)."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


_GOLDEN, _FIRST, _SECOND = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
