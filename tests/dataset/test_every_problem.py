"""One run of `inspect`, and one error of `fit`, name all problems of all tables."""

import html
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.small_tables import CONFIG, make_tables
from xvfl import DataWarning, TableOptions, XVFLClassifier
from xvfl.dataset.inspection import inspect_tables
from xvfl.errors import InputError
from xvfl.model.report.inspection_page import inspection_page

ROWS = 1200
RNG = np.random.default_rng(4)
Y = RNG.integers(0, 2, ROWS)
NEARLY = np.where(np.arange(ROWS) == 7, 1 - Y, Y)


def some(values: object, code: object, share: float) -> pd.Series:
    """Replace a share of the values by a code."""
    cells = pd.Series(values, dtype=object)
    return cells.mask(RNG.random(ROWS) < share, code)


def planted() -> tuple[dict[str, pd.DataFrame], dict[tuple[str, str], list[str]]]:
    """Two tables with every problem planted, and what must be said of each column."""
    ids = [f"c{i:04d}" for i in range(ROWS)]
    age, words = RNG.integers(18, 90, ROWS), RNG.choice(["cook", "nurse"], ROWS)
    effects = RNG.normal(size=60)
    school = RNG.integers(1, 61, ROWS)
    bank = pd.DataFrame(
        {
            "id": ids,
            "visits": some(RNG.poisson(2, ROWS), -1, 0.15),
            "age": some(age, 999, 0.04),
            "income": some(RNG.lognormal(8, 1, ROWS).round(2), -999, 0.05).astype(float),
            "amount": some(RNG.integers(100, 9_000, ROWS), 9_999_999, 0.05),
            "pressure": some(RNG.normal(120, 12, ROWS).round(), 0, 0.04),
            "answer": some(some(RNG.integers(1, 6, ROWS), 8, 0.05), 9, 0.05),
            "years": some(some(RNG.integers(1, 60, ROWS), 777, 0.03), 999, 0.03),
            "rate": some([f"{each:.1f}".replace(".", ",") for each in RNG.random(ROWS)], "?", 0.1),
            "job": some(words, "?", 0.2),
            "grade": some(RNG.choice(["1", "2", "3"], ROWS), "none", 0.1),
            "school": school,
            "distance": effects[school - 1] + 0.3 * RNG.normal(size=ROWS),
            "fine": RNG.normal(size=ROWS),
        }
    )
    shop = pd.DataFrame(
        {
            "id": ids,
            "outcome": np.where(np.arange(ROWS) % 100 == 0, 1 - Y, Y),
            "weight": [f"{i % 5 + 10}" if i % 3 else f"{i % 5 + 10} kg" for i in range(ROWS)],
            "size": RNG.choice(["12 cm", "14 cm", "16 cm"], ROWS),
            "dose": RNG.choice(["12", "12 mg"], ROWS),
            "heat": [f"{each:.1f} °C" for each in RNG.normal(20, 4, ROWS)],
            "closed": np.where(Y, RNG.random(ROWS), np.nan),
            "fee": [f"{each:.2f}".replace(".", ",") for each in 10 * NEARLY + RNG.random(ROWS)],
            "band": np.where(Y, 1, RNG.choice([0, 2], ROWS)) + 0.9 * RNG.random(ROWS),
            "when": some(RNG.choice(["unknown", "10:30", "8:00"], ROWS), "9:15", 0.3),
            "spent": [f"0,{each:03d}" for each in RNG.integers(0, 1000, ROWS)],
            "label": Y,
        }
    )
    said = {
        ("bank", "visits"): ["'-1' in 1", "add '-1' to `na_values`"],
        ("bank", "age"): ["'999' in ", "add '999' to `na_values`"],
        ("bank", "income"): ["'-999' in ", "add '-999' to `na_values`"],
        ("bank", "amount"): ["'9999999' in ", "to `na_values`"],
        ("bank", "pressure"): ["'0' in ", "add '0' to `na_values`"],
        ("bank", "answer"): ["'8' and '9' in ", "add '8' and '9' to `na_values`"],
        ("bank", "years"): ["'777' and '999' in ", "to `na_values`"],
        ("bank", "rate"): [", beside numbers such as '0,", "add '?' to `na_values`"],
        ("bank", "job"): ["'?' in 2", "add '?' to `na_values`"],
        ("bank", "grade"): [", beside numbers such as", "add 'none' to `na_values`"],
        ("bank", "school"): [
            "look like codes, such as the number of a school",
            'set its kind to "category"',
        ],
        ("shop", "outcome"): ["of 99.00% of 1,200 rows (two-fold cross-validation)", "ignore it"],
        ("shop", "weight"): ["are numbers, some with the unit 'kg'", "remove the unit"],
        ("shop", "size"): ["are numbers with the unit 'cm'", "remove the unit"],
        ("shop", "dose"): ["are numbers, some with the unit 'mg'", "remove the unit"],
        ("shop", "heat"): ["are numbers with the unit '°C'", "remove the unit"],
        ("shop", "closed"): ["each gap, and each value, belongs to one class", "ignore it"],
        ("shop", "fee"): ["ranges of its values predict the class of 99.91%", "ignore it"],
        ("shop", "band"): ["ranges of its values predict the class of 100.00%", "ignore it"],
        ("shop", "when"): ["'unknown' in", "beside durations", "add 'unknown' to `na_values`"],
    }
    return {"bank": bank, "shop": shop}, said


