"""A party's worker: its nets, its rows, and the views of the rows that it embeds.

Shapes: B rows, p encoded columns, d embedding width, v views. With several members the rows of a
batch are repeated for each; members that share their inputs encode and mask them once. A *copy* of
a row is the row with one mask of observed features: as observed, or with additional features
dropped.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from xvfl.methods.base import View
from xvfl.nets.party_net import PartyNet
from xvfl.nets.row_wise import apply_to_rows, row_wise
from xvfl.primitives.augment import shift_images
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG, seed_modules
from xvfl.primitives.rows import Table
from xvfl.training.optimizer import OptimizedNet


class PartyWorker:
    """Compute a party's part of a batch: embed its rows, complete them from cues.

    Parameters
    ----------
    name
        Name of the party.
    net
        Bottom, completer and embeddings of hashed categories. With several seeds it is a stack.
    table
        The party's encoded rows.
    seeds
        Seed of each run that is trained at once, and of each of its members; rows are ordered
        member by member.
    reconstruction
        Weight of the reconstruction loss, the party's own objective.
    image_shift
        Largest random shift of images in training, as a share of their height and width.
    unmasked
        Share of the masked copies that keep all features, for each seed or for all.
    """

    def __init__(
        self,
        name: str,
        net: PartyNet,
        table: Table,
        seeds: Sequence[int],
        reconstruction: float = 0.0,
        image_shift: float = 0.0,
        unmasked: float | Sequence[float] = 0.0,
    ) -> None:
        self.name = name
        self.net = net
        self.table = table
        self.seeds = tuple(seeds)
        self._draws: list[CounterRNG] = []
        self._image_shift = image_shift if net.layout.image is not None else 0.0
        self._shifts = CounterRNG(self.seeds, name, "shift")
        by_seed = unmasked if isinstance(unmasked, Sequence) else [unmasked] * len(self.seeds)
        self._unmasked = torch.tensor(by_seed, device=table.device)[:: net.members]
        self.reconstruction = reconstruction
        self.row_wise = all(row_wise(each) for each in (net.bottom, net.completer))
        self.optimized_net: OptimizedNet | None = None
        """The net with its optimizer, once training has begun."""
        self.objective: Tensor | None = None
        """Loss that the party adds to the coordinator's for the last batch, if any."""

    def embed(
        self,
        handles: Tensor,
        views: Sequence[View],
        step: int | Tensor,
        needed: Tensor | None = None,
    ) -> Tensor:
        """Embed the rows in each view. (B, v, d)

        `plain`: as observed; `masked`: with more features dropped at random, in training only;
        `self`: a masked row completed from its own embedding. The n-th `self` view uses the mask of
        the n-th `masked` view. Where `needed` (B, v) is False, the result is arbitrary.
        """
        self._seed(step, "embed")
        rows = self.table.take(self.net.first_of_members(handles))
        needed = None if needed is None else self.net.first_of_members(needed)
        if self._image_shift and self.net.training:
            uniform = self._shifts.uniform(step, len(rows), 2, rows.device)
            rows = shift_images(rows, uniform, self._image_shift)
        self._x, self._observed, self._step = self.net.encode(rows), rows.observed, step
        self.objective = None
        n_masks = self._n_masks = max(views.count("masked"), views.count("self"))
        masked = [self._sample_mask(rows.observed, step, number) for number in range(n_masks)]
        masks = [rows.observed, *masked] if "plain" in views else masked
        used = self._used_copies(views, needed, n_masks)
        copies = self._embed_copies(masks, used)
        if len(views) == len(masks) == 1 and "self" not in views:
            return copies[0].unsqueeze(1)
        own: Sequence[Tensor] = ()
        if "self" in views:
            cue = _interleave(copies[-n_masks:])
            hidden = self.net.repeat_for_members(_interleave(masked))
            if used is not None and needed is not None:
                places = [i for i, view in enumerate(views) if view == "self"]
                used = self.net.repeat_for_members(_columns(needed, places))
            completed = self._complete(cue, hidden, used, own_cue=True)
            own = completed.view(len(handles), n_masks, completed.shape[-1]).unbind(1)
        masked_copies = iter(copies[len(copies) - n_masks :])
        by_view = {"plain": iter(copies), "masked": masked_copies, "self": iter(own)}
        return torch.stack([next(by_view[view]) for view in views], 1)

    def _embed_copies(self, masks: Sequence[Tensor], used: Tensor | None) -> Sequence[Tensor]:
        """Embed the rows with each mask; `used` is (B, masks). (M·B, d) each"""
        if not self.net.training:
            # Masks are drawn in training only: all copies are equal.
            used = None if used is None else used.any(1, keepdim=True)
            E = self.net.embed_rows(used, self.net.given(self._x, masks[0]))
            return [E] * len(masks)
        x = self.net.given(_repeat(self._x, len(masks)), _interleave(masks))
        E = self.net.embed_rows(used, x)
        return E.view(len(E) // len(masks), len(masks), E.shape[-1]).unbind(1)

    def complete(
        self, cue: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the rows of the last `embed`, completed from a cue. (B, d)

        Rows with `replace_observed` (B,) take all features from the completer, also observed ones.
        A completer that sees features gets these rows with features dropped at random, and
        completes the dropped ones. Where `needed` (B,) is False, the result is arbitrary.
        """
        self._seed(self._step, "complete")
        used = needed.unsqueeze(1) if needed is not None and self.row_wise else None
        kept = torch.zeros_like(self._observed)
        if self.net.completer_sees:
            kept = self._drop(self._observed, self._step, self._n_masks)
        kept, observed = (self.net.repeat_for_members(each) for each in (kept, self._observed))
        observed = torch.where(replace_observed.unsqueeze(1), kept, observed)
        return self._complete(cue, observed, used, own_cue=False)

    def _seed(self, step: int | Tensor, purpose: str) -> None:
        """Seed dropout in training; nets that work row by row have none.

        Another thread of the process may draw random numbers while this one predicts.
        """
        if self.net.training and not self.row_wise:
            seed_modules(self.table.device, self.seeds[0], self.name, step, purpose)

    def _used_copies(
        self, views: Sequence[View], needed: Tensor | None, n_masks: int
    ) -> Tensor | None:
        """Return which copies the needed views use: plain, then the masked ones. (B, copies)"""
        if needed is None or not self.row_wise:
            return None
        used = [needed[:, i] for i, view in enumerate(views) if view == "plain"]
        kinds = [[i for i, view in enumerate(views) if view == kind] for kind in ("masked", "self")]
        for number in range(n_masks):
            places = [each[number] for each in kinds if number < len(each)]
            used.append(_columns(needed, places).any(1))
        return torch.stack(used, 1)

    def _sample_mask(self, observed: Tensor, step: int | Tensor, number: int) -> Tensor:
        """Sample the mask of a copy; a share of the copies keeps all features."""
        unmasked = self._unmasked.view(-1, 1).expand(-1, len(observed) // len(self._unmasked))
        return self._drop(observed, step, number, unmasked.reshape(-1, 1))

    def _drop(
        self, observed: Tensor, step: int | Tensor, number: int, unmasked: float | Tensor = 0.0
    ) -> Tensor:
        """Drop features at random, in training only."""
        if not self.net.training:
            return observed
        while len(self._draws) <= number:
            of_runs = self.seeds[:: self.net.members]
            self._draws.append(CounterRNG(of_runs, self.name, "mask", len(self._draws)))
        rows, raw = observed.shape
        uniform = self._draws[number].uniform(step, rows, 1 + raw, observed.device)
        return drop_features(observed, uniform, unmasked)

    def _complete(
        self, cue: Tensor, observed: Tensor, used: Tensor | None, own_cue: bool
    ) -> Tensor:
        """Embed copies of the rows, completed from their cues where not `observed`.

        `cue`, `observed` and the result have one row per copy and member; `used` is (M·B, copies).
        Only into an own cue, which is this party's embedding, the reconstruction loss sends a
        gradient.
        """
        x, known = (self.net.repeat_for_members(each) for each in (self._x, self._observed))
        n_copies = len(cue) // max(len(x), 1)
        reconstructs = self.reconstruction > 0 and self.net.training
        needed = used if used is None or not reconstructs else used | known.any(1, keepdim=True)
        x, known = _repeat(x, n_copies), _repeat(known, n_copies)
        inputs = self.net.completer_inputs(x, observed, cue)
        completed = self._apply(self.net.completer, needed, *inputs)
        if reconstructs:
            reconstructed = completed
            if not own_cue and cue.requires_grad:
                # The coordinator receives the gradient of the cue: keep this loss out of it.
                inputs = (cue.detach(), *inputs[1:])
                reconstructed = self._apply(self.net.completer, needed, *inputs)
            loss = self._reconstruction_loss(reconstructed, x.detach(), known, observed)
            loss = self.reconstruction * n_copies * loss
            self.objective = loss if self.objective is None else self.objective + loss
        if used is not None and used.device.type == "cpu" and not bool(used.any()):
            return torch.zeros_like(cue)
        merged = self.net.merged(x, observed, completed)
        return self._apply(self.net.bottom, used, merged)

    def _apply(self, net: nn.Module, used: Tensor | None, *inputs: Tensor) -> Tensor:
        stacked = len(self.seeds)
        return apply_to_rows(partial(self.net.compute, net), used, *inputs, stacked=stacked)

    def _reconstruction_loss(
        self, completed: Tensor, x: Tensor, known: Tensor, visible: Tensor
    ) -> Tensor:
        """Mean squared error over the known features of each run, summed over runs.

        A completer that sees features is judged by those that were hidden from it.
        """
        known = known & ~visible if self.net.completer_sees else known
        target = self.net.spread(known).expand_as(completed)
        weight = target.to(completed.dtype)
        error = (completed - x).square() * weight
        by_run = (len(self.seeds), -1)
        return (error.reshape(by_run).sum(1) / weight.reshape(by_run).sum(1).clamp(min=1)).sum()


def _columns(values: Tensor, places: Sequence[int]) -> Tensor:
    """Select columns. A list as an index would be copied to the device: no CUDA graph does that."""
    return torch.stack([values[:, i] for i in places], 1)


def _interleave(copies: Sequence[Tensor]) -> Tensor:
    """Concatenate copies of the rows; the copies of one row are adjacent."""
    return copies[0] if len(copies) == 1 else torch.stack(tuple(copies), 1).flatten(0, 1)


def _repeat(x: Tensor, count: int) -> Tensor:
    """Repeat every row; its copies are adjacent, so that the rows of a run stay together."""
    return x if count == 1 else x.repeat_interleave(count, 0)
