"""The coordinator's result of a finished run: the heads, saved and signed for named parties."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from xvfl.config import LossConfig, NetConfig, build_saved
from xvfl.errors import RunError
from xvfl.federation.upload.manifest import encoder_name
from xvfl.methods import method_spec
from xvfl.methods.base import Method, Mode, mode_key, require_mode
from xvfl.methods.build import build_method
from xvfl.methods.pooling import decision_weights, load_decision_weights
from xvfl.methods.xvfl import DecisionWeights
from xvfl.model.prediction import completing_modes
from xvfl.model.registry import name_head
from xvfl.model.run_dir import FORMAT, MANIFEST, MODEL, RunDir
from xvfl.options import resolve_privacy, resolve_saved
from xvfl.primitives.task import Task, task_from_dict
from xvfl.service.config import CoordinatorConfig
from xvfl.service.head_store import HeadStore
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
    net: NetConfig
    """With resolved sizes."""
    names: tuple[str, ...]
    """The parties, in the order of the method's adapters."""
    encoders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By party, the upload that the heads were trained on; empty with interactive training."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """What answers name; see `name_head`."""

    @property
    def runs(self) -> dict[str, str]:
        """For each party, the run or the version of its encoder that the heads belong to."""
        encoders = self.encoders
        return {
            n: encoder_name(encoders[n]["version"]) if encoders else self.run for n in self.names
        }

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of an embedding in a message of each party."""
        if self.encoders:
            return tuple(int(self.encoders[name]["width"]) for name in self.names)
        branches = method_spec(self.loss.method).branches
        return (self.net.members * self.net.embedding_dim * branches,) * len(self.names)

    def completes(self, mode: Mode, party: str = "") -> bool:
        """Return whether the predictions in a mode use completed features."""
        return mode in completing_modes(self.method, party)

    def temperature(self, mode: Mode, party: str = "") -> float:
        """Return the temperature of the predictions in a mode."""
        return self.temperatures.get(mode_key(mode, party), 1.0)

    def save(self, folder: RunDir, image: bool, seed: int, outcome: Mapping[str, Any]) -> None:
        """Write the weights and the manifest, all or nothing; `outcome` says who took part."""
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "side": "coordinator",
            "parties": list(self.names),
            "net": asdict(self.net),
            "image": image,
            "random_state": seed,
            "encoders": self.encoders,
            **outcome,
            **self._manifest(self.temperatures, decision_weights(self.method)),
        }
        with folder.transaction():
            folder.save_tensors(MODEL, self.method.heads.state_dict(), {})
            folder.write_json(MANIFEST, manifest)

    def release(self, store: ReleaseStore, parties: Sequence[str]) -> dict[str, ReleaseRecord]:
        """Sign the heads of the named parties."""
        return {
            name: store.release(name, self.party_manifest(name), self.party_head(index))
            for index, name in enumerate(self.names)
            if name in parties
        }

    def party_head(self, index: int) -> dict[str, Tensor]:
        """Return the weights of the head that the party at an index needs."""
        return dict(self.method.select_parties([index]).heads.state_dict())

    def party_manifest(self, name: str) -> dict[str, Any]:
        """Return what a party needs besides the head to predict alone or assisted."""
        keys, weights = [mode_key(mode, name) for mode in OWN_MODES], decision_weights(self.method)
        temperatures = {mode_key(mode, name): self.temperature(mode, name) for mode in OWN_MODES}
        own_weights = {key: each for key, each in weights.items() if key in keys}
        upload: dict[str, Any] = {}
        if self.encoders:
            upload = {"encoder": self.encoders[name], "head_net": asdict(self.net)}
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


def load_trained_heads(folder: RunDir, config: CoordinatorConfig) -> TrainedHeads:
    """Load the heads of a finished run."""
    if not folder.has(MANIFEST):
        raise RunError(f"{folder.path}: no finished run; train with `xvfl coordinator` first")
    privacy = resolve_privacy(config.privacy, federated=True)
    manifest = folder.manifest()
    names, task = tuple(manifest["parties"]), task_from_dict(manifest)
    loss, net = (
        build_saved(kind, manifest[key], str(folder.path))
        for kind, key in ((LossConfig, "loss"), (NetConfig, "net"))
    )
    image, encoders = manifest["image"], manifest.get("encoders", {})
    net, loss = resolve_saved(net, loss, privacy, image=image)
    widths = [int(encoders[name]["width"]) for name in names] if encoders else None
    with torch.random.fork_rng(devices=[]):
        method = build_method(len(names), task, image, net, loss, [0], privacy, widths)
    method.heads.load_state_dict(folder.load_tensors(MODEL)[0])
    load_decision_weights(method, manifest["decision_weights"])
    run, prior, temperatures = (manifest[key] for key in ("run", "prior", "temperatures"))
    return TrainedHeads(run, method, task, prior, temperatures, loss, net, names, encoders)


def load_federated_model(config: CoordinatorConfig, accepted: Sequence[str] = ()) -> TrainedHeads:
    """Load the current head from the coordinator's state folder.

    Its parties are those of the configuration, or some of those that a process accepts.
    """
    head = HeadStore(RunDir(config.state_dir)).current
    heads, manifest = load_trained_heads(head, config), head.manifest()
    trained = {*heads.names, *manifest.get("left_out", [])}
    if trained != set(config.all_parties) and not trained <= {*config.all_parties, *accepted}:
        raise RunError(
            f"{head.path}: the run was trained with the parties {list(heads.names)}, the "
            f"configuration has {list(config.all_parties)}"
        )
    if manifest.get("differential_privacy"):
        raise RunError(
            f"{head.path}: a run with differential privacy cannot predict as a federation, "
            "because the embeddings of new rows would not be accounted for; release the heads and "
            "predict in mode local"
        )
    require_mode(heads.method, "collaborative", heads.loss.method)
    heads.method.heads.eval()
    return replace(heads, named=name_head(head))
