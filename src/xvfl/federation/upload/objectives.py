"""Objectives by which a party trains its encoder alone, without labels and other parties.

An objective is a method on a federation of one party, so the training loop, its schedule and its
checkpoints are those of every other training.
Shapes: R stacked runs, B rows, d embedding width.
"""

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.augment_images import N_RANDOM, augment
from xvfl.methods.base import Federation, Mode, View
from xvfl.nets.mlp import mlp
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG
from xvfl.primitives.rows import Rows, Table

TEMPERATURE = 0.2
"""Temperature of the contrastive loss."""
PROJECTION = (512, 128)
"""Widths of the projection head between embeddings and the contrastive loss."""
MAX_DROPPED = 0.9
"""Largest share of the pixels that a view drops."""


class Objective:
    """A method that trains an encoder; it predicts nothing."""

    modes: frozenset[Mode] = frozenset()
    heads: nn.Module

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Raise an error: an encoder makes no predictions."""
        raise NotImplementedError(f"{type(self).__name__} makes no predictions")

    def select_parties(self, parties: Sequence[int]) -> Self:
        """Return this objective; it has one party."""
        return self


class Reconstruction(Objective):
    """Masked reconstruction: reconstruct a row from the embedding of a copy with features dropped.

    The decoder is the party's completer. `n_masks` copies of a row are embedded in each step.
    """

    def __init__(self, n_masks: int = 2) -> None:
        self.heads = nn.Identity()
        self._views: list[View] = ["masked", "self"] * n_masks

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Return the reconstruction loss; the federation adds its gradient in `backward`."""
        # The decoder runs in the views `self`; their embeddings are not needed.
        # `_views` alternate; a list would be copied to the device, which no CUDA graph does.
        needed = torch.arange(len(self._views), device=rows.device) % 2 == 0
        federation.embed(rows, self._views, needed.expand(len(rows), 1, -1))
        (worker,) = cast(FusedFederation, federation).workers
        assert worker.objective is not None
        return {"reconstruction": worker.objective.detach() / rows.runs}


class Contrastive(Objective):
    """SimCLR: two random views of an image are closer to each other than to other images.

    T. Chen, S. Kornblith, M. Norouzi, G. Hinton. A simple framework for contrastive learning of
    visual representations. 2020.
    """

    def __init__(self, width: int) -> None:
        self.heads = mlp([width, *PROJECTION])

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the normalized temperature-scaled cross entropy."""
        E = federation.embed(rows, ["masked", "masked"])[:, 0]
        z = F.normalize(self.heads(E.transpose(0, 1).flatten(0, 1)).float(), dim=1)
        similarity = z @ z.T / TEMPERATURE
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        partner = torch.arange(len(z), device=z.device).roll(len(rows))
        return {"contrastive": F.cross_entropy(similarity.masked_fill(itself, -1e9), partner)}


class AugmentedImages(PartyWorker):
    """A party with images in contrastive learning: each view has its own augmentation and mask."""

    def __init__(self, name: str, net: PartyNet, table: Table, seeds: Sequence[int]) -> None:
        super().__init__(name, net, table, seeds)
        self._augment = [CounterRNG(self.seeds, name, "augment", number) for number in range(2)]

    def embed(
        self,
        handles: Tensor,
        views: Sequence[View],
        step: int | Tensor,
        needed: Tensor | None = None,
    ) -> Tensor:
        """Embed one or two random views of each image. (B, v, d)"""
        rows, net = self.table.take(handles), self.net
        observed, copies = net.spread(rows.observed), []
        for rng in self._augment[: len(views)]:
            uniform = rng.uniform(step, len(rows), N_RANDOM + 1 + net.layout.raw, rows.device)
            pixels, kept = augment(rows.values, observed, uniform[:, :N_RANDOM])
            dropped = uniform[:, N_RANDOM:].clone()
            dropped[:, :1] *= MAX_DROPPED
            copies.append(net.given(pixels, drop_features(kept.flatten(1), dropped)))
        E = net.compute(net.bottom, torch.cat(copies))
        return E.view(len(views), len(rows), E.shape[-1]).transpose(0, 1)
