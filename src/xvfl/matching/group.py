"""Operations in the group ristretto255, in parallel over many ids.

libsodium releases the GIL while it multiplies, so threads run in parallel.
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

POINT_BYTES, TAG_BYTES, PROOF_BYTES = 32, 16, 16
"""Bytes of a point, of a tag and of a proof."""
CHUNK = 128
"""Items that a thread processes at once: about 20 ms of work."""
IN = TypeVar("IN")
OUT = TypeVar("OUT")

# rbcl loads libsodium from a temporary file and does not delete it; once loaded, it can go.
if os.name == "posix":
    with suppress(OSError, AttributeError, KeyError):
        Path(sys.modules["rbcl._sodium"].lib_path).unlink()


def random_scalar() -> bytes:
    """Sample a secret scalar."""
    scalar: bytes = rbcl.crypto_core_ristretto255_scalar_random()
    return scalar


def invert(scalar: bytes) -> bytes:
    """Return the inverse of a scalar."""
    inverse: bytes = rbcl.crypto_core_ristretto255_scalar_invert(scalar)
    return inverse


def hash_to_point(text: str, domain: bytes) -> bytes:
    """Hash a normalized id to a point of unknown discrete logarithm: H(id)."""
    digest = sha512(b"point\0" + domain + text.encode(errors="surrogatepass")).digest()
    point: bytes = rbcl.crypto_core_ristretto255_from_hash(digest)
    return point


def multiply(scalar: bytes, point: bytes) -> bytes:
    """Multiply a point by a scalar; libsodium rejects an invalid point."""
    try:
        product: bytes = rbcl.crypto_scalarmult_ristretto255(scalar, point)
    except (RuntimeError, ValueError) as error:
        raise MatchingError(
            f"expected points of ristretto255 other than zero, got {point.hex()}; "
            "the other side is faulty or is not xvfl"
        ) from error
    return product


def tag_and_proof(text: str, point: bytes, domain: bytes) -> tuple[bytes, bytes]:
    """Return the tag T(id, point) and the proof P(id, point): two parts of one hash."""
    data = b"tag\0" + domain + point + text.encode(errors="surrogatepass")
    digest = sha512(data).digest()
    return digest[:TAG_BYTES], digest[TAG_BYTES : TAG_BYTES + PROOF_BYTES]


def random_order(count: int) -> NDArray[np.intp]:
    """Sample a permutation from the operating system's random source."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64).argsort(kind="stable")


class ThreadMap:
    """Applies a function to many items on several threads; results keep the order."""

    def __init__(self, n_threads: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(n_threads or usable_cores(), "xvfl-matching")

    def map(self, function: Callable[[IN], OUT], items: Sequence[IN]) -> list[OUT]:
        """Apply the function to each item."""

        def run_chunk(start: int) -> list[OUT]:
            return [function(item) for item in items[start : start + CHUNK]]

        chunks: Iterable[list[OUT]] = self._pool.map(run_chunk, range(0, len(items), CHUNK))
        return list(chain.from_iterable(chunks))

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> "ThreadMap":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
