"""Certificates, made once, and kernels as in real runs."""

from collections.abc import Iterator

import pytest
import torch

from tests.conftest import digits
from tests.wire.lines import authority
from xvfl.federation.kernels import small_kernels

__all__ = ["authority", "quick"]


@pytest.fixture
def quick() -> Iterator[None]:
    """Compute as real runs do."""
    layouts = {name: table.layout for name, table in digits(2)[0].items()}
    with small_kernels(layouts, torch.device("cpu")), torch.random.fork_rng(devices=[]):
        yield
