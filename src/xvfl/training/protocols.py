"""Interfaces of federations for training and prediction."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import nn

from xvfl.config import TrainConfig
from xvfl.methods.base import BatchFunction, Method
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, WeightUpdate

T = TypeVar("T")


class ReachableFederation(Protocol):
    """A federation some of whose parties may be offline."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parties, in the order of the rows' columns."""

    def train(self, on: bool) -> None:
        """Switch every party's net to training or evaluation mode."""

    def run_batch(
        self, method: Method, rows: Rows, function: BatchFunction[T], only_party: int | None = None
    ) -> T:
        """Run a function on a batch with the available parties (D7).

        With `only_party`, the function needs that party alone, and no request goes to the others.
        """


class TrainableFederation(ReachableFederation, Protocol):
    """A federation whose parties store and update their own weights."""

    @property
    def optimized_nets(self) -> Mapping[str, OptimizedNet]:
        """Nets of the parties in this process."""

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Create the optimizers; return the coordinator's heads with theirs."""

    def update(self, update: WeightUpdate) -> None:
        """Update the weights of every party with the gradients of the last `backward`."""
