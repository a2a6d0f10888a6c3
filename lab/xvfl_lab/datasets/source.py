"""What a data set is, where its files are searched, and which rows are its fixed test rows."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import InputError
from xvfl_lab.task import Task

TEST_SHARE = 0.2


class Rows(Protocol):
    """What a reader returns: the rows of a data set."""

    @property
    def y(self) -> NDArray[np.int64]:
        """The labels."""

    def split(self, parties: int) -> Task:
        """Encode the rows and split them over parties."""


@dataclass(frozen=True)
class Download:
    """A file that anyone may download."""

    url: str
    file: str
    """Destination, relative to the data folder."""
    size: int
    """Bytes to transfer, approximately."""
    checksum: str
    """`md5:…` or `sha256:…` of the stored file."""
    inside: tuple[str, ...] = ()
    """Path of the stored file inside a downloaded .zip: its member, a member of that, and so on."""


@dataclass(frozen=True)
class FileFormat:
    """One of the file formats in which a data set is available."""

    files: tuple[str, ...]
    """Files or folders relative to the data folder, all required; `a|b` means either."""
    read: Callable[[Sequence[Path]], Rows]
    rows: int = 0
    """Number of rows if the files are complete; 0 = unknown."""


@dataclass(frozen=True)
class LocalFiles:
    """The files of a data set on this machine."""

    format: FileFormat
    paths: tuple[Path, ...]

    def identity(self) -> str:
        """Hash names, sizes and times; it changes when the files do."""
        lines = []
        for root, path in self._all():
            name, size = path.relative_to(root.parent).as_posix(), file_size(path)
            lines.append(f"{name} {size} {path.stat().st_mtime_ns}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def size(self) -> int:
        """Count the bytes."""
        return sum(file_size(path) for _, path in self._all())

    def _all(self) -> Iterator[tuple[Path, Path]]:
        """Yield every file and folder after the path that it is part of; no dangling links."""
        for root in self.paths:
            for path in [root, *sorted(root.rglob("*"))]:
                if path.exists():
                    yield root, path


@dataclass(frozen=True)
class DataSet:
    """A data set: how to find, read, split and download it."""

    name: str
    title: str
    rows: int
    size: int
    """Bytes of the publisher's files, approximately."""
    license: str
    page: str
    formats: tuple[FileFormat, ...]
    """The publisher's format first."""
    splits: tuple[int, ...] = (2, 4)
    """Supported numbers of parties."""
    version: int = 1
    """Increased when the preparation changes, so that cached ones are not used again."""
    downloads: tuple[Download, ...] = ()
    instructions: str = ""
    """How to get the files manually if no download is open to everyone."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Files that look right but cannot be used, and why."""

    def find(self, folder: Path) -> LocalFiles | None:
        """Search a data folder for the first format whose files are all present."""
        for each in self.formats:
            for root in (folder / self.name, folder):
                paths = [path for name in each.files if (path := _either(root, name))]
                if len(paths) == len(each.files):
                    return LocalFiles(each, tuple(paths))
        return None

    def not_found(self, folders: Sequence[Path]) -> InputError:
        """Return an error that names the expected files, the folders, and how to get the files."""
        searched = " or ".join(str(folder) for folder in folders)
        wanted = "; or ".join(", ".join(each.files) for each in self.formats)
        unusable = [
            f"{name} is there, but {why}; "
            for name, why in self.unusable.items()
            if any(_either(root, name) for f in folders for root in (f / self.name, f))
        ]
        how = self.instructions or f"`xvfl-lab data get {self.name}` downloads it"
        return InputError(
            f"data set {self.name!r}: not in {searched}; {''.join(unusable)}expected {wanted} "
            f"(there, or in {self.name}/ below it); {how} ({self.page})"
        )


def file_size(path: Path) -> int:
    """Return the bytes of a file; 0 for a folder, or where there is no file."""
    return path.stat().st_size if path.is_file() else 0


def _either(root: Path, names: str) -> Path | None:
    paths = (root / name for name in names.split("|"))
    return next((path for path in paths if _exists(path)), None)


def _exists(path: Path) -> bool:
    """Check for a file or folder of exactly this name, on case-insensitive file systems too."""
    try:
        return path.exists() and path.name in os.listdir(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def data_folders(data: Path | None = None) -> list[Path]:
    """Return the folders to search: the given one, or XVFL_DATA and the cache."""
    if data is not None:
        return [data]
    named = os.environ.get("XVFL_DATA")
    return [*([Path(named).expanduser()] if named else []), download_folder()]


def download_folder() -> Path:
    """Return the folder of downloads: never XVFL_DATA, which may be shared."""
    return cache_folder() / "data"


def cache_folder() -> Path:
    """Return the cache folder: XVFL_CACHE, or in the user's cache."""
    named = os.environ.get("XVFL_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "xvfl"


def hash_ranks(keys: Sequence[str], salt: str) -> NDArray[np.uint64]:
    """Hash each key to a fixed number, the same on every machine and in every release."""
    seed = hashlib.blake2b(salt.encode(), digest_size=8)
    digests = bytearray()
    for key in keys:
        each = seed.copy()
        each.update(key.encode())
        digests += each.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)


def fixed_fraction(keys: Sequence[str], salt: str, share: float = TEST_SHARE) -> NDArray[np.bool_]:
    """Select exactly round(share · n) rows, depending on their keys alone."""
    chosen = np.zeros(len(keys), dtype=bool)
    order = np.argsort(hash_ranks(keys, salt), kind="stable")
    chosen[order[: round(share * len(keys))]] = True
    return chosen
