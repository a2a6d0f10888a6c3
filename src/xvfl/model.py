"""A trained model: predict in every mode, complete tables, save, load.

Shapes: n rows, k parties, C classes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from xvfl import maths
from xvfl.config import LossConfig, NetConfig, build
from xvfl.data.encode import Encoded, ImageEncoder, Images, encoder_from_dict
from xvfl.data.rows import Rows
from xvfl.errors import DataWarning, InputError, ModeError, RunError, unknown
from xvfl.federation.build import COORDINATOR, build_method, build_parties
from xvfl.federation.fused import Fused
from xvfl.federation.party import PartyNet, PartySide
from xvfl.federation.predict import Temperatures, key, logits
from xvfl.methods import Method, Mode
from xvfl.nets import Build
from xvfl.prepare import Encoder, Source, as_table, encode, place, source_ids
from xvfl.runs import FORMAT, MANIFEST, MODEL, Folder
from xvfl.version import VERSION

MODES: tuple[Mode, ...] = ("local", "assisted", "collaborative")


@dataclass(frozen=True)
class OwnNets:
    """A user's own nets, in place of the defaults."""

    bottoms: Mapping[str, Build] | None = None
    completers: Mapping[str, Build] | None = None
    head: nn.Module | None = None

    def any(self) -> bool:
        """Say whether there is one."""
        return bool(self.bottoms or self.completers or self.head)


@dataclass(frozen=True)
class Prediction:
    """What a model says of each row, and how it came to it."""

    ids: list[str]
    classes: list[Any]
    proba: NDArray[np.float64]
    """(n, C) calibrated probabilities."""
    mode: list[str]
    """The mode used: the one asked for, `local` where assistance was not to be had, or `prior`."""
    parties: list[str]
    """Who contributed, joined by +."""
    completed: NDArray[np.float64]
    """(n,) share of the contributing parties' features that were completed."""
    notes: list[str]
    """What is odd about the row; '' if nothing."""

    def frame(self) -> pd.DataFrame:
        """Give a table: prediction, probabilities, and per row how they came about."""
        labels = np.asarray(self.classes, dtype=object)[self.proba.argmax(1)]
        columns: dict[str, Any] = {"prediction": pd.Series(labels).infer_objects().to_numpy()}
        for i, label in enumerate(self.classes):
            columns[f"proba_{label}"] = self.proba[:, i]
        columns |= {"mode": self.mode, "parties": self.parties}
        columns |= {"completed": self.completed, "notes": self.notes}
        return pd.DataFrame(columns, index=pd.Index(self.ids, name="id"))


