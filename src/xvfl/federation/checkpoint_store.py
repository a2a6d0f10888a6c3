"""Interface of the storage for a party's checkpoints."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class CheckpointStore(Protocol):
    """Store checkpoints of a party."""

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], last_update: int) -> None:
        """Write a checkpoint."""

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        """Return the newest checkpoint of a run at or before a step: step, tensors, last update."""
