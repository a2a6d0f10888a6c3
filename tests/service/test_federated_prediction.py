"""Prediction by the federation: processes over TLS, deadlines, budgets, refusals."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.service.predicting_federation import (
    PARTIES,
    Predicting,
    fused_model,
    new_tables,
    train_federation,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a federation of three parties was trained."""
    folder = tmp_path_factory.mktemp("predicting")
    train_federation(folder)
    return folder


def test_answers_equal_the_fused_model(trained: Path) -> None:
    ids = pd.read_csv(trained / "new-ids.csv")["customer"].tolist()[:-1]
    tables = new_tables(trained)
    held = [each for each in ids if any(each in table.index for table in tables.values())]
    expected = fused_model(trained).predict(tables, "collaborative", ids=held)
    with Predicting(trained).start(*PARTIES) as federation:
        answers = federation.predict(held).predictions
    proba = np.array([[each["probabilities"][c] for c in ("no", "yes")] for each in answers])
    np.testing.assert_allclose(proba, expected.values, atol=1e-5)
    assert [each["mode"] for each in answers] == expected.mode
    assert ["+".join(each["parties"]) for each in answers] == expected.parties
    np.testing.assert_allclose(
        [each["completed"] for each in answers], expected.completed, atol=1e-5
    )
    assert all(each["unreachable"] == {} for each in answers)
