"""What a finished run leaves: the coordinator's heads in its folder, and those it releases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from xvfl.config import LossConfig, NetConfig
from xvfl.errors import PartyError
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.predict import Temperatures, key
from xvfl.federation.remote_party import ask
from xvfl.methods.base import Method
from xvfl.model.run_dir import FORMAT, MANIFEST, MODEL, RunDir
from xvfl.service.release import signed, signing_key
from xvfl.version import VERSION
from xvfl.wire.messages import Done


@dataclass(frozen=True)
class Result:
    """Trained heads, and how to read them."""

    run: str
    method: Method
    classes: Sequence[Any]
    prior: Tensor
    temperatures: Temperatures
    loss: LossConfig

    def about(self, temperatures: Temperatures) -> dict[str, Any]:
        """Say what prediction needs beside the weights."""
        return {
            "run": self.run,
            "classes": self.classes,
            "prior": self.prior.tolist(),
            "temperatures": temperatures,
            "loss": asdict(self.loss),
        }

    def keep(self, folder: RunDir, names: Sequence[str], net: NetConfig, seed: int) -> None:
        """Write what the coordinator has of the model: the heads, and how to read them."""
        with folder.transaction():
            folder.save_tensors(MODEL, self.method.heads.state_dict(), {})
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "side": "coordinator",
                "parties": list(names),
                "net": asdict(net),
                "random_state": seed,
                **self.about(self.temperatures),
            }
            folder.write_json(MANIFEST, manifest)

    def release(
        self,
        folder: RunDir,
        roster: ElasticFederation,
        to: Sequence[str],
        note: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Give named parties the head, on purpose (D4)."""
        signing = signing_key(folder)
        for place, name in enumerate(roster.names):
            if name not in to:
                continue
            member = roster.members[place]
            local = key("local", name)
            about = {**self.about({local: self.temperatures.get(local, 1.0)}), "party": name}
            roster.counters.turn += 1
            question = signed(signing, roster.counters.turn, self.method, place, about)
            try:
                if not member.present:
                    raise PartyError("it is away")
                ask([member.peer], [question], Done)
                note({"event": "released", "party": name})
            except (PartyError, ValueError) as error:
                note({"event": "release_failed", "party": name, "reason": str(error)})
