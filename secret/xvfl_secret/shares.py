"""Shares as arrays: made and combined by SPU, kept as numpy arrays that can be indexed by row.

A share of ABY3 holds two of the three addends of each number, so an array of shape (…) is a share
of shape (…, 2). Rows can be selected from shares without communication.
"""

from collections.abc import Sequence

import numpy as np
import spu
from numpy.typing import NDArray
from spu import libspu

from xvfl_secret.errors import SecretError
from xvfl_secret.settings import NODES

Share = NDArray[np.uint64]
FRACTION_BITS = 22
"""Bits behind the binary point."""
STORAGE = "aby3.AShr<FM64>"
MAX_ABS = 2.0**12
"""Largest number that is shared: products have twice the fraction bits, in 64 bits."""


def runtime_config(profile: bool = False) -> libspu.RuntimeConfig:
    """Return the protocol: ABY3 on 64 bits. Padé's exponential is closer than SPU's default."""
    config = libspu.RuntimeConfig(
        protocol=libspu.ProtocolKind.ABY3,
        field=libspu.FieldType.FM64,
        fxp_fraction_bits=FRACTION_BITS,
    )
    config.fxp_exp_mode = libspu.RuntimeConfig.ExpMode.EXP_PADE
    config.enable_pphlo_profile = profile
    return config


def split(values: NDArray[np.floating]) -> list[Share]:
    """Split numbers into a share for each node."""
    numbers = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0) > MAX_ABS:
        raise SecretError(f"expected finite numbers of at most {MAX_ABS:.0f}")
    if not numbers.size:
        return [np.zeros((*numbers.shape, 2), np.uint64)] * NODES
    io = spu.Io(NODES, runtime_config())
    return [to_array(each) for each in io.make_shares(numbers, libspu.Visibility.VIS_SECRET)]


def combine(shares: Sequence[Share]) -> NDArray[np.float32]:
    """Recover numbers from the shares of all three nodes."""
    first, second, third = shares
    fits = first.shape == second.shape == third.shape
    same = fits and all(
        np.array_equal(one[..., 1], other[..., 0])
        for one, other in ((first, second), (second, third), (third, first))
    )
    if not same:
        raise SecretError(
            "the nodes' shares contradict each other: a node has sent another share than it has "
            "computed, or the shares are of different runs"
        )
    if not first.size:
        return np.zeros(first.shape[:-1], np.float32)
    io = spu.Io(NODES, runtime_config())
    return np.asarray(io.reconstruct([to_share(each) for each in shares]), np.float32)


def to_share(array: Share) -> libspu.Share:
    """Convert an array of shape (…, 2) to SPU's form."""
    meta = libspu.ValueMeta()
    meta.data_type, meta.visibility = libspu.DataType.DT_F32, libspu.Visibility.VIS_SECRET
    meta.shape, meta.storage_type = list(array.shape[:-1]), STORAGE
    chunk = libspu.ValueChunk()
    content = np.ascontiguousarray(array, np.uint64).tobytes()
    chunk.total_bytes, chunk.chunk_offset, chunk.content = len(content), 0, content
    share = libspu.Share()
    share.meta, share.share_chunks = meta.SerializeToString(), [chunk.SerializeToString()]
    return share


def to_array(share: libspu.Share) -> Share:
    """Convert SPU's form to an array of shape (…, 2)."""
    meta = libspu.ValueMeta()
    meta.ParseFromString(share.meta)
    if meta.storage_type != STORAGE:
        raise SecretError(f"expected a share of type {STORAGE}, got {meta.storage_type}")
    parts = []
    for each in share.share_chunks:
        chunk = libspu.ValueChunk()
        chunk.ParseFromString(each)
        parts.append((chunk.chunk_offset, chunk.content))
    content = b"".join(part for _, part in sorted(parts))
    return np.frombuffer(content, np.uint64).reshape(*meta.shape.dims, 2)
