"""Embeddings with differential privacy: what a party releases of its rows.

Each row has a fixed number of releases: as observed, and one for each masked view, with a mask that
is fixed for the row. A release is the embedding of the party's untrained net, centered, normalized
to length 1, plus Gaussian noise. It depends on no other row. It is computed once: every step, epoch
and evaluation gets the same numbers, so repeated requests reveal nothing more.
Shapes: n rows of the party, d embedding width, v releases of a row.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import shake_256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.errors import ConfigError, WireError
from xvfl.nets.party_net import PartyNet
from xvfl.nets.row_wise import row_wise
from xvfl.primitives.layout import Layout
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG, named_generator
from xvfl.primitives.rows import PartyTable, Table

ROWS_AT_ONCE = 1024
REFERENCE_ROWS = 2048
"""Number of random rows whose mean embedding is the center."""
GRID_STEPS = 1024
"""Released numbers are multiples of a step, about this fraction of the noise."""


class PrivateEmbeddings:
    """The releases of all rows of a party, computed at the first request.

    Parameters
    ----------
    name
        Name of the party.
    net
        The party's net, with its first weights; it must treat each row independently.
    table
        The party's encoded rows.
    seed
        Secret of the noise.
    noise_std
        Standard deviation of the noise; 0 = none.
    n_masked
        Number of masked views.
    unmasked
        Share of the masked views that keep all features.
    """

    def __init__(
        self,
        name: str,
        net: PartyNet,
        table: Table,
        seed: int,
        noise_std: float,
        n_masked: int,
        unmasked: float = 0.0,
    ) -> None:
        if not row_wise(net.bottom):
            raise ConfigError(
                "epsilon: expected a bottom that treats each row independently; remove dropout, "
                "batch normalization and custom modules"
            )
        self.name, self.net, self.table, self.seed = name, net, table, seed
        self.noise_std, self.n_masked, self.unmasked = noise_std, n_masked, unmasked
        self._releases: Tensor | None = None

    def select(self, handles: Tensor, views: Sequence[str]) -> Tensor:
        """Return the releases of rows; zeros for a row that the party does not hold. (B, v, d)"""
        self.check_views(views)
        if self._releases is None:
            self._releases = self._release_all()
        masked = iter(range(1, 1 + self.n_masked))
        numbers = [0 if view == "plain" else next(masked) for view in views]
        index = torch.tensor(numbers, device=handles.device)
        if not len(self._releases):
            return self._releases.new_zeros(len(handles), len(numbers), self._releases.shape[-1])
        chosen = self._releases[handles.clamp(min=0)][:, index]
        return chosen * (handles >= 0).view(-1, 1, 1).to(chosen.dtype)

    def check_views(self, views: Sequence[str]) -> None:
        """Reject views that are not accounted for."""
        if views.count("masked") > self.n_masked or not set(views) <= {"plain", "masked"}:
            raise WireError(
                f"Embed: with differential privacy this run releases the view 'plain' and "
                f"{self.n_masked} views 'masked' of a row, got {tuple(views)}"
            )

    @torch.no_grad()
    def _release_all(self) -> Tensor:
        """Compute the releases of all rows. (n, v, d)"""
        # Fixed batches: the last bits of a net's output depend on the number of rows.
        training = self.net.training
        self.net.eval()
        dtype = next(self.net.parameters()).dtype
        reference = reference_rows(self.net.layout)
        reference = replace(reference, values=reference.values.to(dtype)).to(self.table.device)
        center = self._embed(reference).mean(0)
        parts = [torch.zeros(0, 1 + self.n_masked, len(center), device=center.device)]
        all_handles = torch.arange(len(self.table), device=center.device)
        for handles in torch.split(all_handles, ROWS_AT_ONCE):
            rows = self.table.take(handles)
            embeddings = [self._embed(rows) - center]
            for number in range(self.n_masked):
                rng = CounterRNG([self.seed], self.name, "private mask", number)
                uniform = rng.uniform_by_key(handles, 1 + rows.observed.shape[1])
                masked = drop_features(rows.observed, uniform, self.unmasked)
                embeddings.append(self._embed(rows, masked) - center)
            parts.append(self._add_noise(torch.stack(embeddings, 1), rows, handles))
        self.net.train(training)
        return torch.cat([part.to(dtype) for part in parts])

    def _embed(self, rows: PartyTable, observed: Tensor | None = None) -> Tensor:
        observed = rows.observed if observed is None else observed
        return self.net.embed(self.net.encode(rows), observed).double()

    def _add_noise(self, embeddings: Tensor, rows: PartyTable, handles: Tensor) -> Tensor:
        """Normalize embeddings (B, v, d) and add noise, on a grid.

        The grid hides the last bits of floating-point numbers, which would reveal the sum's terms.
        """
        norm = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True)
        unit: Tensor = embeddings / norm.clamp(min=1e-12)
        if not self.noise_std:
            return unit
        contents = _row_bytes(rows)
        keys = [
            self._key(handle, number, content)
            for handle, content in zip(handles.tolist(), contents, strict=True)
            for number in range(unit.shape[1])
        ]
        noise = torch.from_numpy(_normal(keys, unit.shape[2])).view(unit.shape).to(unit.device)
        step = 2.0 ** math.floor(math.log2(self.noise_std)) / GRID_STEPS
        released: Tensor = ((unit + self.noise_std * noise) / step).round() * step
        return released

    def _key(self, handle: int, number: int, content: bytes) -> bytes:
        """Return the key of a release's noise.

        Without the row's content, the releases of two versions of a row would have the same noise,
        and their difference none. Without the handle, equal rows would have equal releases.
        """
        return repr((self.seed, self.name, "noise", handle, number)).encode() + content


def reference_rows(layout: Layout) -> PartyTable:
    """Sample rows that depend on the layout alone: any values, with any features missing."""
    rng, n = named_generator("cpu", "reference rows"), REFERENCE_ROWS
    kept = torch.rand(n, layout.raw, generator=rng) < torch.rand(n, 1, generator=rng)
    if layout.image is not None:
        codes = torch.zeros(n, 0, dtype=torch.long)
        pixels = torch.rand(n, *layout.image, generator=rng)
        return PartyTable(layout, pixels * kept.view(n, 1, *layout.image[1:]), codes, kept)
    columns, codes_of = [], []
    for feature in layout.features:
        if feature.kind == "hashed":
            codes_of.append(torch.randint(feature.buckets, (n,), generator=rng))
        elif feature.kind == "category":
            category = torch.randint(feature.width, (n,), generator=rng)
            columns.append(torch.nn.functional.one_hot(category, feature.width).float())
        else:
            columns.append(torch.rand(n, feature.width, generator=rng))
    values = torch.cat(columns, 1) if columns else torch.zeros(n, 0)
    codes = torch.stack(codes_of, 1) if codes_of else torch.zeros(n, 0, dtype=torch.long)
    return PartyTable(layout, values, codes, kept)


def _row_bytes(rows: PartyTable) -> list[bytes]:
    parts = [part.flatten(1).cpu().numpy() for part in (rows.values, rows.codes, rows.observed)]
    return [b"".join(part[i].tobytes() for part in parts) for i in range(len(rows))]


def _normal(keys: Sequence[bytes], columns: int) -> NDArray[np.float64]:
    """Draw standard normal numbers by a cryptographic hash of each key. (len(keys), columns)"""
    half = (columns + 1) // 2
    digests = b"".join(shake_256(key).digest(16 * half) for key in keys)
    bits = np.frombuffer(digests, dtype="<u8").reshape(len(keys), 2, half) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return normal[:, :columns]
