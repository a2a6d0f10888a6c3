"""Random numbers without state: each random stream is seeded by a hash of (seed, purpose, step).

Two evaluations of one step, a retry and a resumed run get the same numbers. `CounterRNG` computes
each number of a training step from its position, so that numbers are the same on every device, in
a captured CUDA graph, and for a run alone or stacked with others.
"""

from collections.abc import Sequence
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor

from xvfl.primitives.seeding import derive_seed

_STATE_HEADER, _STATE_WORDS = 24, 624
"""Bytes before the words of a CPU generator's state, and the number of words."""
BLOCK_STEPS, BLOCK_NUMBERS = 16, 2**20
"""Most steps, and about the most numbers, that `CounterRNG` generates at once."""
HASHED_AT_ONCE = 2**14
"""Integers that a CPU hashes in one part."""


def named_generator(device: torch.device | str, *name: int | str) -> torch.Generator:
    """Return a generator seeded by a name."""
    return torch.Generator(device).manual_seed(derive_seed(*name))


def secret_generator(seed: int, *name: int | str) -> torch.Generator:
    """Return a CPU generator seeded by a name; its whole state, if the seed is above 64 bits."""
    generator = named_generator("cpu", seed, *name)
    if seed >> 64:
        _fill_generator_state(generator, repr((seed, *name)).encode())
    return generator


def seed_modules(device: torch.device, seed: int, *name: int | str | Tensor) -> None:
    """Seed the global generators, which initialization and dropout use.

    A seed above 64 bits is a secret, and the CPU generator's whole state is derived from it:
    `manual_seed` uses 32 bits only, which can be searched exhaustively. Does nothing while a CUDA
    graph is captured.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    full_name = (seed, *(int(part) if isinstance(part, Tensor) else part for part in name))
    derived = derive_seed(*full_name)
    torch.default_generator.manual_seed(derived)
    if seed >> 64:
        _fill_generator_state(torch.default_generator, repr(full_name).encode())
    if device.type == "cuda":
        torch.cuda.manual_seed(derived)


def _fill_generator_state(generator: torch.Generator, key: bytes) -> None:
    """Derive all 624 words of a Mersenne Twister's state from a key."""
    state = generator.get_state()
    words = shake_256(key).digest(_STATE_WORDS * 4)
    # The state stores 32-bit words as 64-bit integers, after a header of three integers.
    stored = np.frombuffer(words, dtype="<u4").astype(np.uint64)
    view = state.numpy()[_STATE_HEADER : _STATE_HEADER + _STATE_WORDS * 8].view(np.uint64)
    view[:] = stored
    generator.set_state(state)


class CounterRNG:
    """Counter-based generator of uniform numbers, for one run or several stacked runs."""

    def __init__(self, seeds: Sequence[int], *purpose: int | str) -> None:
        """Take the seed of each run and the purpose of the numbers."""
        self._keys = torch.tensor([derive_seed(seed, *purpose) for seed in seeds])
        self._block = torch.empty(0)
        self._block_of: tuple[int, int, int, torch.device] | None = None

    @classmethod
    def concat(cls, generators: Sequence["CounterRNG"]) -> "CounterRNG":
        """Concatenate generators as if they were runs."""
        combined = cls(())
        combined._keys = torch.cat([each._keys for each in generators])
        return combined

    def uniform(self, step: int | Tensor, rows: int, columns: int, device: torch.device) -> Tensor:
        """Generate numbers in [0, 1) for the rows of all runs, run after run. (rows, columns)

        A number depends on its run's seed, the step, and its row and column within the run. On a
        CPU, the numbers of some steps are generated at once.
        """
        if isinstance(step, Tensor):
            return self._of_steps(step.to(device).view(1), rows, columns)[0]
        steps = 1 if device.type != "cpu" else BLOCK_NUMBERS // max(rows * columns, 1)
        steps = min(max(steps, 1), BLOCK_STEPS)
        first = step - step % steps
        if self._block_of != (first, rows, columns, device):
            # Filling in the step avoids a synchronizing copy to the device.
            at = torch.full((1,), first, device=device) + torch.arange(steps, device=device)
            self._block = self._of_steps(at, rows, columns)
            self._block_of = (first, rows, columns, device)
        return self._block[step - first]

    def _of_steps(self, steps: Tensor, rows: int, columns: int) -> Tensor:
        """Generate the numbers of several steps. (steps, rows, columns)"""
        device = steps.device
        if self._keys.device != device:
            self._keys = self._keys.to(device)
        of_run = _mix(self._keys + _mix(steps).unsqueeze(1))
        row = _mix(of_run.unsqueeze(2) + torch.arange(rows // len(self._keys), device=device))
        column = row.unsqueeze(3) + torch.arange(columns, device=device)
        return _to_unit(column).view(len(steps), rows, columns)

    def uniform_by_key(self, keys: Tensor, columns: int) -> Tensor:
        """Generate numbers in [0, 1) that depend on a key of each row, not on its position.

        The rows of all runs, run after run. (rows, columns)
        """
        if self._keys.device != keys.device:
            self._keys = self._keys.to(keys.device)
        of_run = self._keys.repeat_interleave(len(keys) // len(self._keys))
        row = _mix(of_run + _mix(keys)).unsqueeze(1)
        return _to_unit(row + torch.arange(columns, device=keys.device))


def _to_unit(keys: Tensor) -> Tensor:
    """Hash integers to numbers in [0, 1)."""
    if keys.device.type == "cpu":
        return _to_unit_on_cpu(keys)
    bits = (_mix(keys) >> 40) & 0xFFFFFF
    return bits.to(torch.float32) * 2.0**-24


def _to_unit_on_cpu(keys: Tensor) -> Tensor:
    """Compute `_to_unit` in place, part by part: everything stays in the processor's cache."""
    flat = keys.contiguous().view(-1).numpy().view(np.uint64)
    numbers = np.empty(len(flat), dtype=np.float32)
    buffers = np.empty((2, min(len(flat), HASHED_AT_ONCE)), dtype=np.uint64)
    for start in range(0, len(flat), HASHED_AT_ONCE):
        part = flat[start : start + HASHED_AT_ONCE]
        x, shifted = buffers[:, : len(part)]
        np.add(part, _UNSIGNED[0], out=x)
        for shift, factor in zip(_SHIFTS[:2], _UNSIGNED[1:], strict=True):
            x ^= np.right_shift(x, shift, out=shifted)
            x *= factor
        x ^= np.right_shift(x, _SHIFTS[2], out=shifted)
        x >>= _TO_24_BITS
        np.multiply(x.view(np.int64), 2.0**-24, out=numbers[start : start + len(part)])
    return torch.from_numpy(numbers).view(keys.shape)


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


_CONSTANTS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN, _FIRST, _SECOND = (value - 2**64 for value in _CONSTANTS)
_UNSIGNED = np.array(_CONSTANTS, dtype=np.uint64)
_SHIFTS = np.array([30, 27, 31], dtype=np.uint64)
_TO_24_BITS = np.uint64(40)
