"""The coordinator's key pair that signs releases (Ed25519).

NAME.release.key   for the coordinator NAME only
NAME.release.pub   for every party, with ca.crt
"""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from xvfl.certs import pem_files
from xvfl.certs.pem_files import OWNER_ONLY, WORLD_READABLE
from xvfl.errors import RunError

PRIVATE_KEY, PUBLIC_KEY = "release.key", "release.pub"


def create_release_key(path: Path) -> Ed25519PrivateKey:
    """Create a private key in a file that must not exist yet."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem_files.write_new(path, pem, OWNER_ONLY)
    return key


def release_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a coordinator's private and public key."""
    return folder / f"{name}.{PRIVATE_KEY}", folder / f"{name}.{PUBLIC_KEY}"


def create_release_pair(folder: Path, name: str) -> list[Path]:
    """Create the key pair of a coordinator, unless it exists; return the files written."""
    private, public = release_pair(folder, name)
    before = [each for each in (private, public) if each.exists()]
    key = read_private_key(private) if private.is_file() else None
    if key is None and not public.is_file():
        key = create_release_key(private)
    if key is not None and not public.is_file():
        pem_files.write_new(public, public_pem(key), WORLD_READABLE)
    return [each for each in (private, public) if each.exists() and each not in before]


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: expected an Ed25519 private key in PEM format ({error}); restore it, or "
            "create a new one and send its public half to the parties"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RunError(f"{path}: expected an Ed25519 private key, got {type(key).__name__}")
    return key


def public_pem(key: Ed25519PrivateKey) -> bytes:
    """Return the public half of a key as PEM."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
