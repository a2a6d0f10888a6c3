"""The release of a head (D4): signed by the coordinator, checked and put together by the party.

The coordinator's key never leaves its folder; its public half (release.pub) goes to the parties by
another way than the wire, and their configurations name it.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from xvfl.config import LossConfig, build
from xvfl.data.sources import Encoder
from xvfl.errors import ConfigError, RunError, WireError, XVFLError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.run_settings import RunSettings
from xvfl.methods.base import Method
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import BUNDLE
from xvfl.wire import codec
from xvfl.wire.messages import Release

if TYPE_CHECKING:
    from xvfl.service.party_work import Own

KEY, PUBLIC = "release.key", "release.pub"
ALONE = frozenset(("xvfl+", "xvfl", "standalone", "laser", "laser+mask"))
"""Methods whose head decides from one party's embedding."""


def check_releasable(loss: LossConfig, parties: Sequence[str]) -> None:
    """Refuse to promise a head that no party could use alone."""
    concat = loss.method in ("xvfl", "xvfl+") and loss.aggregation == "concat"
    if parties and (loss.method not in ALONE or concat):
        raise ConfigError(
            f"release: {loss.method} decides from all parties together, so its head is of no use "
            "to one; leave `release` empty, or train xvfl+"
        )


def signing_key(folder: RunDir) -> Ed25519PrivateKey:
    """Read the coordinator's key, or make it on first use."""
    path = folder / KEY
    if path.is_file():
        key = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise RunError(f"{path}: expected an Ed25519 key")
        return key
    made = Ed25519PrivateKey.generate()
    pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    public = made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    folder.write_bytes(PUBLIC, public)
    return made


def signed(
    key: Ed25519PrivateKey, turn: int, method: Method, place: int, about: dict[str, Any]
) -> Release:
    """Sign the head of the party at a place, and what prediction needs besides."""
    state = method.select_parties([place]).heads.state_dict()
    manifest = json.dumps({**about, "tensors": list(state)})
    tensors = tuple(value.detach().cpu() for value in state.values())
    return Release(turn, manifest, tensors, key.sign(_signed_bytes(manifest, tensors)))


def take_release(
    message: Release,
    own: "Own",
    encoder: Encoder,
    settings: RunSettings,
    worker: PartyWorker,
    full_threshold: float,
) -> RunDir:
    """Check a released head, and put a bundle together that predicts alone."""
    said = _verified(message, own.release_key)
    if said.get("party") != own.name:
        raise WireError(f"Release: expected the head of {own.name!r}, got {said.get('party')!r}")
    try:
        loss = build(LossConfig, said["loss"], "release")
        model = Model(
            {own.name: encoder},
            {own.name: full_threshold},
            said["classes"],
            said["prior"],
            settings.net,
            loss,
            settings.seed,
        )
        model.parties[own.name].load_state_dict(_on_cpu(worker.net.state_dict()))
        head = dict(zip(said["tensors"], message.tensors, strict=True))
        model.method.heads.load_state_dict(head)
        model.temperatures = said["temperatures"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, XVFLError):
            raise
        raise WireError(f"Release: it does not fit this party ({error})") from error
    folder = RunDir(own.folder / BUNDLE)
    more = {"bundle": own.name, "run": said["run"], "id_column": {own.name: own.id_column}}
    model.save(folder, more)
    return folder


def _verified(message: Release, key: Path | None) -> dict[str, Any]:
    if key is None:
        raise WireError(
            "Release: this party has no key to check it with; get the coordinator's release.pub "
            "and name it as `release_key`"
        )
    try:
        public = load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"release_key: {key} cannot be read ({error})") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ConfigError(f"release_key: {key}: expected an Ed25519 public key")
    try:
        public.verify(message.signature, _signed_bytes(message.manifest, message.tensors))
    except InvalidSignature as error:
        raise WireError(
            "Release: its signature is not the coordinator's; the head was changed or is another's"
        ) from error
    said: dict[str, Any] = json.loads(message.manifest)
    return said


def _signed_bytes(manifest: str, tensors: tuple[torch.Tensor, ...]) -> bytes:
    return codec.encode(Release(0, manifest, tensors, b""))


def _on_cpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu() for name, value in state.items()}
