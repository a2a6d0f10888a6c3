"""Certificates, made once, and kernels as in real runs."""

from collections.abc import Iterator

import pytest
import torch

from tests.problems import digits
from tests.wire.lines import authority
from xvfl.training.threads import limit_threads

__all__ = ["authority", "quick"]


@pytest.fixture
def quick() -> Iterator[None]:
    """Compute as real runs do."""
    layouts = {name: table.layout for name, table in digits(2)[0].items()}
    with limit_threads(layouts, torch.device("cpu")), torch.random.fork_rng(devices=[]):
        yield
