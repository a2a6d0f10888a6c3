"""IAVFL: students that know alone what the parties know together.

Z. Ren, L. Yang, K. Chen. Improving availability of vertical federated learning: relaxing inference
on non-overlapping data. 2022. Only the idea is public: the other parties' features are privileged,
present in training and absent at inference. A teacher, vanilla VFL on the aligned rows, decides
with all of them; party i's student learns from it on aligned rows by
(1−α)·ℓ(s_i, y) + α·T²·KL(teacher at T ‖ s_i at T), and from the labels on its other full rows.
The teacher learns beside its students, who take its word as given: they send it no gradient.
Shapes: B rows, k parties, d embedding width, C classes. A party's embedding is 2·d wide: the
teacher's half, then the student's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xvfl import maths
from xvfl.methods.base import Federation, Mode
from xvfl.nets import ConcatHead
from xvfl.primitives.rows import Rows


class IAVFL:
    """A teacher over all parties, a student at each."""

    modes = frozenset[Mode](("local", "collaborative"))

    def __init__(
        self, teacher: ConcatHead, students: nn.ModuleList, share: float, temperature: float
    ) -> None:
        """Take the teacher's head and one head per student; `share` is α, `temperature` T."""
        self.heads: nn.Module = nn.ModuleDict({"teacher": teacher, "students": students})
        self._teacher, self._students = teacher, students
        self.share, self.temperature = share, temperature

    def select_parties(self, parties: Sequence[int]) -> "IAVFL":
        """Leave the reachable parties' students, and zeros for the others before the teacher."""
        students = nn.ModuleList([self._students[i] for i in parties])
        return IAVFL(self._teacher.select_parties(parties), students, self.share, self.temperature)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Name the teacher's loss and the sum of the students'."""
        taught, own = federation.embed(rows, ["plain"], rows.full.unsqueeze(2))[:, :, 0].chunk(
            2, -1
        )
        aligned = rows.full.all(1)
        teacher = self._teacher(taught.flatten(1))
        students = torch.stack([head(own[:, i]) for i, head in enumerate(self._students)], 1)
        wrong = maths.cross_entropy(students, rows.y)
        apart = distance(teacher.detach().unsqueeze(1), students, self.temperature)
        told = (1 - self.share) * wrong + self.share * apart
        alone = torch.where(aligned.unsqueeze(1), told, wrong) * rows.full
        per_row = {
            "teacher": maths.cross_entropy(teacher, rows.y) * aligned,
            "students": alone.sum(1),
        }
        return {name: (term * rows.weight).mean() for name, term in per_row.items()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch by the teacher from what was seen, or by one student. (B, C)"""
        taught, own = federation.embed(rows, ["plain"])[:, :, 0].chunk(2, -1)
        if mode == "local":
            alone: Tensor = self._students[party](own[:, party])
            return alone
        together: Tensor = self._teacher(maths.concat_members(taught, rows.seen))
        return together


def distance(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Measure T²·KL(teacher at T ‖ student at T) of logits (B, …, C). (B, …)"""
    wanted = F.log_softmax(teacher / temperature, -1)
    found = F.log_softmax(student / temperature, -1)
    return temperature**2 * (wanted.exp() * (wanted - found)).sum(-1)
