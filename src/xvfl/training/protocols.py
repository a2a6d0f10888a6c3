"""What training and prediction need of a federation, wherever its parties are."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import nn

from xvfl.config import TrainConfig
from xvfl.methods.base import Method, Work
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, Update

T = TypeVar("T")


class ReachableFederation(Protocol):
    """A federation some of whose parties may be away."""

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody's names, in the order of the rows' columns."""

    def train(self, on: bool) -> None:
        """Switch every party's net to training or to prediction."""

    def run_batch(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch with the parties that can be reached (D7).

        Where the work needs one party alone, the others need not be asked.
        """


class TrainableFederation(ReachableFederation, Protocol):
    """A federation whose parties keep and update their own weights."""

    @property
    def optimized_nets(self) -> Mapping[str, OptimizedNet]:
        """The parties' holders, those of them that are in this process."""

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Give every party its optimizer; hold the coordinator's heads."""

    def update(self, update: Update) -> None:
        """Have every party update its weights from the gradients of the last `backward`."""
