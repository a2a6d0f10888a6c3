"""A bundle and a trained federation that are attacked."""

from pathlib import Path

import pytest

from tests.make_once import make_once
from tests.service.predicting_federation import copy_trained
from tests.small_tables import make_tables
from xvfl import XVFLClassifier
from xvfl.model.export.bundle_export import build_bundle

N_NEW = 420


@pytest.fixture(scope="session")
def bank_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the bundle of a small model: columns age, balance and job of the bank."""

    def write(folder: Path) -> None:
        bank, shop, y = make_tables(100)
        model = XVFLClassifier(epochs=1, members=1).fit({"bank": bank, "shop": shop}, y)
        (folder / "bank.xvfl").write_bytes(build_bundle(model.model_, "bank"))

    return make_once(tmp_path_factory, "bundle", write) / "bank.xvfl"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a federation of three parties was trained."""
    return copy_trained(tmp_path_factory, n_new=N_NEW)
