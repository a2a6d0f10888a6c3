"""Read and write PEM files; keys are readable by their owner alone, and nothing is overwritten."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from xvfl.errors import CertificateError

OPEN, OWNER = 0o644, 0o600
"""Who may read a certificate, and who a key."""
READ = TypeVar("READ")


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Write a key as PEM, without a password: a service must start alone."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def pem(made: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """Write a certificate or a revocation list as PEM."""
    return made.public_bytes(serialization.Encoding.PEM)


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
    except FileExistsError as error:
        raise CertificateError(
            f"{path}: exists already; keep it, or move it away and run this again"
        ) from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be written ({error.strerror})") from error


def replace(path: Path, data: bytes) -> None:
    """Write a file anew, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_new(temporary, data, OPEN)
    try:
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CertificateError(f"{path}: cannot be written ({error.strerror})") from error


def read(path: Path, parse: Callable[[bytes], READ], what: str) -> READ:
    """Read a file of an authority, or say what is wrong with it."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError as error:
        raise CertificateError(
            f"{path}: expected {what}, but there is no such file; `xvfl certs init` makes one"
        ) from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{path}: expected {what} in PEM form ({error})") from error


def load_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a private key as this authority writes it."""
    key = serialization.load_pem_private_key(data, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")
    return key
