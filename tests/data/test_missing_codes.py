"""Codes of missing values, and numbers that are codes: what is found, and what is not."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from xvfl.data.code_numbers import find_code_numbers
from xvfl.data.missing_codes import missing_numbers, missing_words
from xvfl.dataset.inspection import inspect_tables

RNG = np.random.default_rng(0)
ROWS = 2000


def coded(values: np.ndarray, code: float, share: float = 0.05) -> list[float]:
    """List what is found in numbers of which a share is replaced by a code."""
    values = np.where(RNG.random(len(values)) < share, code, values)
    return [each for each, _ in missing_numbers(values)]


AGES = RNG.integers(18, 91, ROWS)
COUNTS = RNG.poisson(1.0, ROWS)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (AGES, -1),
        (AGES, 99),
        (AGES, 999),
        (AGES, -999),
        (AGES, 777_777),
        (COUNTS, -1),
        (COUNTS, -9),
        (COUNTS, 99),
        (RNG.normal(size=ROWS), 999.9),
        (RNG.normal(size=ROWS), -9999),
        (RNG.random(ROWS), -1),
        (RNG.integers(0, 2, ROWS), 99),
        (RNG.integers(1, 6, ROWS), -1),
        (RNG.integers(1, 6, ROWS), 9),
        (RNG.integers(1, 6, ROWS), 99),
        (AGES, 888),
        (AGES, 0),
        (RNG.normal(120, 12, ROWS).round(1), 0),
    ],
)
def test_codes_are_found(values: np.ndarray, code: float) -> None:
    assert coded(values, code) == [code]


def test_several_codes_and_their_share() -> None:
    values = np.concatenate([AGES, np.full(500, -1), np.full(250, 999)])
    assert dict(missing_numbers(values)) == {-1: 500 / 2750, 999: 250 / 2750}


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        (RNG.integers(1, 6, ROWS), {8, 9}),
        (AGES, {777, 999}),
        (RNG.integers(18, 80, ROWS), {97, 98, 99}),
        (COUNTS, {-9, -1}),
    ],
)
def test_codes_that_occur_together_are_found(values: np.ndarray, codes: set[int]) -> None:
    coded = np.concatenate([values, *(np.full(ROWS // 20, each) for each in codes)])
    assert {each for each, _ in missing_numbers(coded)} == codes


@pytest.mark.parametrize(
    "values",
    [
        AGES,
        COUNTS,
        RNG.poisson(6, ROWS) - 1,
        RNG.normal(size=ROWS).round(),
        RNG.choice([-1, 0, 1], ROWS),
        RNG.choice([0, 1, 9], ROWS),
        np.append(AGES, 999),
        RNG.lognormal(7, 2, ROWS).round(),
        np.where(RNG.random(ROWS) < 0.7, 0, RNG.normal(5000, 100, ROWS)),
        RNG.choice([9.99, 19.99, 99.99, 49.99, 4.99], ROWS),
        np.minimum(RNG.integers(0, 130, ROWS), 99),
        RNG.integers(0, 1000, ROWS),
        np.where(RNG.random(ROWS) < 0.4, 0, RNG.integers(20, 61, ROWS)),
        RNG.choice([1, 2, 3, 4, 5, 6, 7, 8, 24], ROWS),
        np.where(RNG.random(ROWS) < 0.2, 0.4522, RNG.random(ROWS) / 100),
        RNG.choice([*range(6), 9], ROWS, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.04, 0.01]),
    ],
)
def test_values_are_no_codes(values: np.ndarray) -> None:
    assert list(missing_numbers(values)) == []


def test_words_for_missing_values() -> None:
    words = [
        "?",
        "N/a",
        " none",
        "Unknown",
        "not available",
        "999",
        "-",
        "nurse",
        "no",
        "other",
        "9",
    ]
    assert missing_words(words) == ["?", "N/a", " none", "Unknown", "not available", "999", "-"]
    assert missing_words(["<Unknown>", "not_known", "(empty)", "...", "Keine Angabe", "TBA"]) == [
        *("<Unknown>", "not_known", "(empty)", "...", "Keine Angabe", "TBA")
    ]
    assert missing_words(["+", "-"]) == [], "results of a test"


def test_numbers_are_codes_where_neighbors_have_nothing_in_common() -> None:
    number = RNG.integers(1, 81, ROWS)
    effects = {"rough": RNG.normal(size=80), "smooth": np.sin(np.arange(80) / 20)}
    for name, effect in effects.items():
        noise = RNG.normal(size=ROWS)
        frame = pd.DataFrame({"number": number, "a": effect[number - 1] + noise, "b": noise})
        assert list(dict(find_code_numbers(frame, ["number"]))) == ["number"] * (name == "rough")
    visits = pd.DataFrame({"person": np.repeat(np.arange(200), 10)})
    persons = pd.DataFrame({"age": RNG.integers(30, 70, 200), "sex": RNG.integers(0, 2, 200)})
    visits = pd.concat([visits, persons.iloc[visits["person"]].reset_index(drop=True)], axis=1)
    assert not list(find_code_numbers(visits, ["age"])), "the same persons"
    price = pd.DataFrame({"price": number, "size": number + RNG.normal(0, 9, ROWS)})
    price["brand"] = effects["rough"][number - 1]
    assert not list(find_code_numbers(price, ["price"])), "it rises with the size"
    frame = pd.DataFrame({"number": number, "a": RNG.normal(size=ROWS)})
    assert not list(find_code_numbers(frame, ["number"])), "nothing depends on it"
    scattered = RNG.choice(np.arange(10_000, 100_000), 80, replace=False)
    frame["a"] = effects["rough"][number - 1] + noise
    for codes, named in ((scattered, True), (scattered // 10 ** (np.arange(80) % 3), False)):
        # Amounts, such as the population of a state, have different numbers of digits.
        found = find_code_numbers(frame.assign(number=codes[number - 1]), ["number"])
        assert bool(list(found)) == named


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes", "digits"])
def test_nothing_is_named_in_tables_of_scikit_learn(name: str) -> None:
    frame = getattr(datasets, f"load_{name}")(as_frame=True).data
    assert inspect_tables({name: frame}, {name: None}).problems() == []


@pytest.mark.parametrize(
    ("file", "label", "named"),
    [
        (
            "tabular/bank_full.parquet",
            "y",
            {"job", "education", "contact", "pdays", "poutcome"},
        ),
        (
            "tabular/bank_additional_full.parquet",
            "y",
            {"job", "marital", "education", "default", "housing", "loan", "pdays"},
        ),
    ],
)
def test_real_codes_and_nothing_else_are_named(file: str, label: str, named: set[str]) -> None:
    path = Path(os.environ.get("XVFL_DATA", "")) / file
    if not path.is_file():
        pytest.skip(f"XVFL_DATA has no {file}")
    found = inspect_tables({"bank": pd.read_parquet(path)}, {"bank": None}, label)
    assert {each.column for each in found.problems()} == named
