"""Vanilla VFL: embeddings side by side under one head, trained on aligned rows alone.

What split learning does without a thought for missing features: a gap is zero-filled, and a party
that saw nothing of a row gives zeros for its embedding.
Shapes: B rows, k parties, d embedding width, C classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from xvfl import maths
from xvfl.methods.base import Federation, Mode
from xvfl.nets import ConcatHead
from xvfl.primitives.rows import Rows


class Vanilla:
    """One head over all embeddings."""

    modes = frozenset[Mode](("local", "collaborative"))

    def __init__(self, head: ConcatHead) -> None:
        """Take the head over k·d numbers."""
        self.heads: nn.Module = head
        self._head = head

    def select_parties(self, parties: Sequence[int]) -> "Vanilla":
        """Leave zeros in the places of the parties that cannot be reached (D7)."""
        return Vanilla(self._head.select_parties(parties))

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Take the joint cross-entropy of the aligned rows."""
        aligned = rows.full.all(1)
        wanted = aligned.view(-1, 1, 1).expand(*rows.full.shape, 1)
        E = federation.embed(rows, ["plain"], wanted)[:, :, 0]
        joint = maths.cross_entropy(self.heads(E.flatten(1)), rows.y)
        return {"joint": (joint * (rows.weight * aligned)).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch from what was seen, or from one party's embedding alone. (B, C)"""
        E = federation.embed(rows, ["plain"])[:, :, 0]
        if mode == "local":
            out: Tensor = self.heads(maths.place_in_blocks(E)[:, party])
            return out
        together: Tensor = self.heads(maths.concat_members(E, rows.seen))
        return together
