"""Bundles that several tests serve."""

from pathlib import Path

import pytest

from tests.make_once import make_once


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write bundles of two small models: of the bank, of bank and shop, and of images."""
    from serve_tests.models import write_bundles

    return make_once(tmp_path_factory, "bundles", write_bundles)
