"""Settings of all tests: one thread per process, and repeatable property tests."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("repeatable", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _private_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every test process its own cache of prepared data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XVFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
