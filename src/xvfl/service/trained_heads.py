"""The coordinator's result of a finished run: the heads, saved and signed for named parties."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from xvfl.config import LossConfig, NetConfig, PrivacyConfig, build
from xvfl.errors import RunError
from xvfl.federation.build import build_method
from xvfl.methods.base import Method, Mode, mode_key
from xvfl.methods.pooling import decision_weights, load_decision_weights
from xvfl.methods.xvfl import DecisionWeights
from xvfl.model.run_dir import FORMAT, MANIFEST, MODEL, RunDir
from xvfl.options import resolve_saved
from xvfl.primitives.task import Task, task_from_dict
from xvfl.service.release_store import ReleaseRecord, ReleaseStore
from xvfl.training.calibration import Temperatures
from xvfl.version import VERSION

OWN_MODES: tuple[Mode, ...] = ("local", "assisted")
"""Modes in which a party predicts with a released head."""


@dataclass(frozen=True)
class TrainedHeads:
    """Trained heads, and what prediction needs besides."""

    run: str
    method: Method
    task: Task
    prior: Sequence[float]
    temperatures: Temperatures
    loss: LossConfig
    encoders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By party, the upload that the heads were trained on; empty with interactive training."""
    net: NetConfig | None = None
    """Sizes of heads on uploads."""

    def save(
        self,
        folder: RunDir,
        names: Sequence[str],
        net: NetConfig,
        image: bool,
        seed: int,
        outcome: Mapping[str, Any],
    ) -> None:
        """Write the weights and the manifest, all or nothing; `outcome` says who took part."""
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "side": "coordinator",
            "parties": list(names),
            "net": asdict(net),
            "image": image,
            "random_state": seed,
            "encoders": self.encoders,
            **outcome,
            **self._manifest(self.temperatures, decision_weights(self.method)),
        }
        with folder.transaction():
            folder.save_tensors(MODEL, self.method.heads.state_dict(), {})
            folder.write_json(MANIFEST, manifest)

    def release(
        self, store: ReleaseStore, names: Sequence[str], parties: Sequence[str]
    ) -> dict[str, ReleaseRecord]:
        """Sign the heads of the named parties; `names` are all parties of the run."""
        return {
            name: store.release(name, self.party_manifest(name), self.party_head(index))
            for index, name in enumerate(names)
            if name in parties
        }

    def party_head(self, index: int) -> dict[str, Tensor]:
        """Return the weights of the head that the party at an index needs."""
        return dict(self.method.select_parties([index]).heads.state_dict())

    def party_manifest(self, name: str) -> dict[str, Any]:
        """Return what a party needs besides the head to predict alone or assisted."""
        keys, weights = [mode_key(mode, name) for mode in OWN_MODES], decision_weights(self.method)
        temperatures = {key: self.temperatures.get(key, 1.0) for key in keys}
        own_weights = {key: each for key, each in weights.items() if key in keys}
        upload = {"encoder": self.encoders[name], "head_net": asdict(self.net)} if self.net else {}
        return {**self._manifest(temperatures, own_weights), "party": name, **upload}

    def _manifest(
        self, temperatures: Temperatures, decision_weights: DecisionWeights
    ) -> dict[str, Any]:
        return {
            "run": self.run,
            **self.task.to_dict(),
            "prior": list(self.prior),
            "temperatures": temperatures,
            "decision_weights": decision_weights,
            "loss": asdict(self.loss),
        }


def load_trained_heads(folder: RunDir, privacy: PrivacyConfig) -> tuple[TrainedHeads, list[str]]:
    """Load the heads of a finished run and the names of its parties."""
    if not folder.has(MANIFEST):
        raise RunError(f"{folder.path}: no finished run; train with `xvfl coordinator` first")
    manifest = folder.manifest()
    names, task = list(manifest["parties"]), task_from_dict(manifest)
    loss, net = (
        build(kind, manifest[key], str(folder.path))
        for kind, key in ((LossConfig, "loss"), (NetConfig, "net"))
    )
    net, loss = resolve_saved(net, loss, privacy, image=manifest["image"])
    encoders = manifest.get("encoders", {})
    with torch.random.fork_rng(devices=[]):
        method = build_method(
            len(names),
            task.n_outputs,
            manifest["image"],
            net,
            loss,
            [0],
            None,
            privacy,
            task,
            [int(encoders[name]["width"]) for name in names] if encoders else None,
        )
    method.heads.load_state_dict(folder.load_tensors(MODEL)[0])
    load_decision_weights(method, manifest["decision_weights"])
    run, prior, temperatures = (manifest[key] for key in ("run", "prior", "temperatures"))
    sizes = net if encoders else None
    return TrainedHeads(run, method, task, prior, temperatures, loss, encoders, sizes), names
