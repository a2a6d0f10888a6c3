"""A trained model: predict in every mode, complete tables, save, load."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from xvfl.config import COORDINATOR, LossConfig, NetConfig, build
from xvfl.data.encoder import Encoded, encoder_from_dict
from xvfl.data.sources import Encoder, Source, encode
from xvfl.dataset.prepare import as_table, place
from xvfl.errors import InputError, ModeError, RunError, unknown
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.complete_rows import completed
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import Temperatures, key, logits
from xvfl.methods import MODES, Method, Mode, require_mode
from xvfl.model.completion import fill
from xvfl.model.custom_nets import CustomNets, check_custom_nets
from xvfl.model.prediction import Asked, ModelInfo, Prediction, explain, row_ids, unassisted
from xvfl.model.run_dir import FORMAT, MANIFEST, MODEL, RunDir
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import Rows
from xvfl.training.threads import limit_threads
from xvfl.version import VERSION


class Model:
    """The parties' encoders and nets, the method, and what prediction needs besides."""

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        full_threshold: Mapping[str, float],
        classes: Sequence[Any],
        prior: Sequence[float],
        net: NetConfig,
        loss: LossConfig,
        seed: int,
        own: CustomNets | None = None,
    ) -> None:
        """Build fresh nets for these parties."""
        own = own or CustomNets()
        self.encoders = dict(encoders)
        self.full_threshold = dict(full_threshold)
        self.classes = list(classes)
        self.prior = list(prior)
        self.net, self.loss, self.seed = net, loss, seed
        self.custom = own.any()
        self.temperatures: Temperatures = {}
        layouts = self.layouts
        with torch.random.fork_rng(devices=[]):
            self.parties = build_parties(layouts, net, loss, [seed], own.bottoms, own.completers)
            self.method: Method = build_method(layouts, len(classes), net, loss, [seed], own.head)
        check_custom_nets(self.parties, self.method, len(self.classes), own)

    @property
    def layouts(self) -> dict[str, Layout]:
        """What each party's encoded features look like."""
        return {name: encoder.layout for name, encoder in self.encoders.items()}

    @property
    def width(self) -> int:
        """The width d of every embedding."""
        net = next(iter(self.parties.values()))
        shape = net.layout.image or (net.layout.encoded,)
        with torch.no_grad():
            given = torch.ones(1, net.layout.raw, dtype=torch.bool)
            return net.embed(torch.zeros(1, *shape), given).shape[1]

    @property
    def holders(self) -> dict[str, nn.Module]:
        """The nets by who holds them."""
        return {**self.parties, COORDINATOR: self.method.heads}

    def predict(
        self,
        sources: Mapping[str, Source],
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> Prediction:
        """Predict the rows of the given tables (or the given ids), with anything missing."""
        asked = self.asked(sources, mode, party)
        if asked.party is not None and asked.mode == "local":
            sources = {asked.party: sources[asked.party]}
        given = [name for name in self.encoders if name in sources]
        encoded = {name: encode(self.encoders[name], sources[name]) for name in given}
        wanted = list(ids) if ids is not None else row_ids(sources, given, asked.party)
        rows, federation = self._rows(encoded, wanted)
        at = given.index(asked.party) if asked.party is not None else 0
        with limit_threads(self.layouts, torch.device("cpu")), torch.random.fork_rng(devices=[]):
            method = self.method.select_parties([list(self.encoders).index(name) for name in given])
            out = logits(method, federation, rows, asked.mode, at)
        proba = torch.softmax(out.double() / self._temperature(asked, rows, at), -1).numpy()
        return explain(asked, rows, encoded, wanted, at, proba, self._known_by_all())

    def _known_by_all(self) -> ModelInfo:
        cross = "assisted" in self.method.modes
        return ModelInfo(
            self.classes, self.prior, cross or self.loss.self_completion_weight > 0, cross
        )

    def complete(
        self, sources: Mapping[str, Source], party: str, ids: Sequence[str] | None = None
    ) -> Source:
        """Fill a party's gaps in its own columns and units; what was observed stays as it was.

        A row is completed from the parties that hold it in full; where none does, from its own
        features if there are any, else from what the others saw.
        """
        self._known(sources)
        if "assisted" not in self.method.modes:
            raise ModeError(
                f"{self.loss.method} as trained here completes nothing from other parties; "
                "train with xvfl+ or xvfl, with cross_completion"
            )
        if party not in sources:
            raise ModeError(f"complete: expected a table of {party!r}, got {list(sources)}")
        given = [name for name in self.encoders if name in sources]
        encoded = {name: encode(self.encoders[name], sources[name]) for name in given}
        wanted = list(ids) if ids is not None else encoded[party].ids
        rows, federation = self._rows(encoded, wanted)
        with torch.random.fork_rng(devices=[]):
            values = completed(federation, rows, given.index(party)).double().cpu().numpy()
        return fill(self.encoders[party], self.parties[party], sources[party], wanted, values)

    def save(self, folder: RunDir, more: Mapping[str, Any] | None = None) -> None:
        """Write the model's folder, all of it or nothing."""
        folder.create()
        tensors = {
            f"{holder}/{name}": value
            for holder, net in self.holders.items()
            for name, value in net.state_dict().items()
        }
        with folder.together():
            for name, encoder in self.encoders.items():
                folder.write_json(f"encoders/{name}.json", encoder.to_dict())
            folder.save_tensors(MODEL, tensors, {})
            folder.write_json(MANIFEST, {**self.manifest(), **(more or {})})

    def manifest(self) -> dict[str, Any]:
        """Give what a folder must say beside encoders and weights."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "parties": list(self.encoders),
            "classes": self.classes,
            "prior": self.prior,
            "full_threshold": self.full_threshold,
            "temperatures": self.temperatures,
            "net": asdict(self.net),
            "loss": asdict(self.loss),
            "random_state": self.seed,
            "own_nets": self.custom,
        }

    @classmethod
    def load(cls, folder: RunDir, own: CustomNets | None = None) -> "Model":
        """Read a model's folder."""
        said = folder.manifest()
        if said.get("own_nets") and not (own and own.any()):
            raise RunError(
                f"{folder.path}: trained with its user's own nets; pass the same bottoms=, "
                "completers= or head= to load"
            )
        try:
            encoders = {
                name: encoder_from_dict(folder.read_json(f"encoders/{name}.json"))
                for name in said["parties"]
            }
            net = build(NetConfig, said["net"], MANIFEST)
            loss = build(LossConfig, said["loss"], MANIFEST)
            model = cls(
                encoders,
                said["full_threshold"],
                said["classes"],
                said["prior"],
                net,
                loss,
                said["random_state"],
                own,
            )
            model.temperatures = said["temperatures"]
            tensors, _ = folder.load_tensors(MODEL)
            for holder, module in model.holders.items():
                prefix = f"{holder}/"
                mine = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
                module.load_state_dict(mine)
        except (KeyError, TypeError) as error:
            raise RunError(f"{folder.path}: damaged ({error!r}); train it again") from error
        except RuntimeError as error:
            if isinstance(error, RunError):
                raise
            raise RunError(f"{folder.path}: its weights do not fit its nets ({error})") from error
        return model

    def asked(self, sources: Collection[str], mode: Mode | None, party: str | None) -> Asked:
        """Say what is asked for where these parties' tables are given."""
        self._known(sources)
        if mode is not None and mode not in (*MODES, "peers"):
            raise ModeError(unknown("mode", str(mode), MODES))
        if party is not None and party not in self.encoders:
            raise ModeError(unknown("party", party, self.encoders))
        if mode is None:
            whole = party is None and set(sources) == set(self.encoders)
            mode = "collaborative" if whole else "local"
        require_mode(self.method, mode, self.loss.method)
        if mode == "collaborative":
            return Asked(mode, None)
        if party is None:
            if len(sources) > 1:
                raise ModeError(
                    f"mode {mode!r}: say which party predicts: one of {', '.join(sources)}"
                )
            party = next(iter(sources))
        if party not in sources:
            raise ModeError(f"mode {mode!r} of {party!r}: expected its table, got {list(sources)}")
        return Asked(mode, party)

    def _known(self, sources: Collection[str]) -> None:
        if not sources:
            raise InputError(f"expected at least one party's table; parties: {list(self.encoders)}")
        for name in sources:
            if name not in self.encoders:
                raise InputError(unknown("party", name, self.encoders))

    def _rows(
        self, encoded: Mapping[str, Encoded], ids: Sequence[str]
    ) -> tuple[Rows, FusedFederation]:
        device = next(self.method.heads.parameters()).device
        tables = {n: as_table(self.encoders[n].layout, each) for n, each in encoded.items()}
        rows = place(ids, encoded, tables, self.full_threshold)
        sides = [
            PartyWorker(n, self.parties[n], tables[n].to(device), [self.seed]) for n in encoded
        ]
        return rows.to(device), FusedFederation(sides)

    def _temperature(self, asked: Asked, rows: Rows, at: int) -> Tensor:
        own = self.temperatures.get(key(asked.mode, asked.party or ""), 1.0)
        alone = self.temperatures.get(key("local", asked.party or ""), 1.0)
        used = torch.full((len(rows), 1), own, dtype=torch.float64)
        return torch.where(unassisted(asked, rows, at).cpu().unsqueeze(1), alone, used)