def test_every_planted_problem_is_named_once(tmp_path: Path) -> None:
    tables, said = planted()
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [tmp_path / f"{name}.csv" for name in tables]
    page = tmp_path / "report.html"
    asked = ("inspect", *files, "--id", "id", "--label", "label", "--page", page)
    told = json.loads(run_xvfl(*asked, "--json").out)
    found: dict[tuple[str, str], list[str]] = {}
    for each in told["problems"]:
        found.setdefault((each["table"], each["column"]), []).append(each["text"])
    assert found.keys() == said.keys()
    for column, texts in found.items():
        assert len(texts) == 1, texts
        for part in said[column]:
            assert part in texts[0], texts[0]
    shop = {each["name"]: each for each in told["columns"]["shop"]}
    assert shop["spent"]["encoding"] == "min-max, from text with decimal comma"
    printed, written = run_xvfl(*asked).out, page.read_text()
    for each in told["problems"]:
        assert printed.count(each["text"]) == 1
        assert written.count(html.escape(each["text"])) == 1
    assert f"0 errors and\n{len(said)} warnings" in written
    assert re.search(r"https?://|src=|<script", written) is None, "self-contained"


def test_fit_names_them_too() -> None:
    tables, said = planted()
    frames = {name: each.set_index("id") for name, each in tables.items()}
    y = frames["shop"].pop("label")
    with pytest.warns(DataWarning) as caught:
        XVFLClassifier(epochs=1, embedding_dim=8, hidden_dim=16, verbose=False).fit(frames, y)
    texts = [str(each.message) for each in caught]
    for (name, column), _ in said.items():
        mentions = [
            each for each in texts if each.startswith(f"party '{name}', column '{column}':")
        ]
        assert len(mentions) == 1, (name, column, texts)


def test_nothing_is_named_after_the_remedies() -> None:
    tables, _ = planted()
    for name in ("weight", "size", "dose", "heat"):
        tables["shop"][name] = tables["shop"][name].str.replace(r" \D+$", "", regex=True)
    leaks = dict.fromkeys(("outcome", "closed", "fee", "band"), "identifier")
    options = {
        "bank": TableOptions(
            na_values=("-1", "999", "-999", "9999999", "777", "8", "9", "?", "none"),
            kinds={"school": "category"},
        ),
        "shop": TableOptions(na_values=("unknown",), kinds={**leaks, "when": "duration"}),
    }
    tables["bank"]["pressure"] = tables["bank"]["pressure"].replace(0, np.nan)
    ids = dict.fromkeys(tables, "id")
    assert inspect_tables(tables, ids, "label", options).problems() == []


def test_nothing_is_named_on_clean_tables() -> None:
    bank, shop, y = make_tables(400)
    found = inspect_tables({"bank": bank, "shop": shop}, {"bank": None, "shop": None}, labels=y)
    assert found.problems() == []
    assert "Nothing found that may be wrong." in inspection_page(found)


def broken(folder: Path) -> Path:
    """Write tables of which each has two problems, and a configuration."""
    bank, shop, y = make_tables()
    bank = bank.assign(churned=y, more="$5", endless=1.0).reset_index()
    bank.loc[1, "customer"] = bank.loc[0, "customer"]
    bank.loc[2, ["age", "endless"]] = np.inf
    bank.to_csv(folder / "bank.csv", index=False)
    shop = shop.reset_index()
    shop.loc[0, "basket"] = np.inf
    shop.to_parquet(folder / "shop.parquet", index=False)
    (folder / "run.toml").write_text(f'{CONFIG}\n[parties.shop.options]\ndrop = ["vists"]\n')
    return folder / "run.toml"


PROBLEMS = [
    r"id column 'customer': .*'c000'",
    "column 'age': expected finite numbers",
    "column 'endless': expected finite numbers",
    "column 'basket': expected finite numbers",
    "unknown column 'vists': did you mean 'visits'",
]


def test_errors_of_all_tables_are_told_together(tmp_path: Path) -> None:
    config = broken(tmp_path)
    for command in (("inspect", config), ("train", config, "--out", tmp_path / "run")):
        said = run_xvfl(*command)
        errors = [each for each in said.err.splitlines() if each.startswith("error: ")]
        assert said.code == 2 and len(errors) == len(PROBLEMS), errors
        for each in PROBLEMS:
            assert sum(re.search(each, line) is not None for line in errors) == 1, (each, errors)
    told = json.loads(run_xvfl("inspect", config, "--json").out)
    assert len(told["errors"]) == len(PROBLEMS)
    assert [each["level"] for each in told["problems"]][: len(PROBLEMS)] == ["error"] * len(
        PROBLEMS
    )
    assert {each["name"] for each in told["columns"]["bank"]} >= {"balance", "job"}


def test_fit_raises_one_error_with_all_problems(tmp_path: Path) -> None:
    broken(tmp_path)
    tables = {"bank": str(tmp_path / "bank.csv"), "shop": str(tmp_path / "shop.parquet")}
    model = XVFLClassifier(id_column="customer", table_options={"shop": {"drop": ("vists",)}})  # type: ignore[dict-item]
    for y in (make_tables()[2], ("bank", "churned")):
        with pytest.raises(InputError) as raised:
            model.fit(tables, y)
        assert len(raised.value.problems) == len(PROBLEMS), str(raised.value)
        for each in PROBLEMS:
            assert re.search(each, str(raised.value))
    assert str(raised.value).startswith("5 problems:\n- ")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
