"""A party whose upload the coordinator has stored: embeddings are looked up, not computed.

Shapes: n stored rows, c masked copies, B rows of a batch, v views, d embedding width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xvfl.errors import RunError
from xvfl.methods.base import View
from xvfl.primitives.random import CounterRNG
from xvfl.training.optimizer import OptimizedNet


class NoWeights(nn.Module):
    """The net of a stored party: it has no weights to train."""


class StoredParty:
    """The upload of one party; takes the place of a `PartyWorker` in a federation.

    Parameters
    ----------
    name
        Name of the party.
    views : Tensor of shape (n, 1 + c, d)
        Uploaded embeddings by handle: as observed, then masked copies.
    seeds
        One seed for each head (and stacked run); they choose copies independently.
    unmasked
        Share of the masked views that are the row as observed, for each seed.
    """

    objective: Tensor | None = None
    row_wise = True

    def __init__(
        self,
        name: str,
        views: Tensor,
        seeds: Sequence[int],
        unmasked: Sequence[float],
    ) -> None:
        self.name, self.views = name, views
        self.net = NoWeights()
        self.optimized_net: OptimizedNet | None = None
        self._draws = CounterRNG(seeds, name, "copy")
        self._unmasked = torch.tensor(unmasked, device=views.device)

    def embed(
        self,
        handles: Tensor,
        views: Sequence[View],
        step: int | Tensor,
        needed: Tensor | None = None,
    ) -> Tensor:
        """Look up rows in each view; rows that the party does not hold are arbitrary. (B, v, d)

        In training, a `masked` view is a stored copy chosen at random; else it is the row as
        observed.
        """
        if "self" in views:
            raise RunError(f"party {self.name!r}: an upload has no self-completed view")
        plain = torch.zeros(len(handles), dtype=torch.long, device=self.views.device)
        n_copies, n_masked = self.views.shape[1] - 1, views.count("masked")
        masked = iter([plain] * n_masked)
        if self.net.training and n_copies and n_masked:
            masked = iter(self._choose(len(handles), n_masked, n_copies, step).unbind(1))
        copy = torch.stack([next(masked) if view == "masked" else plain for view in views], 1)
        at = handles.clamp(min=0).unsqueeze(1).to(self.views.device)
        return self.views[at, copy].to(handles.device, torch.float32)

    def _choose(self, rows: int, n_masked: int, n_copies: int, step: int | Tensor) -> Tensor:
        """Choose a copy for each masked view of each row; 0 is the row as observed. (B, m)"""
        uniform = self._draws.uniform(step, rows, 2 * n_masked, self.views.device)
        by_row = self._unmasked.view(-1, 1).expand(-1, rows // len(self._unmasked))
        chosen = 1 + (uniform[:, 1::2] * n_copies).long().clamp(max=n_copies - 1)
        return torch.where(uniform[:, ::2] < by_row.reshape(-1, 1), 0, chosen)

    def complete(
        self, cue: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Raise an error: the coordinator has no completers."""
        raise RunError(f"party {self.name!r}: an upload cannot be completed from a cue")
