"""A party with differential privacy: what it uploads of its rows.

Each row is released once: its embedding by the party's untrained encoder, centered, normalized to
length 1, plus Gaussian noise. It depends on no other row. Every request gets the same numbers, so
repeated requests reveal nothing more. What is computed from releases (any number of heads, by any
method) reveals nothing more either.
Shapes: n rows of the party, B rows of a batch, v views, d embedding width.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import shake_256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.errors import ConfigError, RunError
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.base import View
from xvfl.nets.party_net import PartyNet
from xvfl.nets.row_wise import row_wise
from xvfl.primitives.layout import Layout
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable, Table

ROWS_AT_ONCE = 1024
REFERENCE_ROWS = 2048
"""Number of random rows whose mean embedding is the center."""
GRID_STEPS = 1024
"""Released numbers are multiples of a step, about this fraction of the noise."""


class PrivateWorker(PartyWorker):
    """A party whose rows have noisy embeddings, computed at the first request.

    Parameters
    ----------
    name
        Name of the party.
    net
        The party's net, with its first weights; it must treat each row independently.
    table
        The party's encoded rows.
    seeds
        Secret of the noise.
    noise_std
        Standard deviation of the noise; 0 = none.
    """

    def __init__(
        self, name: str, net: PartyNet, table: Table, seeds: Sequence[int], noise_std: float
    ) -> None:
        super().__init__(name, net, table, seeds)
        if not row_wise(net.bottom):
            raise ConfigError(
                "epsilon: expected an encoder (bottom) that treats each row independently; remove "
                "dropout, batch normalization and custom modules"
            )
        self.noise_std = noise_std
        self._releases: Tensor | None = None

    def embed(
        self,
        handles: Tensor,
        views: Sequence[View],
        step: int | Tensor,
        needed: Tensor | None = None,
    ) -> Tensor:
        """Return the release of each row in every view; zeros if it is not held. (B, v, d)"""
        if self._releases is None:
            self._releases = self._release_all()
        return self._releases[handles].unsqueeze(1).expand(-1, len(views), -1)

    def complete(
        self, cue: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Raise an error: completed rows would be further releases."""
        raise RunError(f"party {self.name!r}: differential privacy allows no completion")

    @torch.no_grad()
    def _release_all(self) -> Tensor:
        """Compute the releases of all rows; zeros, for handle −1, are the last one. (n + 1, d)"""
        # Fixed batches: the last bits of a net's output depend on the number of rows.
        training = self.net.training
        self.net.eval()
        dtype = next(self.net.parameters()).dtype
        reference = reference_rows(self.net.layout)
        reference = replace(reference, values=reference.values.to(dtype)).to(self.table.device)
        center = self._embed(reference).mean(0)
        parts = []
        all_handles = torch.arange(len(self.table), device=center.device)
        for handles in torch.split(all_handles, ROWS_AT_ONCE):
            rows = self.table.take(handles)
            parts.append(self._add_noise(self._embed(rows) - center, rows, handles))
        self.net.train(training)
        return torch.cat([*parts, torch.zeros_like(center).unsqueeze(0)]).to(dtype)

    def _embed(self, rows: PartyTable) -> Tensor:
        return self.net.embed(self.net.encode(rows), rows.observed).double()

    def _add_noise(self, embeddings: Tensor, rows: PartyTable, handles: Tensor) -> Tensor:
        """Normalize embeddings (B, d) and add noise, on a grid.

        The grid hides the last bits of floating-point numbers, which would reveal the sum's terms.
        """
        norm = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True)
        unit: Tensor = embeddings / norm.clamp(min=1e-12)
        if not self.noise_std:
            return unit
        keyed = zip(handles.tolist(), row_bytes(rows), strict=True)
        keys = [self._key(handle, content) for handle, content in keyed]
        noise = torch.from_numpy(_normal(keys, unit.shape[1])).to(unit.device)
        step = 2.0 ** math.floor(math.log2(self.noise_std)) / GRID_STEPS
        released: Tensor = ((unit + self.noise_std * noise) / step).round() * step
        return released

    def _key(self, handle: int, content: bytes) -> bytes:
        """Return the key of a release's noise.

        Without the row's content, the releases of two versions of a row would have the same noise,
        and their difference none. Without the handle, equal rows would have equal releases.
        """
        return repr((self.seeds[0], self.name, "noise", handle)).encode() + content


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


def row_bytes(rows: PartyTable) -> list[bytes]:
    """Return the content of each row."""
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
