"""The coordinator's result of a finished run: the heads, saved and released to named parties."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from xvfl.config import LossConfig, NetConfig
from xvfl.errors import PartyError
from xvfl.federation.calibration import Temperatures
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.remote_party import request_all
from xvfl.methods.base import Method, mode_key
from xvfl.methods.pooling import decision_weights
from xvfl.methods.xvfl import DecisionWeights
from xvfl.model.run_dir import FORMAT, MANIFEST, MODEL, RunDir
from xvfl.nets import AdaptedHead
from xvfl.primitives.task import Task
from xvfl.service.log import LogFunction
from xvfl.service.release import load_signing_key, sign_head
from xvfl.training.optimizer import strip_prefix
from xvfl.version import VERSION
from xvfl.wire.messages import Done


@dataclass(frozen=True)
class TrainedHeads:
    """Trained heads, and what prediction needs besides."""

    run: str
    method: Method
    task: Task
    prior: Sequence[float]
    temperatures: Temperatures
    loss: LossConfig

    def save(
        self,
        folder: RunDir,
        names: Sequence[str],
        net: NetConfig,
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
            "random_state": seed,
            **outcome,
            **self._manifest(self.temperatures, decision_weights(self.method)),
        }
        with folder.transaction():
            folder.save_tensors(MODEL, self.method.heads.state_dict(), {})
            folder.write_json(MANIFEST, manifest)

    def release(
        self,
        folder: RunDir,
        federation: ElasticFederation,
        parties: Sequence[str],
        log: LogFunction,
    ) -> None:
        """Send the signed head to the named parties."""
        signing_key = load_signing_key(folder)
        for index, name in enumerate(federation.names):
            if name not in parties:
                continue
            member = federation.members[index]
            federation.counters.request_id += 1
            turn = federation.counters.request_id
            manifest = self.party_manifest(name)
            message = sign_head(signing_key, turn, self.method, index, manifest)
            try:
                if not member.present:
                    raise PartyError("it is offline")
                request_all([member.party], [message], Done)
                log({"event": "released", "party": name})
            except (PartyError, ValueError) as error:
                log({"event": "release_failed", "party": name, "reason": str(error)})

    def party_manifest(self, name: str) -> dict[str, Any]:
        """Return what a party needs besides the head to predict alone."""
        local, weights = mode_key("local", name), decision_weights(self.method)
        temperatures = {local: self.temperatures.get(local, 1.0)}
        own_weights = {key: each for key, each in weights.items() if key == local}
        return {**self._manifest(temperatures, own_weights), "party": name}

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


def place_adapters(
    heads: nn.Module, saved: Mapping[str, Tensor], earlier: Sequence[str], names: Sequence[str]
) -> dict[str, Tensor]:
    """Return saved weights of heads, with the adapters of the parties of an `earlier` run by name.

    A party that was not in it keeps the adapter that it has in `heads`.
    """
    if not isinstance(heads, AdaptedHead):
        return dict(saved)
    placed = {key: value for key, value in saved.items() if not key.startswith("adapters.")}
    for place, (name, adapter) in enumerate(zip(names, heads.adapters, strict=True)):
        weights: Mapping[str, Tensor] = adapter.state_dict()
        if name in earlier:
            weights = strip_prefix(saved, f"adapters.{list(earlier).index(name)}.")
        placed |= {f"adapters.{place}.{key}": value for key, value in weights.items()}
    return placed
