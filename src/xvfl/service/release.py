"""Release of a head to a party: the coordinator signs it, the party verifies and installs it.

The signing key never leaves the coordinator's state folder. Its public half, release.pub, reaches
the parties outside the federation's connections, and their configurations name it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from xvfl.certs.pem_files import OWNER_ONLY, write_new
from xvfl.config import LossConfig, build
from xvfl.data.sources import Encoder
from xvfl.errors import ConfigError, RunError, WireError, XVFLError
from xvfl.federation.run_settings import RunSettings
from xvfl.methods.base import Method
from xvfl.methods.pooling import load_decision_weights
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import BUNDLE
from xvfl.primitives.task import task_from_dict
from xvfl.service.party_inputs import PartyInputs
from xvfl.wire import codec
from xvfl.wire.messages import Release

PRIVATE_KEY, PUBLIC_KEY = "release.key", "release.pub"
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


def load_signing_key(folder: RunDir) -> Ed25519PrivateKey:
    """Load the coordinator's signing key; generate the missing release.key and release.pub."""
    path = folder / PRIVATE_KEY
    if path.is_file():
        key = _read_signing_key(path)
    else:
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_new(path, pem, OWNER_ONLY)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if not folder.has(PUBLIC_KEY) or (folder / PUBLIC_KEY).read_bytes() != public:
        folder.write_bytes(PUBLIC_KEY, public)
    return key


def sign_head(
    key: Ed25519PrivateKey, turn: int, method: Method, index: int, manifest: dict[str, Any]
) -> Release:
    """Build the signed release of the head for the party at an index."""
    state = method.select_parties([index]).heads.state_dict()
    text = json.dumps({**manifest, "tensors": list(state)})
    tensors = tuple(value.detach().cpu() for value in state.values())
    return Release(turn, text, tensors, key.sign(_signed_bytes(text, tensors)))


def install_release(
    message: Release,
    inputs: PartyInputs,
    encoder: Encoder,
    settings: RunSettings,
    net: torch.nn.Module,
    full_threshold: float,
) -> RunDir:
    """Verify a released head, and save a model that predicts without the coordinator."""
    name, manifest = inputs.name, verify_release(message, inputs.release_key)
    if manifest.get("party") != name:
        raise WireError(f"Release: expected the head of {name!r}, got {manifest.get('party')!r}")
    try:
        model = Model(
            {name: encoder},
            {name: full_threshold},
            task_from_dict(manifest),
            manifest["prior"],
            settings.net,
            build(LossConfig, manifest["loss"], "release"),
            0,
            privacy=settings.privacy,
        )
        state = {key: value.detach().cpu() for key, value in net.state_dict().items()}
        model.parties[name].load_state_dict(state)
        head = dict(zip(manifest["tensors"], message.tensors, strict=True))
        model.method.heads.load_state_dict(head)
        model.temperatures = manifest["temperatures"]
        load_decision_weights(model.method, manifest.get("decision_weights", {}))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, XVFLError):
            raise
        raise WireError(f"Release: it does not fit this party ({error})") from error
    bundle = RunDir(inputs.folder / BUNDLE)
    extra = {"bundle": name, "run": manifest["run"], "id_column": {name: inputs.id_column}}
    model.save(bundle, extra)
    return bundle


def verify_release(message: Release, public_key: Path | None) -> dict[str, Any]:
    """Check the signature of a release and return its manifest."""
    if public_key is None:
        raise WireError(
            "Release: this party has no key to verify it; get the coordinator's release.pub and "
            "set `release_key` to its path"
        )
    try:
        public = load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"release_key: {public_key} cannot be read ({error})") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ConfigError(f"release_key: {public_key}: expected an Ed25519 public key")
    try:
        public.verify(message.signature, _signed_bytes(message.manifest, message.tensors))
    except InvalidSignature as error:
        raise WireError(
            "Release: the signature is invalid; the head was modified, or `release_key` belongs "
            "to another coordinator"
        ) from error
    manifest: dict[str, Any] = json.loads(message.manifest)
    return manifest


def _read_signing_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: expected an Ed25519 private key in PEM format ({error}); restore it, or "
            "delete it to generate a new one and send the new release.pub to the parties"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RunError(f"{path}: expected an Ed25519 private key, got {type(key).__name__}")
    return key


def _signed_bytes(manifest: str, tensors: tuple[torch.Tensor, ...]) -> bytes:
    return codec.encode(Release(0, manifest, tensors, b""))
