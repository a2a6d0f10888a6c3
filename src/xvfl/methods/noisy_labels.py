"""Label protection by noise: parties receive the gradients of a loss with noisy labels.

The heads learn from the true labels: their gradients stay with the coordinator. The embeddings get
the gradients of the same loss with noisy labels. A row has the same noise in every step, so that
averaging over steps does not remove it. This is the randomized-label family of label differential
privacy, with Gaussian noise.
Shapes: B rows, k parties, C classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from xvfl.methods.base import Federation, Method, Mode, View
from xvfl.primitives.random import CounterRNG
from xvfl.primitives.rows import Rows


class NoisyLabels:
    """A method whose parties are trained with noisy labels.

    Parameters
    ----------
    method
        The method to protect.
    std
        Standard deviation of the noise on one-hot labels, or on standardized numbers.
    n_classes
        Number of classes; 1 for numbers.
    seeds
        Seed of the noise of each run that is trained at once.
    """

    def __init__(self, method: Method, std: float, n_classes: int, seeds: Sequence[int]) -> None:
        self.method, self.std, self.n_classes, self.seeds = method, std, n_classes, tuple(seeds)
        self.heads, self.modes = method.heads, method.modes
        self._rng = CounterRNG(seeds, "label noise")

    def select_parties(self, parties: Sequence[int]) -> "NoisyLabels":
        """Return the method for a subset of the parties."""
        selected = self.method.select_parties(parties)
        return NoisyLabels(selected, self.std, self.n_classes, self.seeds)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the loss of true labels for the heads, of noisy ones for the parties."""
        recorded = _Recording(federation)
        with _frozen(self.heads):
            noisy = self.method.loss(recorded, replace(rows, y=self.noisy_labels(rows)))
        true = self.method.loss(_Replay(recorded), rows)
        # Only the gradient of the noisy loss counts; its value would hide the true one.
        return {name: true[name] + noisy[name] - noisy[name].detach() for name in true}

    def noisy_labels(self, rows: Rows) -> Tensor:
        """Add noise to one-hot labels; the classes of a row still sum to 1. (B, C)

        Unlabeled rows get zeros, so that their cross-entropy is 0. Noise is added to numbers as
        they are, (B,): `std` then counts standard deviations of the target.
        """
        uniform = self._rng.uniform_by_key(_row_keys(rows), 2 * self.n_classes)
        radius = (-2 * torch.log1p(-uniform[:, : self.n_classes])).sqrt()
        noise = radius * torch.cos(2 * torch.pi * uniform[:, self.n_classes :])
        if rows.y.is_floating_point():
            return rows.y + self.std * noise[:, 0].to(rows.y.dtype)
        centered = noise - noise.mean(1, keepdim=True)
        one_hot = nn.functional.one_hot(rows.y.clamp(min=0), self.n_classes)
        noisy = one_hot.to(rows.weight.dtype) + self.std * centered.to(rows.weight.dtype)
        return noisy * (rows.y >= 0).unsqueeze(1)

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits of a batch."""
        return self.method.logits(federation, rows, mode, party)


def _row_keys(rows: Rows) -> Tensor:
    """Combine a row's handles into one number. (B,)"""
    keys = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for handles in rows.handles.to(rows.device).long().unbind(1):
        keys = keys * 2147483659 + handles
    return keys


class _Recording:
    """Passes calls on to a federation and records the results."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.outputs: list[Tensor] = []

    @property
    def names(self) -> tuple[str, ...]:
        return self.federation.names

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        return self._record(self.federation.embed(rows, views, needed))

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        return self._record(self.federation.complete(cues, replace_observed, needed))

    def backward(self, loss: Tensor) -> None:
        self.federation.backward(loss)

    def _record(self, output: Tensor) -> Tensor:
        self.outputs.append(output)
        return output


class _Replay(_Recording):
    """Returns recorded results as constants."""

    def __init__(self, recorded: _Recording) -> None:
        super().__init__(recorded.federation)
        self._results = iter(recorded.outputs)

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        return next(self._results).detach()

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        return next(self._results).detach()


@contextmanager
def _frozen(net: nn.Module) -> Iterator[None]:
    """Keep weights out of the gradient of what is computed meanwhile."""
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)
