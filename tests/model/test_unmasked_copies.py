"""The share of unmasked copies and the weight of guidance that a fit chooses."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.options import by_section
from xvfl import XVFLClassifier

pytestmark = pytest.mark.usefixtures("limited_threads")
ROWS = 200
RNG = np.random.default_rng(0)
INDEX = pd.Index([f"c{i}" for i in range(ROWS)])
TABLES = {
    "bank": pd.DataFrame(RNG.normal(size=(ROWS, 3)), INDEX, ["age", "income", "debt"]),
    "shop": pd.DataFrame(RNG.normal(size=(ROWS, 2)), INDEX, ["visits", "spent"]),
}
Y = (TABLES["bank"]["age"] + TABLES["shop"]["visits"] > 0).astype(int)


def answers(y: pd.Series = Y, **options: Any) -> np.ndarray:
    sizes = {"embedding_dim": 8, "hidden_dim": 16, "epochs": 2, "device": "cpu", "verbose": False}
    fitted = XVFLClassifier(**by_section({**sizes, **options})).fit(TABLES, y)
    return fitted.predict_proba(TABLES).to_numpy()


@pytest.mark.slow
def test_half_of_the_copies_of_complete_tables_are_unmasked() -> None:
    default = answers()
    assert np.array_equal(default, answers(unmasked_copies=0.5, guidance=1.0))
    assert not np.array_equal(default, answers(unmasked_copies=0.0))
    assert not np.array_equal(default, answers(guidance=0.5))


@pytest.mark.slow
def test_every_copy_is_masked_if_every_step_completes() -> None:
    options = {"completion_interval": 1}
    expected = answers(unmasked_copies=0.0, guidance=0.5, **options)
    assert np.array_equal(answers(**options), expected)
    few = Y.astype(float).where(np.arange(ROWS) % 2 == 0)
    assert np.array_equal(answers(few), answers(few, unmasked_copies=0.0))
