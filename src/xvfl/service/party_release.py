"""The release that a party has installed, and the run that it belongs to, in its state folder.

run.json       settings of the party's last run
release.json   number of the newest release or revocation that the party has accepted, and the
               newest revocation before it
bundle/        the model of the party's nets and the released head

A release assembles a model from the head, the party's encoder and its last checkpoint of the run.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

import torch

from xvfl.config import LossConfig, NetConfig, PrivacyConfig, build_saved
from xvfl.data.encoder import encoder_from_dict
from xvfl.errors import WireError, XVFLError
from xvfl.federation.endpoint import LAST_STEP
from xvfl.federation.run_settings import RunSettings, parse_run_settings
from xvfl.federation.upload.manifest import encoder_name, encoder_version
from xvfl.methods.build import build_method
from xvfl.methods.pooling import load_decision_weights
from xvfl.model.cell_filler import load_own_cells
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import BUNDLE, ENCODER, RELEASE
from xvfl.options import resolve_saved
from xvfl.primitives.task import Task, task_from_dict
from xvfl.service.checkpoints import Checkpoints
from xvfl.service.config import PartyProcessConfig
from xvfl.service.release import verify_release
from xvfl.service.uploads.party_encoder import PartyParts, load_parts
from xvfl.system.event_log import LogFunction
from xvfl.training.optimizer import strip_prefix
from xvfl.wire.messages import Done, Release

RUN = "run.json"


@dataclass(frozen=True)
class PartyFolder:
    """A party's state folder, with what a release needs besides."""

    name: str
    config: PartyProcessConfig
    folder: RunDir
    log: LogFunction = lambda event: None

    def save_run(self, settings: RunSettings, full_threshold: float) -> None:
        """Store the settings of a run that starts; one that resumes must have the same ones."""
        content = {"settings": asdict(settings), "full_threshold": full_threshold}
        record = json.loads(json.dumps(content))
        saved: dict[str, Any] = self.folder.read_json(RUN) if self.folder.has(RUN) else {}
        before = saved.get("settings", {})
        if before.get("run") == settings.run and before != record["settings"]:
            raise WireError(
                f"Begin: the settings of run {settings.run!r} changed; restore them, or choose "
                "another run name"
            )
        if saved != record:
            self.folder.write_json(RUN, record)

    def reply(self, message: Release) -> Done:
        """Install a release that the coordinator sent."""
        manifest = self.install(message)
        kind = "released" if manifest.get("revoked") is None else "release_revoked"
        self.log({"event": kind, "number": manifest["number"], "run": manifest["run"]})
        return Done(message.request_id, 0)

    def install(self, message: Release) -> dict[str, Any]:
        """Verify a release or a revocation, apply it, and return its manifest."""
        manifest = verify_release(message, self.config.release_key)
        if manifest.get("party") != self.name:
            raise WireError(
                f"Release: expected one for {self.name!r}, got one for {manifest.get('party')!r}"
            )
        if self._is_installed(message, manifest):
            return manifest
        record = {
            "number": manifest["number"],
            "run": manifest["run"],
            "created": manifest["created"],
            "revoked": manifest.get("revoked"),
            "last_revocation": self._last_revocation(),
            "digest": _digest(message),
        }
        if record["revoked"] is None:
            self._assemble(message, manifest)
            self.folder.write_json(RELEASE, record)
        else:
            # In this order: after a crash in between, the model is rejected.
            self.folder.write_json(RELEASE, record)
            shutil.rmtree(self.folder / BUNDLE, ignore_errors=True)
        return manifest

    def _is_installed(self, message: Release, manifest: Mapping[str, Any]) -> bool:
        """Return whether this release is the installed one; raise if it is older."""
        number = manifest.get("number")
        if not isinstance(number, int):
            raise WireError("Release: expected a number, got none; update the coordinator's xvfl")
        if not self.folder.has(RELEASE):
            return False
        installed = self.folder.read_json(RELEASE)
        if number > installed["number"]:
            return False
        if number == installed["number"] and _digest(message) == installed["digest"]:
            return True
        kind = "was revoked" if installed["revoked"] is not None else "is installed"
        raise WireError(
            f"Release: expected a number above {installed['number']}, which {kind}, got {number}; "
            "an older release is not accepted; ask the coordinator for a new one"
        )

    def _last_revocation(self) -> dict[str, Any] | None:
        """Return number and reason of the newest revocation before this release, for servers."""
        if not self.folder.has(RELEASE):
            return None
        before = self.folder.read_json(RELEASE)
        if before["revoked"] is None:
            last: dict[str, Any] | None = before.get("last_revocation")
            return last
        return {"number": before["number"], "reason": before["revoked"]}

    def _assemble(self, message: Release, manifest: dict[str, Any]) -> None:
        """Save the model of this party's nets and the released head."""
        try:
            upload, heads = manifest.get("encoder"), manifest.get("head_net")
            run = encoder_name(upload["version"]) if upload else manifest["run"]
            parts = self.load_parts(run, "Release")
            image = parts.encoder.layout.image is not None
            loss = build_saved(LossConfig, manifest["loss"], "release")
            net, loss = resolve_saved(parts.net, loss, parts.privacy, image=image)
            head_net = build_saved(NetConfig, heads, "release") if heads else None
            task = task_from_dict(manifest)
            widths = [net.embedding_dim] if head_net else None
            _check_size(message, head_net or net, loss, parts.privacy, task, image, widths)
            model = Model(
                {self.name: parts.encoder},
                {self.name: parts.full_threshold},
                task,
                manifest["prior"],
                net,
                loss,
                0,
                privacy=parts.privacy,
                head_net=head_net,
            )
            model.parties[self.name].load_state_dict(dict(parts.weights))
            head = dict(zip(manifest["tensors"], message.tensors, strict=True))
            model.method.heads.load_state_dict(head)
            model.cells = parts.cells
            model.temperatures = manifest["temperatures"]
            load_decision_weights(model.method, manifest.get("decision_weights", {}))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, XVFLError):
                raise
            raise WireError(f"Release: it does not fit this party ({error})") from error
        extra = {
            "bundle": self.name,
            "run": manifest["run"],
            "release": manifest["number"],
            "id_column": {self.name: self.config.id_column},
        }
        model.save(RunDir(self.folder / BUNDLE), extra)

    def load_parts(self, run: str, request: str) -> PartyParts:
        """Load what this party contributes to a run, or to a model of a version of its encoder.

        `request` is the message that needs it. A run must be the last one of this party; the
        weights are those of its last checkpoint.
        """
        version = encoder_version(run)
        if version is not None:
            return load_parts(self.folder, version)
        if not self.folder.has(RUN):
            raise WireError(f"{request}: expected a run first; this party has taken part in none")
        saved = self.folder.read_json(RUN)
        for removed in ("warm", "payload"):  # Settings of version 0.3.0.
            saved["settings"].pop(removed, None)
        settings = parse_run_settings(json.dumps(saved["settings"]))
        if settings.run != run:
            raise WireError(
                f"{request}: expected one of run {settings.run!r}, this party's last, got {run!r}"
            )
        checkpoint = Checkpoints(self.folder).newest(run, LAST_STEP)
        if checkpoint is None:
            raise WireError(f"this party has no checkpoint of run {run!r}; train again")
        return PartyParts(
            encoder_from_dict(self.folder.read_json(ENCODER)),
            settings.method,
            settings.net,
            settings.privacy,
            float(saved["full_threshold"]),
            strip_prefix(checkpoint[1], f"net/{self.name}/"),
            load_own_cells(self.folder),
        )


def _check_size(
    message: Release,
    net: NetConfig,
    loss: LossConfig,
    privacy: PrivacyConfig,
    task: Task,
    image: bool,
    widths: Sequence[int] | None,
) -> None:
    """Reject a head with more weights than the message has, before there is memory for them."""
    single = replace(net, heads=1, members=1)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        method = build_method(1, task, image, single, loss, [0], privacy, widths)
    count = net.heads * net.members * sum(each.numel() for each in method.heads.parameters())
    sent = sum(each.numel() for each in message.tensors)
    if count > sent:
        raise WireError(f"Release: its head has {count} weights, and it carries {sent}")


def _digest(message: Release) -> str:
    return blake2b(message.signature, digest_size=16).hexdigest()
