"""Signed releases: the coordinator signs a head for a party, the party verifies it.

The signing key never leaves the coordinator's machine. Its public half reaches the parties with
their certificates, and their configurations name it as `release_key`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from torch import Tensor

from xvfl.certs.release_key import (
    PRIVATE_KEY,
    PUBLIC_KEY,
    create_release_key,
    public_pem,
    read_private_key,
)
from xvfl.config import LossConfig
from xvfl.errors import ConfigError, WireError
from xvfl.model.run_dir import RunDir
from xvfl.wire import codec
from xvfl.wire.messages import Receipt, Release

SINGLE_PARTY_METHODS = frozenset(("xvfl+", "xvfl", "standalone", "laser", "laser+mask"))
"""Methods whose head predicts from the embedding of one party."""


def check_releasable(loss: LossConfig, parties: Sequence[str]) -> None:
    """Reject a configuration that releases a head which no party can use alone."""
    concat = loss.method in ("xvfl", "xvfl+") and loss.aggregation == "concat"
    if parties and (loss.method not in SINGLE_PARTY_METHODS or concat):
        raise ConfigError(
            f"release_to: the head of {loss.method} needs the embeddings of all parties, so no "
            "party can use it alone; leave `release_to` empty, or train xvfl+"
        )


def load_signing_key(folder: RunDir, signing_key: str | None = None) -> Ed25519PrivateKey:
    """Load the coordinator's signing key, and write its public half into the state folder.

    Without `signing_key`, the key is release.key in the state folder, created if it is missing.
    """
    path = folder / PRIVATE_KEY if signing_key is None else Path(signing_key)
    if signing_key is None and not path.is_file():
        create_release_key(path)
    key = read_private_key(path)
    public = public_pem(key)
    if not folder.has(PUBLIC_KEY) or (folder / PUBLIC_KEY).read_bytes() != public:
        folder.write_bytes(PUBLIC_KEY, public)
    return key


def sign_release(
    key: Ed25519PrivateKey, manifest: Mapping[str, Any], head: Mapping[str, Tensor]
) -> Release:
    """Sign a manifest and the weights of a head; a revocation has no weights."""
    text = json.dumps({**manifest, "tensors": list(head)})
    message = Release(0, text, tuple(value.detach().cpu() for value in head.values()), b"")
    return replace(message, signature=key.sign(codec.encode(message)))


def verify_release(message: Release | Receipt, public_key: Path | str | None) -> dict[str, Any]:
    """Check the signature of a release or a receipt, and return its manifest."""
    what = type(message).__name__
    if public_key is None:
        raise WireError(
            f"{what}: this party has no key to verify it; get the coordinator's public release key "
            "and set `release_key` to its path"
        )
    try:
        public = load_pem_public_key(Path(public_key).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"release_key: {public_key} cannot be read ({error})") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ConfigError(f"release_key: {public_key}: expected an Ed25519 public key")
    try:
        unsigned = replace(message, request_id=0, signature=b"")
        public.verify(message.signature, codec.encode(unsigned))
    except InvalidSignature as error:
        raise WireError(
            f"{what}: the signature is invalid; it was modified, or `release_key` belongs to "
            "another coordinator"
        ) from error
    manifest: dict[str, Any] = json.loads(message.manifest)
    return manifest
