"""What a data set is, where its files may lie, and which rows are its fixed test rows."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import InputError
from xvfl_lab.task import Task

T = TypeVar("T")

TEST_SHARE = 0.2


@dataclass(frozen=True)
class Download:
    """A file that anyone may fetch."""

    url: str
    file: str
    """Where it goes below the data folder."""
    size: int
    """Bytes that cross the network, about."""
    checksum: str
    """`md5:…` or `sha256:…` of the file kept."""
    inside: tuple[str, ...] = ()
    """Where the file kept lies in a downloaded .zip: its member, a member of that, and so on."""


@dataclass(frozen=True)
class Form(Generic[T]):
    """One way a data set may lie on the disk."""

    files: tuple[str, ...]
    """Files or folders below the data folder, all needed; `a|b` is either."""
    read: Callable[[Sequence[Path]], T]
    rows: int = 0
    """Rows that come of it when nothing is lost; 0 = not known beforehand."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """A form of a data set that is there."""

    form: Form[T]
    files: tuple[Path, ...]

    def identity(self) -> str:
        """Name what is there by names, sizes and times: it changes when the files do."""
        lines = []
        for path in self.files:
            for each in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
                if not each.exists():  # a link to nowhere
                    continue
                about = each.stat()
                size = 0 if each.is_dir() else about.st_size
                name = each.relative_to(path.parent).as_posix()
                lines.append(f"{name} {size} {about.st_mtime_ns}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def size(self) -> int:
        """Count the bytes."""
        each = [f for p in self.files for f in ([p] if p.is_file() else p.rglob("*"))]
        return sum(path.stat().st_size for path in each if path.is_file())


@dataclass(frozen=True)
class DataSet(Generic[T]):
    """A data set: how it is found, read, split over parties, and got."""

    name: str
    title: str
    rows: int
    size: int
    """Bytes of the publisher's files, about."""
    licence: str
    page: str
    forms: tuple[Form[T], ...]
    """The publisher's first."""
    build: Callable[[T, int], Task]
    """From what a form reads, and a number of parties, to a task."""
    splits: tuple[int, ...] = (2, 4)
    """Numbers of parties it can be split over."""
    version: int = 1
    """Raised when the preparation changes, so that cached ones are not used again."""
    downloads: tuple[Download, ...] = ()
    account: str = ""
    """What to do by hand where no download is open to everyone."""
    useless: Mapping[str, str] = field(default_factory=dict)
    """Files that look right and cannot be used, and why."""

    def find(self, folder: Path) -> Found[T] | None:
        """Look for the first form that is whole below a data folder."""
        for form in self.forms:
            for root in (folder / self.name, folder):
                files = [_either(root, each) for each in form.files]
                if all(files):
                    return Found(form, tuple(path for path in files if path))
        return None

    def absent(self, folders: Sequence[Path]) -> InputError:
        """Say what was looked for where, and how to get it."""
        looked = " or ".join(str(folder) for folder in folders)
        wanted = "; or ".join(", ".join(form.files) for form in self.forms)
        seen = [
            f"{name} is there, but {why}; "
            for name, why in self.useless.items()
            if any(_either(root, name) for f in folders for root in (f / self.name, f))
        ]
        how = self.account or f"`xvfl data get {self.name}` downloads it"
        return InputError(
            f"data set {self.name!r}: not in {looked}; {''.join(seen)}expected {wanted} "
            f"(there, or in {self.name}/ below it); {how} ({self.page})"
        )


def _either(root: Path, names: str) -> Path | None:
    paths = (root / name for name in names.split("|"))
    return next((path for path in paths if _there(path)), None)


def _there(path: Path) -> bool:
    """Say whether a file or folder of just that name is there, on any file system."""
    try:
        return path.exists() and path.name in os.listdir(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be looked for ({error.strerror})") from error


def data_folders(data: Path | None = None) -> list[Path]:
    """Say where data sets are looked for: the folder given, else XVFL_DATA and the cache's."""
    if data is not None:
        return [data]
    named = os.environ.get("XVFL_DATA")
    return [*([Path(named).expanduser()] if named else []), downloaded()]


def downloaded() -> Path:
    """Say where downloads go: never into XVFL_DATA, which may be shared."""
    return cache_folder() / "data"


def cache_folder() -> Path:
    """Say where prepared data are kept: XVFL_CACHE, else the user's cache folder."""
    named = os.environ.get("XVFL_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "xvfl"


def ranks(keys: Sequence[str], salt: str) -> NDArray[np.uint64]:
    """Give each key a fixed random number, the same on every machine and in every release."""
    seed = hashlib.blake2b(salt.encode(), digest_size=8)
    digests = bytearray()
    for key in keys:
        each = seed.copy()
        each.update(key.encode())
        digests += each.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)


def fixed_share(keys: Sequence[str], salt: str, share: float = TEST_SHARE) -> NDArray[np.bool_]:
    """Mark exactly round(share · n) rows, chosen by their keys alone."""
    chosen = np.zeros(len(keys), dtype=bool)
    order = np.argsort(ranks(keys, salt), kind="stable")
    chosen[order[: round(share * len(keys))]] = True
    return chosen
