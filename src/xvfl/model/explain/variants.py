"""Predict the same rows in many variants: with subsets of parties, or with permuted features.

Each party embeds its rows once. Only completed rows, whose cues depend on the parties that take
part, and permuted rows are computed for each variant.
Shapes: n rows, B rows of a batch, k parties, C classes.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import View
from xvfl.methods.pooling import without_completion
from xvfl.model.model import Model
from xvfl.model.prediction import PredictRequest
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import PartyTable, Rows, observation_levels
from xvfl.training.predict import BATCH


@dataclass(frozen=True)
class PermutedFeatures:
    """Features of a party whose cells are exchanged between rows."""

    party: int
    features: tuple[int, ...]
    """Numbers of raw features."""
    order: Tensor
    """(n,) the row whose cells each row gets."""


@dataclass(frozen=True)
class Variant:
    """A way to predict the rows."""

    parties: tuple[int, ...]
    """The parties that take part."""
    completes: bool = True
    """Whether missing features are completed, if the method can."""
    permuted: PermutedFeatures | None = None


class CachedWorker:
    """A party's worker in one batch, which embeds the batch once."""

    def __init__(self, worker: PartyWorker) -> None:
        # A copy: a worker remembers its last batch for `complete`.
        self.worker = copy.copy(worker)
        self._embeddings: dict[tuple[View, ...], tuple[Tensor | None, Tensor]] = {}
        """By views: the rows that were needed, and the embeddings."""

    def embed(
        self, handles: Tensor, views: tuple[View, ...], step: int | Tensor, needed: Tensor | None
    ) -> Tensor:
        """Embed the batch, or return the embeddings of the last call that needed the same rows."""
        if views in self._embeddings:
            before, E = self._embeddings[views]
            if before is needed or (
                before is not None and needed is not None and torch.equal(before, needed)
            ):
                return E
        E = self.worker.embed(handles, views, step, needed)
        self._embeddings[views] = needed, E
        return E


class CachedFederation:
    """Some of the parties, for one batch."""

    def __init__(self, workers: Sequence[CachedWorker]) -> None:
        self.workers = tuple(workers)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parties."""
        return tuple(each.worker.name for each in self.workers)

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed the batch at every party, in each view. (B, k, v, d)"""
        handles = rows.handles.T.contiguous()
        masks = [None] * len(self.workers) if needed is None else needed.unbind(1)
        parts = [
            each.embed(handles[i], tuple(views), rows.step, masks[i])
            for i, each in enumerate(self.workers)
        ]
        return torch.stack(parts, 1)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the batch, completed from each party's cue. (B, k, d)"""
        masks = [None] * len(self.workers) if needed is None else needed.unbind(1)
        parts = [
            each.worker.complete(cue, replace_observed, mask)
            for each, cue, mask in zip(self.workers, cues.unbind(1), masks, strict=True)
        ]
        return torch.stack(parts, 1)

    def backward(self, loss: Tensor) -> None:
        """Nothing is trained here."""
        raise TypeError("a federation of cached embeddings cannot be trained")


class VariantPredictor:
    """Predicts rows collaboratively in variants.

    Parameters
    ----------
    model
        A trained model.
    rows
        The rows to predict.
    federation
        The parties whose tables are given.
    """

    def __init__(self, model: Model, rows: Rows, federation: FusedFederation) -> None:
        self.model, self.rows = model, rows
        places = [list(model.encoders).index(name) for name in federation.names]
        self.method = model.method.select_parties(places)
        self.workers = federation.workers
        federation.train(False)
        self.method.heads.eval()
        self._batches = [
            (index, [CachedWorker(worker) for worker in self.workers])
            for index in torch.split(torch.arange(len(rows), device=rows.device), BATCH)
        ]
        temperature = model.temperature(PredictRequest("collaborative", None), rows)
        self._temperature = temperature.to(rows.device)

    @torch.no_grad()
    def predict(self, variant: Variant) -> NDArray[np.float64]:
        """Compute probabilities or numbers, and the prior where nobody observes a row. (n, C)"""
        at = list(variant.parties)
        if not at:
            return np.tile(np.asarray(self.model.prior), (len(self.rows), 1))
        method = self.method if variant.completes else without_completion(self.method)
        assert method is not None
        method = method.select_parties(at)
        out, seen = [], []
        for index, workers in self._batches:
            rows, workers = self._permute(variant.permuted, index, workers)
            rows = rows.select_parties(at)
            federation = CachedFederation([workers[party] for party in at])
            out.append(method.logits(federation, rows, "collaborative", 0))
            seen.append(rows.seen.any(1))
        values = self.model.task.values(torch.cat(out).double() / self._temperature)
        observed = torch.cat(seen).cpu().numpy()[:, None]
        return np.where(observed, values, np.asarray(self.model.prior))

    def _permute(
        self, permuted: PermutedFeatures | None, index: Tensor, workers: list[CachedWorker]
    ) -> tuple[Rows, list[CachedWorker]]:
        """Exchange the party's worker in a batch by one with permuted features."""
        rows = self.rows.take(index)
        if permuted is None:
            return rows, workers
        party, own = permuted.party, self.workers[permuted.party]
        handles = self.rows.handles[:, party]
        given, other = handles[index], handles[permuted.order[index]]
        table = exchange(own.table.take(given), own.table.take(other), permuted.features)
        levels = observation_levels(table.observed, self.model.full_threshold[own.name])
        local = torch.where(given >= 0, torch.arange(len(index), device=given.device), -1)
        hides = self.model.differential_privacy is not None
        rows = replace(
            rows,
            handles=_with_column(rows.handles, party, local),
            full=rows.full if hides else _with_column(rows.full, party, levels == 2),
            seen=rows.seen if hides else _with_column(rows.seen, party, levels >= 1),
        )
        worker = self.model.worker(own.name, table)
        return rows, [*workers[:party], CachedWorker(worker), *workers[party + 1 :]]


def _with_column(table: Tensor, column: int, values: Tensor) -> Tensor:
    table = table.clone()
    table[:, column] = values
    return table


def exchange(given: PartyTable, other: PartyTable, features: Sequence[int]) -> PartyTable:
    """Take the cells of some raw features, and whether they are observed, from other rows."""
    layout, which = given.layout, torch.zeros(given.layout.raw, dtype=torch.bool)
    which[list(features)] = True
    values = torch.where(_spread(which, layout), other.values, given.values)
    hashed = which[layout.raw - len(layout.hashed) :] if layout.image is None else which[:0]
    return PartyTable(
        layout,
        values,
        torch.where(hashed, other.codes, given.codes),
        torch.where(which, other.observed, given.observed),
    )


def _spread(which: Tensor, layout: Layout) -> Tensor:
    """Mark the dense columns, or the pixels, of raw features."""
    if layout.image is not None:
        return which.view(layout.image[1:])
    of_column = torch.tensor(layout.feature_of_column[: layout.dense], dtype=torch.long)
    return which[of_column]
