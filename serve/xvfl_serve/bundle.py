"""Bundles: one file with all that prediction needs. A zip file; nothing in it is pickled.

bundle.json      parties, outputs, calibration, training summary, checksums and sizes of the
                 other files
encoders/I.json  how the cells of party number I become numbers
nets/NAME.onnx   the nets
cells.npz        the model that fills the cells of tables
card.md          the model card
signature.bin    Ed25519 signature of bundle.json, if the bundle is signed

The archive comment is the SHA-256 of all bytes before it, so that any changed byte is found.
A bundle holds no ids of training rows.

A bundle is not trusted before its signature is checked: the sizes of its parts are checked before
they are read, then the signature of the manifest, and each other file against the manifest.
"""

import hashlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from xvfl_serve.errors import BundleError, bundle_errors
from xvfl_serve.json_size import load_json

FORMAT = 1
"""Version of the bundle's contents; a bundle of another format is rejected."""
MANIFEST, CARD, CELLS, SIGNATURE = "bundle.json", "card.md", "cells.npz", "signature.bin"
MAX_BYTES = 256 * 2**20
"""Largest bundle, packed and unpacked."""
MAX_UNVERIFIED = 64 * 2**20
"""Largest bundle of which no signature is checked; nets take several times their bytes."""
MAX_RATIO = 100
"""Largest ratio of unpacked to packed bytes, above 1 MiB."""
MAX_ENTRIES = 1000
MAX_MANIFEST, MAX_SIGNATURE, MAX_JSON = 4 * 2**20, 1024, 64 * 2**20
"""Largest bytes of the manifest, of its signature, and of any other JSON file."""
MAX_CELLS, MAX_DEPTH = 2_000_000, 64
"""Largest number of values and depth of a JSON file."""
_MARK = b"sha256:"
_TRAILER = len(_MARK) + 64
_END = struct.Struct("<4s4H2LH")
"""The last record of a zip file, before its comment."""
_END_MARK, _ZIP64_MARK, _ZIP64_SIZE = b"PK\5\6", b"PK\6\7", 20
_MAX_DIRECTORY = 2**20
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """The contents of a bundle.

    Parameters
    ----------
    manifest : dict
        Parties, outputs, calibration and training summary.
    files : mapping of str to bytes
        The other files, by name.
    digest : str
        SHA-256 of the bundle, which identifies it.
    """

    manifest: dict[str, Any]
    files: Mapping[str, bytes]
    digest: str = ""

    @property
    def card(self) -> str:
        """The model card, in Markdown."""
        return self.files.get(CARD, b"").decode()

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the contents of a JSON file."""
        if len(self.files[name]) > MAX_JSON:
            raise BundleError(f"{name}: expected at most {MAX_JSON} bytes; export the bundle again")
        data: dict[str, Any] = load_json(self.files[name], MAX_CELLS, MAX_DEPTH)
        return data


def pack(bundle: Bundle, signing_key: Path | None = None) -> bytes:
    """Return the bytes of a bundle; equal contents give equal bytes.

    Parameters
    ----------
    bundle : Bundle
        The contents. Checksums and format are added to the manifest.
    signing_key : Path, optional
        An Ed25519 private key (PEM) that signs the manifest.
    """
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(bundle.files.items())}
    sizes = {name: len(data) for name, data in sorted(bundle.files.items())}
    manifest = {"format": FORMAT, **bundle.manifest, "files": sums, "sizes": sizes}
    text = json.dumps(manifest, indent=1)
    entries = {MANIFEST: text.encode(), **dict(sorted(bundle.files.items()))}
    if signing_key is not None:
        from xvfl_serve.signing import sign

        entries[SIGNATURE] = sign(entries[MANIFEST], signing_key)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
        archive.comment = _MARK + b"0" * 64
    body = buffer.getvalue()[:-_TRAILER]
    return body + _MARK + hashlib.sha256(body).hexdigest().encode()


def read_bundle(path: str | Path, public_key: Path | None = None) -> Bundle:
    """Read and check a bundle.

    Parameters
    ----------
    path : str or Path
        The file that `xvfl export` wrote.
    public_key : Path, optional
        An Ed25519 public key (PEM). A bundle that it did not sign is rejected.

    Returns
    -------
    Bundle

    Raises
    ------
    BundleError
        The file is missing, damaged, too large, of another format, or not signed by the key.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise BundleError(f"{path}: expected a file, got something else; check the path")
        with Path(path).open("rb") as file:
            limit = MAX_UNVERIFIED if public_key is None else MAX_BYTES
            return _unpack(file, str(path), public_key, limit)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def unpack(data: bytes, where: str = "bundle", public_key: Path | None = None) -> Bundle:
    """Check the bytes of a bundle and return its contents; see `read_bundle`."""
    return _unpack(io.BytesIO(data), where, public_key)


