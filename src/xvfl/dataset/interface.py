"""The interface between prepared rows and training."""

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
        """Each party's encoder."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """Each party's encoded rows."""

    @property
    def full_threshold(self) -> Mapping[str, float]:
        """Observed share from which a row is full, by party."""

    @property
    def classes(self) -> Sequence[Any]:
        """The labels, in the order of their numbers."""

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of each party's encoded features."""

    def class_prior(self) -> list[float]:
        """Return the share of each class among the training rows."""

    def training_rows(self, device: torch.device) -> RowSource:
        """Return the rows to train on."""

    def validation_rows(self, device: torch.device) -> Rows:
        """Return the rows to validate on."""

    def fingerprint(self) -> str:
        """Return a hash of the rows, their labels and their split."""
