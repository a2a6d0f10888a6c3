"""Vanilla VFL: one head over concatenated embeddings, trained on aligned rows only.

Split learning without a treatment of missing features: they are zero-filled, and so is the
embedding of a party that observed nothing of a row.
Shapes: B rows, k parties, d embedding width, C classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from xvfl import maths
from xvfl.methods.base import Federation, Mode
from xvfl.nets import ConcatHead
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task


class Vanilla:
    """One head over the embeddings of all parties."""

    modes = frozenset[Mode](("local", "collaborative"))

    def __init__(self, head: ConcatHead, task: Task = CLASSIFICATION) -> None:
        """Take a head over k·d numbers."""
        self.heads: nn.Module = head
        self.task = task
        self._head = head

    def select_parties(self, parties: Sequence[int]) -> "Vanilla":
        """Return the method for a subset of the parties; others are zeros (D7)."""
        return Vanilla(self._head.select_parties(parties), self.task)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the loss of the aligned rows."""
        aligned = rows.full.all(1)
        needed = aligned.view(-1, 1, 1).expand(*rows.full.shape, 1)
        E = federation.embed(rows, ["plain"], needed)[:, :, 0]
        joint = self.task.loss(self.heads(E.flatten(1)), rows.y)
        return {"joint": (joint * (rows.weight * aligned)).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits from the observed parties' embeddings, or one party's. (B, C)"""
        E = federation.embed(rows, ["plain"])[:, :, 0]
        if mode == "local":
            local: Tensor = self.heads(maths.place_in_blocks(E)[:, party])
            return local
        joint: Tensor = self.heads(maths.concat_members(E, rows.seen))
        return joint
