"""The prediction of a model as one module of tensors, from which a graph is traced.

The method is the model's own. Only the parties are simpler than `PartyWorker`: they are always in
evaluation mode, and the number of rows stays a symbol.
Shapes: B rows, k parties, M members, d embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.federation.fused import pad
from xvfl.federation.upload.private_worker import reference_rows
from xvfl.methods.base import Mode, View
from xvfl.model.model import Model
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.rows import PartyTable, Rows, is_full


@dataclass(frozen=True)
class TracedRows(Rows):
    """Rows whose number is a symbol."""

    def repeat_for_members(self, members: int) -> "TracedRows":
        """Repeat the rows for each member."""
        repeated = self._map(lambda part: _tile(part, members), self.step)
        return replace(cast(TracedRows, repeated), runs=members)


class TracedParties:
    """The parties of a traced prediction."""

    def __init__(
        self,
        names: Sequence[str],
        nets: Sequence[PartyNet],
        tables: Sequence[PartyTable],
        centers: Sequence[Tensor | None],
        width: int,
    ) -> None:
        self.names = tuple(names)
        self.nets, self.tables, self.centers, self.width = nets, tables, centers, width

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed the rows at every party, in each view. (B, k, v, d)"""
        self._inputs: list[tuple[Tensor, Tensor]] = []
        each = []
        for net, table, center in zip(self.nets, self.tables, self.centers, strict=True):
            # Members that share their inputs repeat the rows when they have encoded them.
            rows_of_net = table if net.members > 1 else _repeat_rows(table, rows.runs)
            x, observed = net.encode(rows_of_net), rows_of_net.observed
            plain = net.embed(x, observed)
            if center is not None:
                plain = _normalized(plain, center)
            inputs = net.repeat_for_members(x), net.repeat_for_members(observed)
            self._inputs.append(inputs)
            each.append(_views(net, inputs, pad(plain, self.width), views))
        return torch.stack(each, 1)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the rows of the last `embed`, completed from each party's cue. (B, k, d)"""
        each = [
            net.complete(x, observed, cues[:, i])[0]
            for i, (net, (x, observed)) in enumerate(zip(self.nets, self._inputs, strict=True))
        ]
        return torch.stack(each, 1)

    def completed_features(self, rows: Rows, party: int) -> Tensor:
        """Fill a party's missing features, as `complete_rows` does. (B, p), members stacked"""
        E = self.embed(rows, ["plain"])[:, :, 0]
        cue, has_cue = maths.cues(E, maths.sources(rows.full, rows.seen))
        no_full_peer = ~maths.others(rows.full, party).any(1) & rows.seen[:, party]
        use_own = (no_full_peer | ~has_cue[:, party]).unsqueeze(-1)
        net, (x, observed) = self.nets[party], self._inputs[party]
        _, completed = net.complete(x, observed, torch.where(use_own, E[:, party], cue[:, party]))
        return maths.merge(x, completed, net.spread(observed))

    def backward(self, loss: Tensor) -> None:
        """Nothing is trained here."""
        raise TypeError("a traced prediction cannot be trained")


def _views(
    net: PartyNet, inputs: tuple[Tensor, Tensor], plain: Tensor, views: Sequence[View]
) -> Tensor:
    """Return the views of a party's rows, of which `plain` embeds them as observed."""
    own = net.complete(*inputs, plain)[0] if "self" in views else plain
    return torch.stack([own if view == "self" else plain for view in views], 1)


def _normalized(plain: Tensor, center: Tensor) -> Tensor:
    """Scale embeddings with differential privacy to distance 1 from the center."""
    away = plain.double() - center
    norm = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    return cast(Tensor, (away / norm.clamp(min=1e-12)).to(plain.dtype))


class PredictionGraph(nn.Module):
    """Logits of a mode, or completed features, from the encoded rows of some parties.

    Parameters
    ----------
    model
        A model on the CPU.
    parties
        Names of the parties whose rows are the inputs.
    mode
        The mode whose logits are computed; None computes the completed images of every party.
    party
        The predicting party; '' in mode collaborative.
    """

    def __init__(
        self, model: Model, parties: Sequence[str], mode: Mode | None = None, party: str = ""
    ) -> None:
        super().__init__()
        self.parties, self.mode = list(parties), mode
        self.index = self.parties.index(party) if party else 0
        places = [list(model.encoders).index(name) for name in parties]
        self.method = model.method.select_parties(places)
        self.heads = self.method.heads
        self.nets = nn.ModuleList([model.parties[name] for name in parties])
        self.layouts = [model.layouts[name] for name in parties]
        self.thresholds = [model.full_threshold[name] for name in parties]
        self.members, self.width = model.net.members, model.head_width
        self.hides_missing = model.differential_privacy is not None
        self.eval()
        self.centers = [_center(net) if self.hides_missing else None for net in self._nets()]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute logits (B, C); or the images of each party that has images."""
        tables = self._tables(inputs)
        seen = torch.stack([table.observed.any(1) for table in tables], 1)
        full = torch.stack(
            [
                is_full(table.observed, threshold)
                for table, threshold in zip(tables, self.thresholds, strict=True)
            ],
            1,
        )
        if self.hides_missing:
            seen = full = torch.ones_like(seen)
        numbers = torch.zeros_like(seen[:, 0], dtype=torch.long)
        weight = torch.ones_like(seen[:, 0], dtype=torch.float32)
        rows = TracedRows(torch.zeros_like(seen, dtype=torch.long), full, seen, numbers, weight)
        federation = TracedParties(self.parties, self._nets(), tables, self.centers, self.width)
        if self.mode is not None:
            return self.method.logits(federation, rows, self.mode, self.index).float()
        repeated = rows.repeat_for_members(self.members)
        return tuple(
            federation.completed_features(repeated, i)
            for i, layout in enumerate(self.layouts)
            if layout.image is not None
        )

    def _tables(self, inputs: Sequence[Tensor]) -> list[PartyTable]:
        tables, given = [], iter(inputs)
        for layout in self.layouts:
            values, observed = next(given), next(given)
            codes = next(given) if layout.hashed else torch.zeros_like(observed[:, :0]).long()
            tables.append(PartyTable(layout, values, codes, observed))
        return tables

    def _nets(self) -> list[PartyNet]:
        return [cast(PartyNet, net) for net in self.nets]


def _tile(part: Tensor, count: int) -> Tensor:
    """Repeat all rows, one copy after the other."""
    return part if count == 1 else part.repeat(count, *[1] * (part.dim() - 1))


def _repeat_rows(table: PartyTable, count: int) -> PartyTable:
    parts = (table.values, table.codes, table.observed)
    return PartyTable(table.layout, *(_tile(part, count) for part in parts))


def _center(net: PartyNet) -> Tensor:
    """Return the center of a party's embeddings with differential privacy. (d,)"""
    rows = reference_rows(net.layout)
    with torch.no_grad():
        return net.embed(net.encode(rows), rows.observed).double().mean(0)