class Model:
    """The parties' encoders and nets, the method, and what prediction needs besides."""

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        full_at: Mapping[str, float],
        classes: Sequence[Any],
        prior: Sequence[float],
        net: NetConfig,
        loss: LossConfig,
        seed: int,
        own: OwnNets | None = None,
    ) -> None:
        """Build fresh nets for these parties."""
        own = own or OwnNets()
        self.encoders = dict(encoders)
        self.full_at = dict(full_at)
        self.classes = list(classes)
        self.prior = list(prior)
        self.net, self.loss, self.seed = net, loss, seed
        self.custom = own.any()
        self.temperatures: Temperatures = {}
        layouts = {name: encoder.layout for name, encoder in self.encoders.items()}
        with torch.random.fork_rng(devices=[]):
            self.parties = build_parties(layouts, net, seed, own.bottoms, own.completers)
            self.method: Method = build_method(layouts, len(classes), net, loss, seed, own.head)
        check_own_nets(self.parties, self.method, own)

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
        asked = self._asked(sources, mode, party)
        if asked.party is not None and asked.mode == "local":
            sources = {asked.party: sources[asked.party]}
        given = [name for name in self.encoders if name in sources]
        encoded = {name: encode(self.encoders[name], sources[name]) for name in given}
        wanted = list(ids) if ids is not None else _row_ids(sources, given, asked.party)
        rows, federation = self._rows(encoded, wanted)
        at = given.index(asked.party) if asked.party is not None else 0
        out = logits(self.method, federation, rows, asked.mode, at)
        proba = torch.softmax(out.double() / self._temperature(asked, rows, at), -1).numpy()
        return self._explain(asked, rows, encoded, wanted, at, proba)

    def complete(
        self, sources: Mapping[str, Source], party: str, ids: Sequence[str] | None = None
    ) -> Source:
        """Fill a party's gaps in its own columns and units; what was observed stays as it was.

        A row is completed from the parties that hold it in full, else from its own features.
        """
        self._known(sources)
        if party not in sources:
            raise ModeError(f"complete: expected a table of {party!r}, got {list(sources)}")
        given = [name for name in self.encoders if name in sources]
        encoded = {name: encode(self.encoders[name], sources[name]) for name in given}
        wanted = list(ids) if ids is not None else encoded[party].ids
        rows, federation = self._rows(encoded, wanted)
        values = self._completed(federation, rows, given.index(party))
        return _fill(self.encoders[party], self.parties[party], sources[party], wanted, values)

    def save(self, folder: Folder, more: Mapping[str, Any] | None = None) -> None:
        """Write the model's folder; the manifest comes last and makes it whole."""
        folder.create()
        for name, encoder in self.encoders.items():
            folder.write_json(f"encoders/{name}.json", encoder.to_dict())
        tensors = {
            f"{holder}/{name}": value
            for holder, net in self.holders.items()
            for name, value in net.state_dict().items()
        }
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
            "full_at": self.full_at,
            "temperatures": self.temperatures,
            "net": asdict(self.net),
            "loss": asdict(self.loss),
            "seed": self.seed,
            "own_nets": self.custom,
        }

    @classmethod
    def load(cls, folder: Folder, own: OwnNets | None = None) -> "Model":
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
                encoders, said["full_at"], said["classes"], said["prior"], net, loss, said["seed"],
                own,
            )
            model.temperatures = said["temperatures"]
            tensors, _ = folder.load_tensors(MODEL)
            for holder, module in model.holders.items():
                prefix = f"{holder}/"
                mine = {k[len(prefix):]: v for k, v in tensors.items() if k.startswith(prefix)}
                module.load_state_dict(mine)
        except (KeyError, TypeError) as error:
            raise RunError(f"{folder.path}: damaged ({error!r}); train it again") from error
        except RuntimeError as error:
            if isinstance(error, RunError):
                raise
            raise RunError(f"{folder.path}: its weights do not fit its nets ({error})") from error
        return model

    def _asked(
        self, sources: Mapping[str, Source], mode: Mode | None, party: str | None
    ) -> "_Asked":
        self._known(sources)
        if mode is not None and mode not in (*MODES, "peers"):
            raise ModeError(unknown("mode", str(mode), MODES))
        if party is not None and party not in self.encoders:
            raise ModeError(unknown("party", party, self.encoders))
        if mode is None:
            whole = party is None and set(sources) == set(self.encoders)
            mode = "collaborative" if whole else "local"
        if mode not in self.method.modes:
            can = ", ".join(each for each in MODES if each in self.method.modes)
            raise ModeError(f"{self.loss.method} cannot predict in mode {mode!r}; it can: {can}")
        if mode == "collaborative":
            return _Asked(mode, None)
        if party is None:
            if len(sources) > 1:
                raise ModeError(
                    f"mode {mode!r}: say which party predicts, party= one of {list(sources)}"
                )
            party = next(iter(sources))
        if party not in sources:
            raise ModeError(f"mode {mode!r} of {party!r}: expected its table, got {list(sources)}")
        return _Asked(mode, party)

    def _known(self, sources: Mapping[str, Source]) -> None:
        if not sources:
            raise InputError(f"expected at least one party's table; parties: {list(self.encoders)}")
        for name in sources:
            if name not in self.encoders:
                raise InputError(unknown("party", name, self.encoders))

    def _rows(self, encoded: Mapping[str, Encoded], ids: Sequence[str]) -> tuple[Rows, Fused]:
        device = next(self.method.heads.parameters()).device
        tables = {n: as_table(self.encoders[n].layout, each) for n, each in encoded.items()}
        rows = place(ids, encoded, tables, self.full_at)
        sides = [PartySide(n, self.parties[n], tables[n].to(device), self.seed) for n in encoded]
        return rows.to(device), Fused(sides)

    def _temperature(self, asked: "_Asked", rows: Rows, at: int) -> Tensor:
        own = self.temperatures.get(key(asked.mode, asked.party or ""), 1.0)
        alone = self.temperatures.get(key("local", asked.party or ""), 1.0)
        used = torch.full((len(rows), 1), own, dtype=torch.float64)
        return torch.where(_unassisted(asked, rows, at).cpu().unsqueeze(1), alone, used)

    def _explain(
        self,
        asked: "_Asked",
        rows: Rows,
        encoded: Mapping[str, Encoded],
        ids: Sequence[str],
        at: int,
        proba: NDArray[np.float64],
    ) -> Prediction:
        seen, full = rows.seen.cpu().numpy(), rows.full.cpu().numpy()
        names = list(encoded)
        alone = _unassisted(asked, rows, at).cpu().numpy()
        nowhere = ~(seen.any(1) if asked.party is None else seen[:, at])
        if asked.mode == "assisted":
            nowhere &= ~_others(full, at).any(1)
        mode = np.where(alone, "local", asked.mode)
        proba = np.where(nowhere[:, None], np.asarray(self.prior), proba)
        notes = _notes(ids, encoded)
        for flag, text in ((alone, "no full peer: decided alone"), (nowhere, "observed nowhere: the class prior")):
            notes = [_join(note, text) if on else note for note, on in zip(notes, flag, strict=True)]
        by = _contributors(asked, names, seen, full, at)
        share = _completed_share(asked, rows, encoded, ids, at)
        return Prediction(
            list(ids), self.classes, proba, list(np.where(nowhere, "prior", mode)),
            ["" if no else each for each, no in zip(by, nowhere, strict=True)],
            np.where(nowhere, 0.0, share), notes,
        )

    @torch.no_grad()
    def _completed(self, federation: Fused, rows: Rows, at: int) -> NDArray[np.float64]:
        side = federation.sides[at]
        for each in federation.sides:
            each.net.eval()
        E = federation.embed(rows, ["plain"])[:, :, 0]
        cue, has_cue = maths.cues(E, rows.full)
        cue = torch.where(has_cue.unsqueeze(-1), cue, E)[:, at]
        taken = side.table.take(rows.handles[:, at])
        x = side.net.encode(taken)
        _, completed = side.net.complete(x, taken.observed, cue)
        merged = maths.merge(x, completed, side.net.spread(taken.observed))
        return merged.double().cpu().numpy()


