"""What training needs of prepared rows, wherever they are."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from xvfl.data.sources import Encoder
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import Rows, RowSource, Table


class Dataset(Protocol):
    """Prepared rows, in memory or on disk."""

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """How each party encodes its rows."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """Each party's encoded rows."""

    @property
    def full_threshold(self) -> Mapping[str, float]:
        """Observed share at which a row is full, by party."""

    @property
    def classes(self) -> Sequence[Any]:
        """The labels, in the order of their numbers."""

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """What each party's encoded features look like."""

    def prior(self) -> list[float]:
        """Share of each class among the training rows."""

    def training(self, device: torch.device) -> RowSource:
        """Give the rows to train on."""

    def validating(self, device: torch.device) -> Rows:
        """Give the rows to validate on."""

    def identity(self) -> str:
        """Tell these rows from any others."""
