"""The part of a trained model at the coordinator: heads, calibration, sizes of the nets."""

from collections.abc import Sequence
from dataclasses import dataclass

from xvfl.config import NetConfig, PrivacyConfig, build
from xvfl.errors import RunError
from xvfl.federation.upload.manifest import encoder_name
from xvfl.methods import method_spec
from xvfl.methods.base import Method, mode_key, require_mode
from xvfl.model.prediction import completing_modes
from xvfl.model.run_dir import MANIFEST, RunDir
from xvfl.primitives.task import Task
from xvfl.service.head_store import HeadStore
from xvfl.service.trained_heads import TrainedHeads, load_trained_heads


@dataclass(frozen=True)
class FederatedModel:
    """The coordinator's part of a trained model."""

    heads: TrainedHeads
    names: tuple[str, ...]
    """The parties, in the order of the method's adapters."""
    net: NetConfig

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.heads.run

    @property
    def method(self) -> Method:
        """The method, with its heads."""
        return self.heads.method

    @property
    def task(self) -> Task:
        """What the model predicts."""
        return self.heads.task

    @property
    def prior(self) -> Sequence[float]:
        """The prediction of a row of which nothing is known."""
        return self.heads.prior

    @property
    def runs(self) -> dict[str, str]:
        """For each party, the run or the version of its encoder that the heads belong to."""
        encoders = self.heads.encoders
        return {
            n: encoder_name(encoders[n]["version"]) if encoders else self.run for n in self.names
        }

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of an embedding in a message of each party."""
        encoders = self.heads.encoders
        if encoders:
            return tuple(int(encoders[name]["width"]) for name in self.names)
        branches = method_spec(self.heads.loss.method).branches
        return (self.net.members * self.net.embedding_dim * branches,) * len(self.names)

    @property
    def temperature(self) -> float:
        """Temperature of collaborative predictions."""
        return self.heads.temperatures.get(mode_key("collaborative", ""), 1.0)

    @property
    def cross_completion(self) -> bool:
        """Whether features are completed from the embeddings of other parties."""
        return "assisted" in self.method.modes

    @property
    def completes(self) -> bool:
        """Whether collaborative predictions use completed features."""
        return "collaborative" in completing_modes(self.method, "")


def load_federated_model(
    folder: RunDir, privacy: PrivacyConfig, parties: Sequence[str]
) -> FederatedModel:
    """Load the current head from the coordinator's state folder."""
    head = HeadStore(folder).current
    heads, names = load_trained_heads(head, privacy)
    manifest = head.manifest()
    if {*names, *manifest.get("left_out", [])} != set(parties):
        raise RunError(
            f"{head.path}: the run was trained with the parties {names}, the configuration has "
            f"{list(parties)}"
        )
    if manifest.get("differential_privacy"):
        raise RunError(
            f"{head.path}: a run with differential privacy cannot predict as a federation, "
            "because the embeddings of new rows would not be accounted for; release the heads and "
            "predict in mode local"
        )
    require_mode(heads.method, "collaborative", heads.loss.method)
    heads.method.heads.eval()
    return FederatedModel(heads, tuple(names), build(NetConfig, manifest["net"], MANIFEST))


def current_run(folder: RunDir) -> str:
    """Return the name of the current head's run; empty if it cannot be read."""
    try:
        return str(HeadStore(folder).current.manifest()["run"])
    except (RunError, KeyError, TypeError, ValueError):
        return ""
