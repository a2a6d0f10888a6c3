"""An upload as one file, signed by the party and encrypted to the coordinator.

    magic · coordinator's public key · ephemeral public key · u32 length and header · chunks

Keys are X25519. The content key is HKDF-SHA256 of the shared secret; header and chunks are
encrypted by ChaCha20-Poly1305, with their number as nonce and all before them as associated data.
The header is a document that the party has signed (`xvfl.certs.signed_document`): the manifest and
both public keys. A chunk's size follows from the manifest, its content is checked by the manifest's
digest, so the signature covers the whole file. Chunks are the same as over a connection.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from torch import Tensor

from xvfl.certs.pem_files import OWNER_ONLY, write_new
from xvfl.certs.signed_document import read_document, sign_document
from xvfl.errors import RunError, WireError
from xvfl.model.run_dir import RunDir
from xvfl.system.files import atomic_write
from xvfl.upload.manifest import UploadManifest, parse_manifest
from xvfl.wire.tls import Tls

MAGIC = b"xvfl upload 1\0\0\0"
KIND = "xvfl upload 1"
KEY = "upload.key"
KEY_BYTES, TAG_BYTES = 32, 16
LENGTH = struct.Struct("<I")
MAX_HEADER_BYTES = 2**22
MAX_CHUNK_BYTES = 2**26
"""A manifest of larger chunks is rejected before a chunk is read."""


def load_upload_key(folder: RunDir, create: bool = False) -> X25519PrivateKey:
    """Load the coordinator's key that uploads by file are encrypted to."""
    path = folder / KEY
    if not path.is_file():
        if not create:
            raise RunError(
                f"{path}: no such key; this coordinator has not asked for uploads by file: run "
                "`xvfl upload held-out`"
            )
        options = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        write_new(path, X25519PrivateKey.generate().private_bytes(*options), OWNER_ONLY)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it") from error
    if not isinstance(key, X25519PrivateKey):
        raise RunError(f"{path}: expected an X25519 key; restore it")
    return key


class _Cipher:
    """Encrypts or decrypts the parts of a file, in their order."""

    def __init__(self, secret: bytes, preamble: bytes) -> None:
        derived = HKDF(hashes.SHA256(), 32, salt=preamble, info=KIND.encode()).derive(secret)
        self._aead, self._preamble, self._number = ChaCha20Poly1305(derived), preamble, 0

    def encrypt(self, data: bytes) -> bytes:
        return self._aead.encrypt(self._next(), data, self._preamble)

    def decrypt(self, data: bytes) -> bytes:
        try:
            return self._aead.decrypt(self._next(), data, self._preamble)
        except InvalidTag as error:
            raise WireError(
                "the file was changed, or damaged in transit; export and copy it again"
            ) from error

    def _next(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")


def write_upload_file(
    path: Path,
    tls: Tls,
    recipient: bytes,
    manifest: UploadManifest,
    chunks: Iterable[tuple[Tensor, Tensor]],
) -> None:
    """Write, sign and encrypt an upload chunk by chunk.

    Parameters
    ----------
    path
        The file.
    tls
        The party's certificate and key.
    recipient
        The coordinator's public key, 32 bytes.
    manifest
        What the upload contains.
    chunks
        Embeddings and row status of each chunk, in their order.
    """
    ephemeral = X25519PrivateKey.generate()
    keys = recipient + ephemeral.public_key().public_bytes_raw()
    cipher = _Cipher(ephemeral.exchange(_public_key(recipient)), MAGIC + keys)
    content = {"manifest": manifest.to_json(), "keys": keys.hex()}
    header = cipher.encrypt(sign_document(tls, KIND, content))
    try:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            file.write(MAGIC + keys + LENGTH.pack(len(header)) + header)
            for values, status in chunks:
                data = values.contiguous().numpy().tobytes() + status.numpy().tobytes()
                file.write(cipher.encrypt(data))
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error


@dataclass(frozen=True)
class UploadFile:
    """An opened file whose header was decrypted and belongs to its certificate."""

    manifest: UploadManifest
    certificate: bytes
    """The party's certificate (PEM); not checked yet."""
    _file: BinaryIO
    _cipher: _Cipher

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield embeddings and row status of each chunk; reject a file that is too long."""
        for number in range(len(self.manifest.chunks)):
            shape = self.manifest.shape(number)
            n_values = 2 * prod(shape)
            data = self._cipher.decrypt(_read(self._file, n_values + shape[0] + TAG_BYTES))
            values = np.frombuffer(data, "<f2", prod(shape)).astype(np.float16)
            status = np.frombuffer(data, np.uint8, offset=n_values).copy()
            yield torch.from_numpy(values).view(shape), torch.from_numpy(status)
        if self._file.read(1):
            raise WireError("the file has more bytes than its header states")


def read_upload_file(file: BinaryIO, key: X25519PrivateKey) -> UploadFile:
    """Read and decrypt the header of a file; sizes are checked before anything is read."""
    preamble = _read(file, len(MAGIC) + 2 * KEY_BYTES)
    if not preamble.startswith(MAGIC):
        raise WireError("not an upload; `xvfl upload export` makes one")
    keys = preamble[len(MAGIC) :]
    recipient, ephemeral = keys[:KEY_BYTES], keys[KEY_BYTES:]
    if recipient != key.public_key().public_bytes_raw():
        raise WireError(
            "it is encrypted to another coordinator's key; the party must export it with the "
            "held-out list of this coordinator"
        )
    (length,) = LENGTH.unpack(_read(file, LENGTH.size))
    if not TAG_BYTES < length <= MAX_HEADER_BYTES:
        raise WireError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {length}")
    try:
        cipher = _Cipher(key.exchange(_public_key(ephemeral)), preamble)
    except ValueError as error:
        raise WireError("its ephemeral key is invalid") from error
    document = read_document(cipher.decrypt(_read(file, length)), KIND)
    if document.get("keys", str) != keys.hex():
        raise WireError("its signature is for another file")
    manifest = parse_manifest(document.get("manifest", str))
    largest = prod(manifest.shape(0)) * 2 if manifest.chunks else 0
    if largest > MAX_CHUNK_BYTES:
        raise WireError(f"expected chunks of at most {MAX_CHUNK_BYTES} bytes, got {largest}")
    return UploadFile(manifest, document.certificate, file, cipher)


def _public_key(data: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(data)


def _read(file: BinaryIO, n_bytes: int) -> bytes:
    data = file.read(n_bytes)
    if len(data) < n_bytes:
        raise WireError("the file is truncated; copy it again")
    return data
