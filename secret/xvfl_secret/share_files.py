"""Shares as files: `.npy` files are split and combined, a block of rows at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from xvfl_secret.errors import SecretError
from xvfl_secret.inputs import load
from xvfl_secret.settings import NODES
from xvfl_secret.shares import combine, split

BLOCK_NUMBERS = 2**20
"""Numbers that are split at once."""


def split_folder(folder: Path, out: Path) -> None:
    """Split each `.npy` file of a folder; write the shares of node i to `out/i`."""
    for rank in range(NODES):
        (out / str(rank)).mkdir(parents=True, mode=0o700)
    for path in sorted(folder.glob("*.npy")):
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise SecretError(f"{path}: cannot be read ({error})") from error
        if not np.issubdtype(values.dtype, np.floating):
            raise SecretError(f"{path}: expected floating-point numbers, got {values.dtype}")
        shape = (*values.shape, 2)
        files = [
            np.lib.format.open_memmap(out / str(i) / path.name, "w+", np.uint64, shape)
            for i in range(NODES)
        ]
        for rows in _blocks(len(values), values.size):
            for file, share in zip(files, split(values[rows]), strict=True):
                file[rows] = share
        for file in files:
            file.flush()


def combine_files(shares: Sequence[Path], out: Path) -> None:
    """Combine the shares of an array of two dimensions; write it to a `.npy` file."""
    arrays = [load(path, np.uint64, (-1, -1, 2)) for path in shares]
    numbers = combine([np.asarray(each) for each in arrays])
    with out.open("wb") as file:
        np.save(file, numbers, allow_pickle=False)


def _blocks(n_rows: int, n_numbers: int) -> Iterator[slice]:
    size = max(1, BLOCK_NUMBERS * n_rows // max(1, n_numbers))
    for start in range(0, n_rows, size):
        yield slice(start, start + size)
