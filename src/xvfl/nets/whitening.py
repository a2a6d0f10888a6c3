"""Whitening: a fixed linear layer after an encoder that equalizes its largest components.

Embeddings of an encoder have a few principal components with large variance, which often follow
single columns. With equal variances, principal component analysis does not find them. Independent
component analysis still can: neither whitening nor the random rotation changes what it finds.
Shapes: R runs, B rows of a run, d embedding width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

SPREAD = 0.25
"""Root mean square of whitened numbers; numbers beyond [-1, 1] are cut off."""


IMAGE_SHARE, TABLE_SHARE = 0.99, 0.7
"""Default share of the variance that is whitened in embeddings of images and of tables."""
LEAST_ROWS = 10_000
"""Training rows from which embeddings of tables are whitened by default: with fewer, heads on
whitened embeddings are less accurate."""


def choose_share(share: float | None, image: bool, rows: int) -> float:
    """Return the configured share of the variance, or the default for these training rows."""
    if share is not None:
        return share
    if image:
        return IMAGE_SHARE
    return TABLE_SHARE if rows >= LEAST_ROWS else 0.0


class Whitening(nn.Module):
    """The identity until it is fitted, and in training."""

    matrix: Tensor
    mean: Tensor

    def __init__(self, width: int, runs: int = 1) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(width).repeat(runs, 1, 1))
        self.register_buffer("mean", torch.zeros(runs, 1, width))

    @classmethod
    def stack(cls, layers: Sequence["Whitening"]) -> "Whitening":
        """Return the layer of several runs, not fitted."""
        return cls(layers[0].matrix.shape[-1], len(layers))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the state; nets of version 0.3 have no whitening."""
        for name, value in self.named_buffers():
            state.setdefault(prefix + name, value)
        super()._load_from_state_dict(state, prefix, *args)

    def forward(self, x: Tensor) -> Tensor:
        """Whiten embeddings in [-1, 1]. (R·B, d)"""
        if self.training:
            return x
        with torch.autocast(x.device.type, enabled=False):
            if len(self.matrix) == 1:
                return ((x.float() - self.mean[0]) @ self.matrix[0]).clamp(-1, 1)
            rows = x.float().view(len(self.matrix), -1, x.shape[-1])
            return ((rows - self.mean) @ self.matrix).clamp(-1, 1).view(x.shape)

    def fit(self, run: int, x: Tensor, share: float, rng: torch.Generator) -> None:
        """Fit the layer of one run to embeddings (n, d).

        The largest principal components, with a `share` of the variance together, get the same
        variance. The others are scaled like the last one of these.
        """
        x = x.double()
        mean = x.mean(0, keepdim=True)
        x = x - mean
        variances, directions = torch.linalg.eigh(x.T @ x / len(x))
        variances = variances.clamp(min=1e-12)
        largest = variances.flip(0)
        count = int((largest.cumsum(0) < share * largest.sum()).sum())
        floor = largest[min(count, len(largest) - 1)]
        noise = torch.randn(directions.shape, generator=rng, dtype=torch.float64)
        rotation = torch.linalg.qr(noise)[0].to(x.device)
        matrix = directions * variances.clamp(min=float(floor)).rsqrt() @ rotation
        matrix *= SPREAD / (x @ matrix).square().mean().sqrt()
        self.matrix[run], self.mean[run] = matrix.float(), mean.float()