@dataclass(frozen=True)
class _Asked:
    mode: Mode
    party: str | None


def check_own_nets(parties: Mapping[str, PartyNet], method: Method, own: OwnNets) -> None:
    """Try a user's own nets on one row, to say early and plainly what does not fit."""
    if not own.any():
        return
    width: dict[str, int] = {}
    for name, net in parties.items():
        layout = net.layout
        shape = layout.image or (layout.encoded,)
        given = torch.ones(2, layout.raw, dtype=torch.bool)
        try:
            embedded = net.eval().embed(torch.zeros(2, *shape), given)
            completed = net.completer(embedded)
        except RuntimeError as error:
            raise InputError(
                f"party {name!r}: its own net does not fit: a bottom takes the {layout.encoded} "
                f"encoded columns and {layout.raw} flags (images: one more channel) and gives "
                f"(rows, d), a completer takes (rows, d) and gives the encoded columns; {error}"
            ) from error
        width[name] = embedded.shape[1]
        if completed.shape[1:] != torch.Size(shape):
            raise InputError(
                f"party {name!r}: its completer gives {tuple(completed.shape[1:])}, expected {shape}"
            )
    if len(set(width.values())) > 1:
        raise InputError(f"every bottom must give the same width d, got {width}")


def _row_ids(
    sources: Mapping[str, Source], given: Sequence[str], party: str | None
) -> list[str]:
    if party is not None:
        return source_ids(sources[party])
    return list(dict.fromkeys(each for name in given for each in source_ids(sources[name])))


