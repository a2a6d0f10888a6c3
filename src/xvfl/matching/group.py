"""The group ristretto255 over many ids at once, spread over the cores.

libsodium lets go of Python's lock while it multiplies, so threads suffice.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha512
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import rbcl
from numpy.typing import NDArray

from xvfl.errors import MatchingError

POINT, TAG = 32, 16
"""Bytes of a point, and of a tag."""
PIECE = 128
"""Items that a thread takes at once: some 20 ms of work."""
IN = TypeVar("IN")
OUT = TypeVar("OUT")

# rbcl loads libsodium from a temporary file and leaves it behind; loaded, it is not needed.
if os.name == "posix":
    with suppress(OSError, AttributeError, KeyError):
        Path(sys.modules["rbcl._sodium"].lib_path).unlink()


def secret() -> bytes:
    """Draw a secret scalar."""
    scalar: bytes = rbcl.crypto_core_ristretto255_scalar_random()
    return scalar


def inverse(scalar: bytes) -> bytes:
    """Give the scalar that undoes another."""
    found: bytes = rbcl.crypto_core_ristretto255_scalar_invert(scalar)
    return found


def point_of(text: str, rule: str) -> bytes:
    """Hash a normalised id to a point whose logarithm nobody knows: H(id)."""
    digest = sha512(f"xvfl id 1\0{rule}\0{text}".encode(errors="surrogatepass")).digest()
    point: bytes = rbcl.crypto_core_ristretto255_from_hash(digest)
    return point


def times(scalar: bytes, point: bytes) -> bytes:
    """Multiply a point that came from the other side; libsodium checks that it is one."""
    try:
        product: bytes = rbcl.crypto_scalarmult_ristretto255(scalar, point)
    except (RuntimeError, ValueError) as error:
        raise MatchingError(
            f"expected points of ristretto255 other than zero, got {point.hex()}; "
            "the other side is faulty or not xvfl"
        ) from error
    return product


def tag_of(text: str, point: bytes) -> bytes:
    """Give what stands for an id in the party's list: T(id, point)."""
    data = b"xvfl tag 1\0" + point + text.encode(errors="surrogatepass")
    return sha512(data).digest()[:TAG]


def random_order(count: int) -> NDArray[np.intp]:
    """Draw a permutation from the system's randomness."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64).argsort(kind="stable")


class Cores:
    """Threads that apply a function to many items, in order."""

    def __init__(self, workers: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(workers or usable_cores(), "xvfl-matching")

    def map(self, function: Callable[[IN], OUT], items: Sequence[IN]) -> list[OUT]:
        """Apply the function to each item."""

        def piece(start: int) -> list[OUT]:
            return [function(item) for item in items[start : start + PIECE]]

        found: Iterable[list[OUT]] = self._pool.map(piece, range(0, len(items), PIECE))
        return list(chain.from_iterable(found))

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> "Cores":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def usable_cores() -> int:
    """Count the cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
