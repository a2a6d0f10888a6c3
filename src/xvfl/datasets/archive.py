"""The members of a folder, a .zip or a .tar.gz, read in place: nothing is unpacked to disk."""

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from xvfl.errors import InputError

TAR = (".tar", ".tar.gz", ".tgz")


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the members whose name is wanted."""
    try:
        if path.is_dir():
            yield from _of_folder(path, wanted)
        elif path.name.endswith(".zip"):
            yield from _of_zip(path, wanted)
        elif path.name.endswith(TAR):
            yield from _of_tar(path, wanted)
        else:
            raise InputError(f"{path}: expected a folder, a .zip or a .tar.gz")
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: cannot be read ({reason}); it may be cut short: get it again"
        ) from error


def _of_folder(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    for each in sorted(path.rglob("*")):
        name = f"{path.name}/{each.relative_to(path).as_posix()}"
        if wanted(name) and each.is_file():
            yield name, each.read_bytes()


def _of_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as file:
        for name in sorted(file.namelist()):
            if wanted(name) and not name.endswith("/"):
                yield name, file.read(name)


def _of_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as file:
        for member in file:
            content = file.extractfile(member) if wanted(member.name) else None
            if content is not None:
                yield member.name, content.read()