def _others(full: NDArray[np.bool_], at: int) -> NDArray[np.bool_]:
    return np.delete(full, at, axis=1)


def _unassisted(asked: _Asked, rows: Rows, at: int) -> Tensor:
    if asked.mode != "assisted":
        return torch.zeros(len(rows), dtype=torch.bool, device=rows.full.device)
    return ~maths.others(rows.full, at).any(1)


def _notes(ids: Sequence[str], encoded: Mapping[str, Encoded]) -> list[str]:
    notes = [""] * len(ids)
    place_of = {each: i for i, each in enumerate(ids)}
    for name, each in encoded.items():
        for row, note in zip(each.ids, each.notes, strict=True):
            if note and row in place_of:
                i = place_of[row]
                notes[i] = _join(notes[i], f"{name}: {note}")
    return notes


def _join(first: str, second: str) -> str:
    return f"{first}; {second}" if first else second


def _contributors(
    asked: _Asked, names: Sequence[str], seen: NDArray[np.bool_], full: NDArray[np.bool_], at: int
) -> list[str]:
    who = seen.copy()
    if asked.mode == "assisted":
        who = full.copy()
        who[:, at] = True
    elif asked.mode == "local":
        who[:] = False
        who[:, at] = True
    return ["+".join(n for n, on in zip(names, row, strict=True) if on) for row in who]


def _completed_share(
    asked: _Asked, rows: Rows, encoded: Mapping[str, Encoded], ids: Sequence[str], at: int
) -> NDArray[np.float64]:
    missing, total = np.zeros(len(ids)), 0
    full = rows.full.cpu().numpy()
    for i, each in enumerate(encoded.values()):
        if asked.party is not None and i != at:
            continue
        raw = each.observed.shape[1]
        where = pd.Index(each.ids).get_indexer(pd.Index(ids))
        held = np.where(where >= 0, each.observed.sum(1)[where] if len(each.ids) else 0, 0)
        missing += np.where(full[:, i], 0, raw - held)
        total += raw
    return missing / max(total, 1)


def _fill(
    encoder: Encoder, net: PartyNet, source: Source, ids: Sequence[str], values: NDArray[np.float64]
) -> Source:
    if isinstance(encoder, ImageEncoder):
        assert isinstance(source, Images)
        return _filled_images(encoder, source, ids, values)
    assert isinstance(source, pd.DataFrame)
    learned = [table.weight.detach().double().cpu().numpy() for table in net.vectors]
    vectors = {f.name: t for f, t in zip(encoder.layout.hashed, learned, strict=True)}
    filled = encoder.decode(values, vectors)
    filled.index = pd.Index(list(ids), name="id")
    observed = encoder.encode(source)
    where = pd.Index(observed.ids).get_indexer(pd.Index(ids))
    order = {feature.name: i for i, feature in enumerate(encoder.layout.features)}
    for name in encoder.columns:
        there = (where >= 0) & observed.observed[where, order[name]]
        original = source[name].iloc[np.where(where >= 0, where, 0)]
        original.index = filled.index
        if there.all():
            filled[name] = original
        else:
            kept = original.astype(object).where(there, filled[name].astype(object))
            filled[name] = kept.infer_objects()
    return filled


def _filled_images(
    encoder: ImageEncoder, source: Images, ids: Sequence[str], values: NDArray[np.float64]
) -> Images:
    pixels = encoder.decode(values)
    where = pd.Index(source.ids).get_indexer(pd.Index(ids))
    if (where < 0).any():
        warnings.warn("rows held by no image were completed whole", DataWarning, stacklevel=3)
    return Images(pixels, list(ids))
