"""Settings of all tests: one thread per process, and repeatable property tests.

The main process of pytest-xdist runs no test, but reads this file and those of this name in `tests`
and `serve_tests` before it starts the others; therefore they import torch in fixtures alone.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.cpu_time import CpuTime

os.environ["OMP_NUM_THREADS"] = "1"  # Of torch here, and of processes that tests start.
settings.register_profile("repeatable", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Print the CPU time of the tests by folder."""
    config.pluginmanager.register(CpuTime(), "cpu-time")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests, so that no process starts a long one last."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def _private_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every test process its own cache of prepared data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XVFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
