"""Read and write PEM files. Keys are readable by their owner only.

New keys and certificates never overwrite a file; only the revocation list and the list of issued
certificates are replaced.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from xvfl.errors import CertificateError
from xvfl.system.files import atomic_write

WORLD_READABLE, OWNER_ONLY = 0o644, 0o600
"""Modes of a certificate and of a key."""
T = TypeVar("T")


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a key as PEM, without a password: a service must start unattended."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def to_pem(document: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """Encode a certificate or a revocation list as PEM."""
    return document.public_bytes(serialization.Encoding.PEM)


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
    except FileExistsError as error:
        raise already_exists(path) from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be written ({error.strerror})") from error


def replace(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise CertificateError(f"{path}: cannot be written ({error.strerror})") from error


def read_limited(path: Path, most: int, what: str) -> bytes:
    """Read a file from others; reject one of more than `most` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > most:
        raise CertificateError(f"{path}: expected {what} of at most {most} bytes")
    return data


def read(path: Path, parse: Callable[[bytes], T], what: str, hint: str = "") -> T:
    """Read and parse a file; errors name the content (`what`) and, if it is missing, add `hint`."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError as error:
        raise CertificateError(
            f"{path}: expected {what}, but the file does not exist{hint}"
        ) from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{path}: expected {what} in PEM format ({error})") from error


def parse_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse a private key."""
    key = serialization.load_pem_private_key(data, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")
    return key


def check_absent(*paths: Path) -> None:
    """Raise if one of these files exists."""
    for path in paths:
        if path.exists():
            raise already_exists(path)


def already_exists(path: Path) -> CertificateError:
    """Return the error for a file that would be overwritten."""
    return CertificateError(f"{path}: already exists; move it away to create a new one")
