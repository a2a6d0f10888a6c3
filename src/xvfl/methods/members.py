"""Members: several nets of one model, trained at once on the same rows.

Every party has one bottom and completer for each member, the coordinator one head. Members differ
in their first weights and masks. The prediction is the mean of the members' log-probabilities, or
of their numbers.
Shapes: R runs, M members, B rows, C classes.
"""

from collections.abc import Sequence

from torch import Tensor

from xvfl.methods.base import Federation, Method, Mode
from xvfl.primitives.rows import Rows
from xvfl.primitives.seeding import derive_seed
from xvfl.primitives.task import CLASSIFICATION, Task


def member_seeds(seeds: Sequence[int], members: int) -> list[int]:
    """Return the seeds of all members of each run; a single member has the seed of its run."""
    if members == 1:
        return list(seeds)
    return [derive_seed(seed, "member", number) for seed in seeds for number in range(members)]


class Members:
    """A method whose nets are stacks of members.

    Parameters
    ----------
    method
        The method, with stacked heads.
    members
        Number of members of each run.
    task
        What the method predicts: a class or a number.
    """

    def __init__(self, method: Method, members: int, task: Task = CLASSIFICATION) -> None:
        self.method, self.members, self.task = method, members, task
        self.heads, self.modes = method.heads, method.modes

    def select_parties(self, parties: Sequence[int]) -> "Members":
        """Return the method for a subset of the parties."""
        return Members(self.method.select_parties(parties), self.members, self.task)

    def without_completion(self) -> "Members | None":
        """Return the method with missing features zero-filled; None if it never completes them."""
        build = getattr(self.method, "without_completion", None)
        return None if build is None else Members(build(), self.members, self.task)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the mean loss of the members; its gradient is that of their sum."""
        terms = self.method.loss(federation, rows.repeat_for_members(self.members))
        return {
            name: self.members * term - (self.members - 1) * term.detach()
            for name, term in terms.items()
        }

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the mean decisions of the members. (B, C)"""
        repeated = rows.repeat_for_members(self.members)
        out = self.method.logits(federation, repeated, mode, party)
        by_member = self.task.decisions(out).view(rows.runs, self.members, -1, out.shape[-1])
        return by_member.mean(1).flatten(0, 1)
