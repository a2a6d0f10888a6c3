"""A file of several parts, signed by its writer and encrypted to its reader.

    magic · reader's public key · ephemeral public key · u32 length and header · parts

Keys are X25519. The content key is HKDF-SHA256 of the shared secret; header and parts are encrypted
by ChaCha20-Poly1305, with their number as nonce and the first three fields as associated data. The
header is a document that the writer has signed (`signed_document`), with both public keys. It must
describe the parts, with digests: then the signature covers the whole file.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

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

from xvfl.certs.pem_files import OWNER_ONLY, write_new
from xvfl.certs.signed_document import read_document, sign_document
from xvfl.errors import RunError, WireError
from xvfl.system.files import atomic_write
from xvfl.wire.tls import Tls

MAGIC = b"xvfl sealed 1\0\0\0"
KEY_BYTES, TAG_BYTES = 32, 16
LENGTH = struct.Struct("<I")
MAX_HEADER_BYTES = 2**22


def create_sealing_key(path: Path) -> None:
    """Create the private key of a reader in a file that must not exist yet."""
    options = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    write_new(path, X25519PrivateKey.generate().private_bytes(*options), OWNER_ONLY)


def read_sealing_key(path: Path) -> X25519PrivateKey:
    """Read the private key of a reader."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it") from error
    if not isinstance(key, X25519PrivateKey):
        raise RunError(f"{path}: expected an X25519 key; restore it")
    return key


class _Cipher:
    """Encrypts or decrypts the parts of a file, in their order."""

    def __init__(self, own: X25519PrivateKey, other: bytes, start: bytes) -> None:
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise WireError("its public key is invalid") from error
        key = HKDF(hashes.SHA256(), 32, salt=start, info=MAGIC).derive(secret)
        self._aead, self._start, self._number = ChaCha20Poly1305(key), start, 0

    def encrypt(self, data: bytes) -> bytes:
        return self._aead.encrypt(self._next(), data, self._start)

    def decrypt(self, data: bytes) -> bytes:
        try:
            return self._aead.decrypt(self._next(), data, self._start)
        except InvalidTag as error:
            raise WireError(
                "the file was changed, or damaged in transit; export and copy it again"
            ) from error

    def _next(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")


def write_sealed(
    path: Path,
    tls: Tls,
    reader: bytes,
    kind: str,
    content: Mapping[str, Any],
    parts: Iterable[bytes],
) -> None:
    """Write, sign and encrypt a file part by part.

    Parameters
    ----------
    path
        The file.
    tls
        Certificate and key of the writer.
    reader
        Public key of the reader, 32 bytes.
    kind, content
        Kind and content of the header.
    parts
        The parts, in their order.
    """
    ephemeral = X25519PrivateKey.generate()
    keys = reader + ephemeral.public_key().public_bytes_raw()
    cipher = _Cipher(ephemeral, reader, MAGIC + keys)
    header = cipher.encrypt(sign_document(tls, kind, {**content, "keys": keys.hex()}))
    try:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            file.write(MAGIC + keys + LENGTH.pack(len(header)) + header)
            for part in parts:
                file.write(cipher.encrypt(part))
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error


class SealedFile:
    """A file that is read part by part; sizes are checked before anything is read."""

    def __init__(
        self,
        file: BinaryIO,
        key: X25519PrivateKey,
        kind: str,
        check: Callable[[bytes], object],
    ) -> None:
        """Read the header; `check` raises if the certificate of its writer is not trusted."""
        self._file = file
        start = self._read(len(MAGIC) + 2 * KEY_BYTES)
        if not start.startswith(MAGIC):
            raise WireError("not a sealed file of this version of xvfl")
        keys = start[len(MAGIC) :]
        if keys[:KEY_BYTES] != key.public_key().public_bytes_raw():
            raise WireError("it is encrypted to another key: it is for another receiver")
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        if not TAG_BYTES < length <= MAX_HEADER_BYTES:
            raise WireError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {length}")
        self._cipher = _Cipher(key, keys[KEY_BYTES:], start)
        self.document = read_document(self._cipher.decrypt(self._read(length)), kind, check)
        """The header."""
        if self.document.get("keys", str) != keys.hex():
            raise WireError("its signature is for another file")

    def part(self, n_bytes: int) -> bytes:
        """Read the next part, of a known size."""
        return self._cipher.decrypt(self._read(n_bytes + TAG_BYTES))

    def end(self) -> None:
        """Reject a file that has more bytes."""
        if self._file.read(1):
            raise WireError("the file has more bytes than its header states")

    def _read(self, n_bytes: int) -> bytes:
        data = self._file.read(n_bytes)
        if len(data) < n_bytes:
            raise WireError("the file is truncated; copy it again")
        return data
