"""Ed25519 signatures of bundles. Needs the package cryptography: `xvfl-serve[signature]`."""

from pathlib import Path

from xvfl_serve.errors import BundleError, ServeError

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_pem_public_key,
    )
except ModuleNotFoundError as error:
    raise ServeError(
        "signatures need the package cryptography: pip install 'xvfl-serve[signature]'"
    ) from error


def sign(text: bytes, private_key: Path) -> bytes:
    """Sign a manifest with an Ed25519 private key."""
    try:
        key = load_pem_private_key(private_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ServeError(f"{private_key}: cannot be read as a private key ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ServeError(f"{private_key}: expected an Ed25519 private key (PEM)")
    return key.sign(text)


def verify(text: bytes, signature: bytes | None, public_key: Path, where: str) -> None:
    """Raise `BundleError` unless the key signed the manifest."""
    try:
        key = load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise ServeError(f"{public_key}: cannot be read as a public key ({error})") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ServeError(f"{public_key}: expected an Ed25519 public key (PEM)")
    if signature is None:
        raise BundleError(f"{where}: expected a signed bundle; export it with --sign")
    try:
        key.verify(signature, text)
    except InvalidSignature as error:
        raise BundleError(
            f"{where}: not signed by {public_key}; get the bundle from its owner again, or the "
            "key that belongs to it"
        ) from error
