"""Bundles: one file with all that prediction needs. A zip file; nothing in it is pickled.

bundle.json      parties, outputs, calibration, training summary, checksums of the other files
encoders/I.json  how the cells of party number I become numbers
nets/NAME.onnx   the nets
card.md          the model card
signature.bin    Ed25519 signature of bundle.json, if the bundle is signed

The archive comment is the SHA-256 of all bytes before it, so that any changed byte is found.
A bundle holds no ids of training rows.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xvfl_serve.errors import BundleError

FORMAT = 1
"""Version of the bundle's contents; a bundle of another format is rejected."""
MANIFEST, CARD, SIGNATURE = "bundle.json", "card.md", "signature.bin"
SUFFIX = ".xvfl"
MAX_BYTES = 4 * 2**30
_MARK = b"sha256:"
_TRAILER = len(_MARK) + 64
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
        data: dict[str, Any] = json.loads(self.files[name])
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
    text = json.dumps({"format": FORMAT, **bundle.manifest, "files": sums}, indent=1)
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
        The file is missing, damaged, of another format, or not signed by the key.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BundleError(f"{path}: larger than {MAX_BYTES} bytes; expected a bundle")
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return unpack(data, str(path), public_key)


def unpack(data: bytes, where: str = "bundle", public_key: Path | None = None) -> Bundle:
    """Check the bytes of a bundle and return its contents; see `read_bundle`."""
    digest = hashlib.sha256(data[:-_TRAILER]).hexdigest()
    if data[-_TRAILER:] != _MARK + digest.encode():
        raise BundleError(
            f"{where}: not a bundle, or damaged: its checksum is wrong; copy or export it again"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
                raise BundleError(f"{where}: more than {MAX_BYTES} bytes unpacked")
            files = {name: archive.read(name) for name in archive.namelist()}
        text = files.pop(MANIFEST)
        manifest: dict[str, Any] = json.loads(text)
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{where}: not a bundle ({error}); export it again") from error
    _check_format(manifest, where)
    signature = files.pop(SIGNATURE, None)
    sums = {name: hashlib.sha256(each).hexdigest() for name, each in files.items()}
    if sums != manifest.get("files"):
        raise BundleError(f"{where}: its files are not those of its manifest; export it again")
    if public_key is not None:
        from xvfl_serve.signing import verify

        verify(text, signature, public_key, where)
    return Bundle(manifest, files, digest)


def _check_format(manifest: Any, where: str) -> None:
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        version = manifest.get("version", "?") if isinstance(manifest, dict) else "?"
        raise BundleError(
            f"{where}: written by xvfl {version} in bundle format {found}, this version reads "
            f"format {FORMAT}; export it again, or install the version of xvfl-serve that wrote it"
        )
