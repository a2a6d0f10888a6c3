"""What a party needs of the store of its checkpoints."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class CheckpointStore(Protocol):
    """Where a party keeps its checkpoints."""

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], applied: int) -> None:
        """Keep a checkpoint."""

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        """Give the newest one of a run at or before a step: its step, tensors, last update."""
