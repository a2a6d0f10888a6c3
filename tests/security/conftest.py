"""A trained federation that the attacks on its prediction share."""

from pathlib import Path

import pytest

from tests.service.predicting_federation import train_federation

N_NEW = 420


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a federation of three parties was trained; copy it before use."""
    folder = tmp_path_factory.mktemp("trained")
    train_federation(folder, n_new=N_NEW)
    return folder
