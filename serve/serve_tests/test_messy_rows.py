"""A table with messy cells is predicted alike by training's package and from a bundle."""

import warnings
from typing import Any

import numpy as np
import pandas as pd

from xvfl import XVFLClassifier
from xvfl.config import TableOptions
from xvfl.errors import DataWarning
from xvfl.model.export.bundle_export import build_bundle
from xvfl_serve import Predictor
from xvfl_serve.bundle import unpack

ROWS = 200
MESSY: dict[str, list[Any]] = {
    "age": ["40", " 41 ", "4e1", "−3", "NA", None, "0040", "41.0"],
    "price": ["$1,234.50", "1234.5", "($3)", "-$5", "", "1 234", "n/a", "$7"],
    "stay": ["90", "2 weeks", "1:30", "PT1H30M", "soon", "-90 min", "1.5 h", "null"],
    "since": [
        "2020-1-5",
        "2020/01/05",
        "now",
        "2020-02-30",
        "2020-01-05T10:30+02:00",
        "",
        "2020",
        "x",
    ],
    "seen": [
        "5/1/2020",
        "05/01/2020",
        "2020-01-05",
        "31/02/2020",
        None,
        "1/13/2020",
        "01/05/20",
        "?",
    ],
    "job": ["cook", " cook", "pilot", "Nurse", "unknown", "nurse", "", "7"],
}


def test_model_and_bundle_predict_messy_cells_equally() -> None:
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), unit="D")
    ids = [f"r{i}" for i in range(ROWS)]
    bank = pd.DataFrame(
        {
            "age": rng.integers(18, 90, ROWS).astype(str),
            "price": [f"${value:,.2f}" for value in rng.uniform(1, 5000, ROWS)],
            "stay": [f"{value} min" for value in rng.integers(1, 500, ROWS)],
        },
        index=ids,
    )
    shop = pd.DataFrame(
        {
            "since": days.strftime("%Y-%m-%d"),
            "seen": days.strftime("%d/%m/%Y"),
            "job": rng.choice(["cook", "nurse"], ROWS),
        },
        index=ids,
    )
    y = pd.Series(rng.integers(0, 2, ROWS), index=ids)
    options = {
        "bank": TableOptions(kinds={"stay": "duration"}),
        "shop": TableOptions(na_values=("unknown",)),
    }
    model = XVFLClassifier(epochs=1, embedding_dim=8, table_options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        model.fit({"bank": bank, "shop": shop}, y)
    messy = pd.DataFrame(MESSY, index=[f"m{i}" for i in range(8)], dtype="str")
    tables = {"bank": messy[list(bank)], "shop": messy[list(shop)]}
    expected = model.predict_table(tables)
    predictor = Predictor(unpack(build_bundle(model.model_)))
    rows = [
        {
            name: table.astype(object).where(table.notna(), None).loc[each].to_dict()
            for name, table in tables.items()
        }
        for each in messy.index
    ]
    answers = predictor.predict(rows)
    assert ["; ".join(each["notes"]) for each in answers] == expected["notes"].tolist()
    assert "duration without a unit, or unreadable, in stay" in answers[0]["notes"][0]
    found = [list(each["probabilities"].values()) for each in answers]
    np.testing.assert_allclose(found, expected[["proba_0", "proba_1"]], atol=1e-5)
    assert [each["mode"] for each in answers] == expected["mode"].tolist()
    np.testing.assert_allclose([each["completed"] for each in answers], expected["completed"])
