"""Warnings point to the line of the caller's code."""

import runpy
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_score

from tests.small_tables import make_tables
from xvfl import DataWarning, XVFLClassifier, XVFLRegressor, describe

BANK, SHOP, Y = make_tables(120)
BOTH = {"bank": BANK, "shop": SHOP}
FIRST = np.arange(len(Y)) < 3
FLAWED = {"bank": BANK.assign(constant=1), "shop": SHOP}
FRAME = pd.concat(FLAWED, axis=1)
SMALL = {"embedding_dim": 4, "hidden_dim": 8, "members": 1, "epochs": 1, "verbose": False}
Case = Callable[[XVFLClassifier], object]


def new(**more: object) -> XVFLClassifier:
    """Make a small model."""
    return XVFLClassifier(**{**SMALL, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    return new().fit(BOTH, Y)


CASES: dict[str, Case] = {
    "left out 'constant'": lambda _: new().fit(FLAWED, Y),
    "held by no party": lambda _: new().fit(BOTH, pd.concat([Y, Y.set_axis("x" + Y.index)])),
    "without a label": lambda model: model.score(BOTH, Y.mask(FIRST)),
    "read as missing": lambda model: model.score(BOTH, Y.mask(FIRST, "None")),
    "validation rows are pred": lambda _: new(threshold=0.999, validation_fraction=0.3).fit(
        BOTH, Y
    ),
    "look like classes": lambda _: XVFLRegressor(**SMALL).fit(BOTH, (Y == "yes").astype(int)),
    "have an id that": lambda model: model.predict(BOTH, ids=["c001", "unknown"]),
    "1 of 1 ids": lambda model: model.complete(BOTH, "bank", ids=["unknown"]),
    "(constant)": lambda _: cross_val_score(new(), FRAME, Y, cv=2, error_score="raise"),
    "upper and lower case": lambda _: describe({"bank": BANK, "shop": SHOP.rename(str.upper)}),
}


@pytest.mark.parametrize("text", CASES)
def test_a_warning_points_to_the_callers_line(text: str, model: XVFLClassifier) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CASES[text](model)
    given = [each for each in caught if issubclass(each.category, DataWarning)]
    assert any(text in str(each.message) for each in given), [str(w.message) for w in given]
    line = CASES[text].__code__.co_firstlineno
    places = {(Path(each.filename).name, each.lineno) for each in given}
    assert places == {("test_warnings.py", line)}


def test_a_module_that_runs_as_a_program_can_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text('from xvfl.errors import warn\n\nwarn("a column")\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DataWarning, match="a column") as caught:
        runpy.run_module("program", run_name="__main__")
    assert (caught[0].filename, caught[0].lineno) == (str(tmp_path / "program.py"), 3)
