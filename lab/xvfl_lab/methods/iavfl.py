"""IAVFL: knowledge distillation from a joint teacher to one student per party.

Z. Ren, L. Yang, K. Chen. Improving availability of vertical federated learning: relaxing inference
on non-overlapping data. 2022. Only the idea is public: the other parties' features are privileged,
present in training and absent at inference. The teacher is
vanilla VFL on the aligned rows; party i's student is trained on aligned rows by
(1−α)·ℓ(s_i, y) + α·T²·KL(teacher at T ‖ s_i at T), and by ℓ(s_i, y) on its other full
rows. Teacher and students train at the same time; no gradient flows from students to the teacher.
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
        self,
        teacher: ConcatHead,
        students: nn.ModuleList,
        alpha: float = 0.5,
        temperature: float = 2.0,
    ) -> None:
        """Take the teacher's head and one head per student; `alpha` is α, `temperature` T."""
        self.heads: nn.Module = nn.ModuleDict({"teacher": teacher, "students": students})
        self._teacher, self._students = teacher, students
        self.alpha, self.temperature = alpha, temperature

    def select_parties(self, parties: Sequence[int]) -> "IAVFL":
        """Return the method for a subset of the parties; the teacher gets zeros (D7)."""
        students = nn.ModuleList([self._students[i] for i in parties])
        teacher = self._teacher.select_parties(parties)
        return IAVFL(teacher, students, self.alpha, self.temperature)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the teacher's loss and the sum of the students' losses."""
        E = federation.embed(rows, ["plain"], rows.full.unsqueeze(2))[:, :, 0]
        for_teacher, for_student = E.chunk(2, -1)
        aligned = rows.full.all(1)
        teacher = self._teacher(for_teacher.flatten(1))
        students = torch.stack(
            [head(for_student[:, i]) for i, head in enumerate(self._students)], 1
        )
        hard = maths.cross_entropy(students, rows.y)
        soft = divergence(teacher.detach().unsqueeze(1), students, self.temperature)
        distilled = (1 - self.alpha) * hard + self.alpha * soft
        of_students = torch.where(aligned.unsqueeze(1), distilled, hard) * rows.full
        per_row = {
            "teacher": maths.cross_entropy(teacher, rows.y) * aligned,
            "students": of_students.sum(1),
        }
        return {name: (term * rows.weight).mean() for name, term in per_row.items()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits of the teacher from observed parties, or of one student. (B, C)"""
        for_teacher, for_student = federation.embed(rows, ["plain"])[:, :, 0].chunk(2, -1)
        if mode == "local":
            student: Tensor = self._students[party](for_student[:, party])
            return student
        teacher: Tensor = self._teacher(maths.concat_members(for_teacher, rows.seen))
        return teacher


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Compute T²·KL(teacher at T ‖ student at T) of logits (B, …, C). (B, …)"""
    target = F.log_softmax(teacher / temperature, -1)
    output = F.log_softmax(student / temperature, -1)
    return temperature**2 * (target.exp() * (target - output)).sum(-1)
