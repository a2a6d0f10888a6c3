"""Random streams without state: the name of a draw decides it.

Two evaluations of one step, a retry and a resumed run all see the same draws, and nobody else's.
"""

from hashlib import blake2b

import torch


def seed_of(*name: int | str) -> int:
    """Turn the name of a draw into a seed."""
    digest = blake2b(repr(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(device: torch.device | str, *name: int | str) -> torch.Generator:
    """Give the random stream of that name."""
    return torch.Generator(device).manual_seed(seed_of(*name))


def seed_modules(device: torch.device, *name: int | str) -> None:
    """Seed the global stream that a net's own dropout draws from."""
    seed = seed_of(*name)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
