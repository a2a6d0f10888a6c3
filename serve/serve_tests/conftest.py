"""Bundles that several tests serve."""

from pathlib import Path

import pytest

from serve_tests.models import train
from tests.make_once import make_once
from tests.small_tables import make_tables
from xvfl import XVFLClassifier
from xvfl.config import NetConfig
from xvfl.model.export.bundle_export import build_bundle


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write bundles of two small models: of the bank, of bank and shop, and of images."""
    return make_once(tmp_path_factory, "bundles", write_bundles)


def write_bundles(folder: Path) -> None:
    """Train the models."""
    bank, shop, y = make_tables(300)
    for seed, name in enumerate(("bank", "other")):
        model = XVFLClassifier(epochs=2, embedding_dim=8, hidden_dim=32, random_state=seed)
        model.fit({"bank": bank, "shop": shop}, y)
        (folder / f"{name}.xvfl").write_bytes(build_bundle(model.model_, "bank"))
    (folder / "both.xvfl").write_bytes(build_bundle(model.model_))
    images = train(NetConfig(16, 32, 2, 8), images=True, epochs=1, rows=200)
    (folder / "images.xvfl").write_bytes(build_bundle(images.model, "left"))
