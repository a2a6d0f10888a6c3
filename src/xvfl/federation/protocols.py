"""What training needs of a federation, wherever its parties are, and a party of its own store."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import Tensor, nn

from xvfl.config import TrainConfig
from xvfl.data.rows import Rows
from xvfl.federation.holder import Holder, Update
from xvfl.methods.base import Method, Work

T = TypeVar("T")


class Reached(Protocol):
    """A federation some of whose parties may be away."""

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody's names, in the order of the rows' columns."""

    def train(self, on: bool) -> None:
        """Switch every party's net to training or to prediction."""

    def attempt(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch with the parties that can be reached (D7).

        Where the work needs one party alone, the others need not be asked.
        """


class Trained(Reached, Protocol):
    """A federation whose parties keep and update their own weights."""

    @property
    def holders(self) -> Mapping[str, Holder]:
        """The parties' holders, those of them that are in this process."""

    def begin(self, config: TrainConfig, heads: nn.Module) -> Holder:
        """Give every party its optimiser; hold the coordinator's heads."""

    def update(self, update: Update) -> None:
        """Have every party update its weights from the gradients of the last `backward`."""


class Store(Protocol):
    """Where a party keeps its checkpoints."""

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], applied: int) -> None:
        """Keep a checkpoint."""

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        """Give the newest one of a run at or before a step: its step, tensors, last update."""