def _unpack(file: BinaryIO, where: str, public_key: Path | None, limit: int = MAX_BYTES) -> Bundle:
    with bundle_errors(where):
        digest = _check_file(file, where)
        with zipfile.ZipFile(file) as archive:
            entries = _check_entries(archive, file.seek(0, io.SEEK_END), where, limit)
            text = _read(archive, entries.pop(MANIFEST, None), MANIFEST, MAX_MANIFEST, where)
            signature = None
            if SIGNATURE in entries:
                signature = _read(archive, entries.pop(SIGNATURE), SIGNATURE, MAX_SIGNATURE, where)
            if public_key is not None:
                from xvfl_serve.signing import verify

                verify(text, signature, public_key, where)
            manifest = load_json(text, MAX_CELLS, MAX_DEPTH)
            _check_format(manifest, where)
            return Bundle(manifest, _read_files(archive, entries, manifest, where), digest)


def _check_file(file: BinaryIO, where: str) -> str:
    """Check size, checksum and directory of a bundle's file; return its digest."""
    size = file.seek(0, io.SEEK_END)
    if size > MAX_BYTES:
        raise BundleError(f"{where}: larger than {MAX_BYTES} bytes; expected a bundle")
    file.seek(0)
    checksum, left = hashlib.sha256(), size - _TRAILER
    while left > 0 and (part := file.read(min(left, 2**20))):
        checksum.update(part)
        left -= len(part)
    digest = checksum.hexdigest()
    if file.read(_TRAILER + 1) != _MARK + digest.encode():
        raise BundleError(
            f"{where}: not a bundle, or damaged: its checksum is wrong; copy or export it again"
        )
    before = _ZIP64_SIZE + _END.size + _TRAILER
    file.seek(max(0, size - before))
    tail = file.read(before - _TRAILER).rjust(before - _TRAILER, b"\0")
    mark, *_, entries, length, _, comment = _END.unpack(tail[_ZIP64_SIZE:])
    if mark != _END_MARK or comment != _TRAILER or tail.startswith(_ZIP64_MARK):
        raise BundleError(f"{where}: not a bundle; export it again")
    if entries > MAX_ENTRIES or length > _MAX_DIRECTORY:
        raise BundleError(f"{where}: more than {MAX_ENTRIES} files; expected a bundle")
    return digest


def _check_entries(
    archive: zipfile.ZipFile, packed: int, where: str, limit: int
) -> dict[str, zipfile.ZipInfo]:
    """Check names and declared sizes of the files in a bundle."""
    infos = archive.infolist()
    entries = {info.filename: info for info in infos}
    if len(entries) < len(infos):
        raise BundleError(f"{where}: a file occurs twice in it; export it again")
    unpacked = sum(info.file_size for info in infos)
    if unpacked > min(limit, max(2**20, MAX_RATIO * packed)):
        raise BundleError(
            f"{where}: expected at most {limit} bytes unpacked and {MAX_RATIO} times its own "
            f"{packed} bytes, got {unpacked}; export it again, or get it from its author"
            + (f"; signed and with --verify, up to {MAX_BYTES}" if limit < MAX_BYTES else "")
        )
    return entries


def _read(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, name: str, limit: int, where: str
) -> bytes:
    if info is None:
        raise BundleError(f"{where}: not a bundle: it has no {name}; export it again")
    if info.file_size > limit:
        raise BundleError(
            f"{where}: {name}: expected at most {limit} bytes, got {info.file_size}; export the "
            "bundle again"
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleError(f"{where}: {name}: unknown compression; export it again")
    with archive.open(info) as entry:
        # `archive.read` unpacks all that there is before it compares it with the declared size.
        return entry.read(info.file_size)


def _read_files(
    archive: zipfile.ZipFile,
    entries: Mapping[str, zipfile.ZipInfo],
    manifest: Mapping[str, Any],
    where: str,
) -> dict[str, bytes]:
    """Read the files of the manifest; each must have its checksum, and its size if it is known."""
    sums, sizes = manifest.get("files"), manifest.get("sizes")
    found = {name: info.file_size for name, info in entries.items()}
    wrong = f"{where}: its files are not those of its manifest; export it again"
    if (
        not isinstance(sums, dict)
        or sums.keys() != found.keys()
        or (sizes is not None and sizes != found)
    ):
        raise BundleError(wrong)
    files = {}
    for name, info in entries.items():
        files[name] = _read(archive, info, name, MAX_BYTES, where)
        if hashlib.sha256(files[name]).hexdigest() != sums[name]:
            raise BundleError(wrong)
    return files


def _check_format(manifest: Any, where: str) -> None:
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        version = manifest.get("version", "?") if isinstance(manifest, dict) else "?"
        raise BundleError(
            f"{where}: written by xvfl {version} in bundle format {found}, this version reads "
            f"format {FORMAT}; export it again, or install the version of xvfl-serve that wrote it"
        )
