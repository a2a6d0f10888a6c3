"""Read the members of a folder, a .zip or a .tar.gz without unpacking to disk."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from xvfl.errors import InputError

TAR = (".tar", ".tar.gz", ".tgz")
AT_ONCE = 1 << 20


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
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: cannot be read ({reason}); it may be truncated: get it again"
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
        # Read to the end: gzip's checksum is the last part.
        while file.fileobj is not None and file.fileobj.read(AT_ONCE):
            pass


def nested(data: bytes, names: Sequence[str]) -> bytes:
    """Read a member of a .zip, or of a .zip inside it, and so on."""
    for name in names:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            data = file.read(name)
    return data
