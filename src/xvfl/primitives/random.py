"""Random numbers without state: each random stream is seeded by a hash of (seed, purpose, step).

Two evaluations of one step, a retry and a resumed run get the same numbers. `CounterRNG` computes
each number of a training step from its position, so that numbers are the same on every device, in
a captured CUDA graph, and for a run alone or stacked with others.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from xvfl.primitives.seeding import derive_seed


def named_generator(device: torch.device | str, *name: int | str) -> torch.Generator:
    """Return a generator seeded by a name."""
    return torch.Generator(device).manual_seed(derive_seed(*name))


def seed_modules(device: torch.device, *name: int | str | Tensor) -> None:
    """Seed the global generators, which dropout uses; not while a CUDA graph is captured."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    seed = derive_seed(*(int(part) if isinstance(part, Tensor) else part for part in name))
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class CounterRNG:
    """Counter-based generator of uniform numbers, for one run or several stacked runs."""

    def __init__(self, seeds: Sequence[int], *purpose: int | str) -> None:
        """Take the seed of each run and the purpose of the numbers."""
        self._keys = torch.tensor([derive_seed(seed, *purpose) for seed in seeds])

    @classmethod
    def concat(cls, generators: Sequence["CounterRNG"]) -> "CounterRNG":
        """Concatenate generators as if they were runs."""
        combined = cls(())
        combined._keys = torch.cat([each._keys for each in generators])
        return combined

    def uniform(self, step: int | Tensor, rows: int, columns: int, device: torch.device) -> Tensor:
        """Generate numbers in [0, 1) for the rows of all runs, run after run. (rows, columns)

        A number depends on its run's seed, the step, and its row and column within the run.
        """
        if self._keys.device != device:
            self._keys = self._keys.to(device)
        runs = len(self._keys)
        # Filling in the step avoids a synchronizing copy to the device.
        at = step if isinstance(step, Tensor) else torch.full((), step, device=device)
        run_step = _mix(self._keys + _mix(at.to(device)))
        row = _mix(run_step.unsqueeze(1) + torch.arange(rows // runs, device=device))
        column = row.unsqueeze(2) + torch.arange(columns, device=device)
        bits = (_mix(column) >> 40) & 0xFFFFFF
        return bits.view(rows, columns).to(torch.float32) * 2.0**-24


def permute(index: Tensor, count: int, *name: int | str) -> Tensor:
    """Map indices through a random permutation of [0, count), in constant memory.

    A Feistel network over an even number of bits is a permutation of [0, 4^b); results outside
    [0, count) are mapped again until they fall inside.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    keys = [derive_seed(*name, turn) for turn in range(4)]
    permuted = index.clone()
    outside = torch.ones_like(permuted, dtype=torch.bool)
    while bool(outside.any()):
        left, right = permuted[outside] >> half, permuted[outside] & low
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & low)
        permuted[outside] = (left << half) | right
        outside = permuted >= count
    return permuted


def _mix(x: Tensor) -> Tensor:
    """Hash 64-bit integers elementwise (splitmix64, G. Steele, D. Lea, C. Flood 2014)."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


_GOLDEN, _FIRST, _SECOND = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
