"""Split arrays into shares, by `xvfl-secret`, and seal each node's share for it alone."""

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import RunError
from xvfl.service.secret_shares.nodes import Agreement
from xvfl.service.secret_shares.sealed_arrays import write_arrays
from xvfl.system.printable import one_line
from xvfl.wire.tls import Tls

UPLOAD, TASK, REQUEST, ANSWER = "upload", "task", "request", "answer"
"""What a file of shares holds."""
PRIVATE, PUBLIC = "private", "public"
"""Folders of arrays that are split, and that all nodes receive as they are."""


def run_program(program: str, *arguments: object, show: bool = False) -> None:
    """Run `xvfl-secret`; raise with what it printed last if it fails."""
    try:
        done = subprocess.run(
            [program, *map(str, arguments)],
            stderr=None if show else subprocess.PIPE,
            text=True,
            check=False,
        )
    except OSError as error:
        raise RunError(
            f"{program}: cannot be run ({error.strerror}); install xvfl-secret into an "
            "environment of its own, and set `program` in [secret_options] to its command"
        ) from error
    if done.returncode:
        reason = "" if show else f": {one_line((done.stderr or '').strip().split(chr(10))[-1])}"
        raise RunError(f"xvfl-secret ended with status {done.returncode}{reason}")


def send_shares(
    agreement: Agreement,
    tls: Tls,
    name: str,
    folder: Path,
    content: Mapping[str, Any],
    out: Path,
) -> list[Path]:
    """Split the private arrays of a folder; write a file for each node.

    Parameters
    ----------
    agreement
        The nodes.
    tls, name
        Certificate, key and name of the sender.
    folder
        Has the folders `private` and `public` with `.npy` files.
    content
        What the headers say; all nodes receive the same.
    out
        The folder of the files.
    """
    run_program(agreement.options.program, "split", folder / PRIVATE, folder / "split")
    header = {**content, "agreement": agreement.digest, "split": secrets.token_hex(16)}
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, node in enumerate(agreement.nodes):
        own = folder / "split" / str(rank)
        for path in (folder / PUBLIC).glob("*.npy"):
            (own / path.name).hardlink_to(path)
        path = out / f"{name}.{header['what']}.{node.name}"
        write_arrays(path, tls, node.key, {**header, "node": node.name, "folder": str(own)})
        written.append(path)
    return written


class ShareFolder:
    """A private temporary folder of arrays that will be split; a context manager.

    It holds plain numbers of this side, so it should be on a disk that this side trusts.
    """

    def __init__(self, state_dir: str) -> None:
        self._folder = TemporaryDirectory(prefix="shares-", dir=state_dir)
        self.path = Path(self._folder.name)
        for name in (PRIVATE, PUBLIC):
            (self.path / name).mkdir()

    def __enter__(self) -> "ShareFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def save(self, kind: str, name: str, values: NDArray[Any]) -> None:
        """Write an array."""
        np.save(self.path / kind / f"{name}.npy", values)

    def create(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """Create a private array in a file."""
        path = self.path / PRIVATE / f"{name}.npy"
        made: NDArray[np.float32] = np.lib.format.open_memmap(path, "w+", np.float32, tuple(shape))
        return made


def first_weights(shape: tuple[int, ...], fan_in: int) -> NDArray[np.float32]:
    """Draw first weights, uniformly within 1/√fan_in."""
    rng = np.random.default_rng(secrets.randbits(128))
    return np.asarray(rng.uniform(-1, 1, shape) / np.sqrt(fan_in), np.float32)
