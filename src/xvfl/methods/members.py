"""Members: several nets of one model, trained at once on the same rows.

Every party has one bottom and completer for each member, the coordinator one head. Members differ
in their first weights, and share masks and encodings of inputs (`build_parties`). The prediction is
the mean of the members' log-probabilities, or of their numbers. Several heads on uploads are
trained alike, but share the parties' encoders.
Shapes: R runs, M members, B rows, C classes.
"""

from collections.abc import Sequence

from torch import Tensor

from xvfl.methods.base import Federation, Method, Mode, View
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
    shared
        Whether all members have the same encoders: they are several heads on one upload.
    """

    def __init__(
        self,
        method: Method,
        members: int,
        task: Task = CLASSIFICATION,
        shared: bool = False,
    ) -> None:
        self.method, self.members, self.task, self.shared = method, members, task, shared
        self.heads, self.modes = method.heads, method.modes

    def select_parties(self, parties: Sequence[int]) -> "Members":
        """Return the method for a subset of the parties."""
        return self.of(self.method.select_parties(parties))

    def of(self, method: Method) -> "Members":
        """Return these members of another method."""
        return Members(method, self.members, self.task, self.shared)

    def prediction_federation(self, federation: Federation) -> Federation:
        """Return the federation that embeds the repeated rows of a prediction."""
        return SharedEmbeddings(federation, self.members) if self.shared else federation

    def without_completion(self) -> "Members | None":
        """Return the method with missing features zero-filled; None if it never completes them."""
        build = getattr(self.method, "without_completion", None)
        return None if build is None else self.of(build())

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
        out = self.method.logits(self.prediction_federation(federation), repeated, mode, party)
        by_member = self.task.decisions(out).view(rows.runs, self.members, -1, out.shape[-1])
        return by_member.mean(1).flatten(0, 1)


class SharedEmbeddings:
    """A federation whose rows are repeated for several heads: it embeds each row once."""

    def __init__(self, federation: Federation, heads: int) -> None:
        self._federation, self._heads = federation, heads
        self.names = federation.names

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed each row once, and repeat its embeddings. (B, k, v, d)"""
        once = rows.first_of_members(self._heads)
        E = self._federation.embed(once, views)
        by_run = E.view(once.runs, 1, -1, *E.shape[1:])
        return by_run.expand(-1, self._heads, *by_run.shape[2:]).flatten(0, 2)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Raise an error: heads on uploads complete nothing."""
        raise NotImplementedError("uploads are not completed from cues")

    def backward(self, loss: Tensor) -> None:
        """Raise an error: it only predicts."""
        raise NotImplementedError("this federation only predicts")
