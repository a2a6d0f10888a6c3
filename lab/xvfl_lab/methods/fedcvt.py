"""FedCVT: a missing party's representation is estimated by attention over aligned rows.

Y. Kang, Y. Liu, X. Liang. FedCVT: semi-supervised vertical federated learning with cross-view
training. 2020. Two parties, each with two equally wide nets: u_i, unique to the party, and c_i,
common to both; its representation is R_i = [u_i; c_i]. Where party i does not hold a row in full,
R_i is estimated from its peer j and a reference of aligned rows r:
    û_i = Σ_r a_r u_i(r),  a = sharpened softmax of u_j · u_j(r) / √d
    ĉ_i = Σ_r a_r c_i(r),  a = sharpened softmax of c_j · c_i(r) / √d
Sharpening, p^(1/T) made to sum to 1, is a softmax at temperature T. In training the reference is
the batch without the row itself; for prediction, `ReferenceMemory` stores the latest aligned
rows.

Three classifiers: a joint one on [R_0; R_1], observed or estimated, and one for each party.
Shapes: B rows, two parties, d width of u and c, w = 2·d, N rows of reference, C classes. Rows of
several runs are stacked (`Rows.runs`): whatever compares rows splits them into (runs, B/runs, …)
first, so that a run sees its own rows alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.methods.base import Federation, Mode
from xvfl.primitives.rows import Rows


@dataclass(frozen=True)
class FedCVTConfig:
    """Weights of the auxiliary losses, and T; values of the public implementation."""

    common: float = 0.1
    orthogonal: float = 0.01
    representation: float = 0.5
    sharpening: float = 0.5


class ReferenceMemory(nn.Module):
    """Representations of the latest aligned rows, stored with the heads for prediction.

    The buffers have `size` slots for each run; `valid` marks the used ones.
    """

    rows: Tensor
    valid: Tensor

    def __init__(self, width: int, size: int = 256, runs: int = 1) -> None:
        """Allocate `size` rows for each run; w is `width`."""
        super().__init__()
        self.register_buffer("rows", torch.zeros(runs, size, 2, width))
        self.register_buffer("valid", torch.zeros(runs, size, dtype=torch.bool))

    @torch.no_grad()
    def refresh(self, R: Tensor, aligned: Tensor) -> None:
        """Insert aligned rows (runs, B, 2, w) before older ones; drop rows beyond `size`."""
        rows, valid = torch.cat([R, self.rows], 1), torch.cat([aligned, self.valid], 1)
        size = self.valid.shape[1]
        first = valid.byte().argsort(dim=1, descending=True, stable=True)[:, :size]
        slots = first[..., None, None].expand(-1, -1, *R.shape[2:])
        self.rows.copy_(rows.gather(1, slots))
        self.valid.copy_(valid.gather(1, first))


class FedCVT:
    """Predict jointly, with missing representations estimated, or by one party's classifier."""

    modes = frozenset[Mode](("local", "collaborative"))

    def __init__(
        self,
        joint: nn.Module,
        own: nn.ModuleList,
        memory: ReferenceMemory,
        config: FedCVTConfig,
        reachable: Sequence[int] = (0, 1),
    ) -> None:
        """Take a head over 4·d numbers, one over 2·d for each party, and the memory."""
        self.heads: nn.Module = nn.ModuleDict({"joint": joint, "own": own, "memory": memory})
        self._joint, self._own, self._memory = joint, own, memory
        self.config = config
        self.reachable = tuple(reachable)

    def select_parties(self, parties: Sequence[int]) -> "FedCVT":
        """Return the method for a subset; the other party is estimated from the memory (D7)."""
        at = [self.reachable[i] for i in parties]
        return FedCVT(self._joint, self._own, self._memory, self.config, at)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the classifiers' losses and the three auxiliary losses."""
        R, full = self._both(federation.embed(rows, ["plain"])[:, :, 0]), self._both(rows.full)
        counts = (rows.weight > 0).unsqueeze(1)
        aligned = full.all(1)
        block, held = by_run(R, rows.runs), by_run(full & counts, rows.runs)
        if self.heads.training:
            self._memory.refresh(block.detach(), held.all(-1))
        valid = others(held.all(-1))
        R_ = estimate(block, block, valid, self.config.sharpening).flatten(0, 1)
        has_reference = valid.any(-1).flatten()
        joint = self._joint(torch.where(full.unsqueeze(-1), R, R_).flatten(1))
        own = torch.stack([head(R[:, i]) for i, head in enumerate(self._own)], 1)
        per_row = {
            "joint": maths.cross_entropy(joint, rows.y) * (aligned | full.any(1) & has_reference),
            "own": (maths.cross_entropy(own, rows.y) * full).sum(1),
            "common": self.config.common * common(R) * aligned,
            "representation": self.config.representation
            * (R_ - R).square().mean(-1).sum(1)
            * (aligned & has_reference),
        }
        terms = {name: (term * rows.weight).mean() for name, term in per_row.items()}
        return terms | {"orthogonal": self.config.orthogonal * orthogonal(block, held).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits of one party's classifier, or of the joint one. (B, C)"""
        R = self._both(federation.embed(rows, ["plain"])[:, :, 0])
        if mode == "local":
            at = self.reachable[party]
            local: Tensor = self._own[at](R[:, at])
            return local
        real = maths.sources(self._both(rows.full), self._both(rows.seen))
        memory, block = self._memory, by_run(R, rows.runs)
        R_ = estimate(block, memory.rows, memory.valid.unsqueeze(1), self.config.sharpening)
        R_ = R_.flatten(0, 1)
        joint: Tensor = self._joint(torch.where(real.unsqueeze(-1), R, R_).flatten(1))
        return joint

    def _both(self, x: Tensor) -> Tensor:
        """Insert zeros for the party that is not reachable. (B, 2, …)"""
        each = dict(zip(self.reachable, x.unbind(1), strict=True))
        empty = torch.zeros_like(x[:, 0])
        return torch.stack([each.get(0, empty), each.get(1, empty)], 1)


def by_run(x: Tensor, runs: int) -> Tensor:
    """Split stacked rows (B, …) by the run they belong to. (runs, B/runs, …)"""
    return x.reshape(runs, -1, *x.shape[1:])


def others(aligned: Tensor) -> Tensor:
    """Return the reference rows of each row: all aligned rows but itself. (runs, B, B)"""
    itself = torch.eye(aligned.shape[1], dtype=torch.bool, device=aligned.device)
    return aligned.unsqueeze(1) & ~itself


def estimate(R: Tensor, reference: Tensor, valid: Tensor, sharpening: float) -> Tensor:
    """Estimate each party's representation from its peer's; 0 without a reference. (runs, B, 2, w)

    R (runs, B, 2, w); reference (runs, N, 2, w); valid (runs, B or 1, N).
    """
    u, c = R.transpose(1, 2).flip(1).chunk(2, -1)
    u_ref, c_ref = reference.transpose(1, 2).chunk(2, -1)
    allowed = valid.unsqueeze(1)
    unique = attend(u, u_ref.flip(1), u_ref, allowed, sharpening)
    shared = attend(c, c_ref, c_ref, allowed, sharpening)
    return torch.cat([unique, shared], -1).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, sharpening: float) -> Tensor:
    """Average the allowed values by sharpened attention; 0 where none is allowed. (…, B, d)

    Query (…, B, d); key and value (…, N, d); allowed (…, B or 1, N).
    """
    score = query @ key.transpose(-1, -2) / (math.sqrt(key.shape[-1]) * sharpening)
    # The lowest finite number: a row of −inf would make softmax and gradient NaN.
    score = score.masked_fill(~allowed, torch.finfo(score.dtype).min)
    return score.softmax(-1) @ value * allowed.any(-1, keepdim=True)


def common(R: Tensor) -> Tensor:
    """Compute the distance of the parties' common halves: mse(c_0, c_1). (B,)"""
    c = R.chunk(2, -1)[1]
    return (c[:, 0] - c[:, 1]).square().mean(-1)


def orthogonal(R: Tensor, held: Tensor) -> Tensor:
    """Compute the overlap of u and c: ‖U Cᵀ‖_F / n over the n full rows of each party. (runs,)

    R (runs, B, 2, w), held (runs, B, 2). ‖U Cᵀ‖² is computed as the sum of UᵀU ⊙ CᵀC.
    """
    n = held.sum(1).clamp(min=1)
    U, C = (R * held.unsqueeze(-1)).transpose(1, 2).chunk(2, -1)
    square = ((U.mT @ U) * (C.mT @ C)).sum((-2, -1))
    # The lower bound keeps the gradient of the root finite if no row is held.
    return (square.clamp(min=1e-12).sqrt() / n).sum(1)
