"""Arrays in a file that is signed by its writer and encrypted to its reader.

The header lists name, type and shape of each array, and a digest of each block of its bytes.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from xvfl.certs.sealed_file import SealedFile, read_sealing_key, write_sealed
from xvfl.certs.signed_document import SignedDocument
from xvfl.errors import WireError
from xvfl.wire.tls import Tls

SHARES = "xvfl secret shares 1"
BLOCK_BYTES = 2**22
NAME = re.compile(r"[a-z]{1,20}")
DTYPES = ("<u8", "<i4", "|u1")
MAX_DIMENSIONS, MAX_LENGTH = 4, 2**31


def write_arrays(path: Path, tls: Tls, reader: bytes, content: Mapping[str, Any]) -> None:
    """Write the `.npy` files of the folder `content["folder"]`, which itself is not written."""
    folder = Path(content["folder"])
    files = {
        each.stem: np.load(each, mmap_mode="r", allow_pickle=False)
        for each in sorted(folder.glob("*.npy"))
    }
    header = {
        **{key: value for key, value in content.items() if key != "folder"},
        "arrays": {name: [each.dtype.str, list(each.shape)] for name, each in files.items()},
        "blocks": [_digest(block) for each in files.values() for block in _blocks(each)],
    }
    parts = (block for each in files.values() for block in _blocks(each))
    write_sealed(path, tls, reader, SHARES, header, parts)


def read_arrays(
    path: Path,
    key: Path,
    check: Callable[[bytes], object],
    place: Callable[[SignedDocument], Path],
    max_bytes: int,
) -> SignedDocument:
    """Verify and decrypt a file; write its arrays as `.npy` files.

    Parameters
    ----------
    path
        The file.
    key
        File of the reader's private key.
    check
        Returns whose certificate it is; raises if it is not trusted.
    place
        Returns the folder to write, which is replaced; raises if the content is not accepted.
    max_bytes
        Largest size of all arrays.
    """
    with path.open("rb") as file:
        sealed = SealedFile(file, read_sealing_key(key), SHARES, check)
        arrays = _check_arrays(sealed.document.get("arrays", dict), max_bytes)
        digests = iter(sealed.document.get("blocks", list))
        folder = place(sealed.document)
        new = folder.with_name(f".new-{folder.name}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True, mode=0o700)
        for name, (dtype, shape) in arrays.items():
            _receive(sealed, new / f"{name}.npy", dtype, shape, digests)
        sealed.end()
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return sealed.document


def _check_arrays(
    given: Mapping[str, Any], max_bytes: int
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    arrays, total = {}, 0
    for name, value in given.items():
        if not NAME.fullmatch(name) or not isinstance(value, list) or len(value) != 2:
            raise WireError("arrays: expected names, each with a type and a shape")
        dtype, shape = value
        sizes = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
        if (
            dtype not in DTYPES
            or not sizes
            or not all(type(n) is int and 0 <= n < MAX_LENGTH for n in shape)
        ):
            raise WireError(f"arrays: {name} has a type or a shape that is not accepted")
        arrays[name] = np.dtype(dtype), tuple(shape)
        total += prod(shape) * np.dtype(dtype).itemsize
    if total > max_bytes:
        raise WireError(f"expected arrays of at most {max_bytes} bytes, got {total}")
    return arrays


def _receive(
    sealed: SealedFile,
    path: Path,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    digests: Iterator[str],
) -> None:
    with path.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        left = prod(shape) * dtype.itemsize
        while left:
            block = sealed.part(min(left, BLOCK_BYTES))
            if _digest(block) != next(digests, None):
                raise WireError(f"{path.stem}: wrong digest of a block; copy the file again")
            file.write(block)
            left -= len(block)


def _blocks(array: Any) -> Iterator[bytes]:
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, BLOCK_BYTES):
        yield flat[start : start + BLOCK_BYTES].tobytes()


def _digest(block: bytes) -> str:
    return blake2b(block, digest_size=16).hexdigest()
