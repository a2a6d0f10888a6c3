"""Every test has a cache of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache: Path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XVFL_CACHE", str(cache))
