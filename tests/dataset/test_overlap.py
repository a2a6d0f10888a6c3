"""The overlap of the parties' rows is counted, and ids that hardly match are warned about."""

import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from xvfl.data.labels import read_labels
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.on_disk.parquet_tables import open_tables
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.overlap import Overlap
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning, InputError

Ids = list[str]
Prepare = Callable[..., Any]
Check = Callable[..., tuple[Overlap, list[str]]]
ROWS = 1000


def frame(ids: Ids, gaps: int = 0) -> pd.DataFrame:
    """Make a table with missing cells in the last rows."""
    index = pd.Index(ids, dtype="str", name="id")
    rng = np.random.default_rng(len(ids))
    values = pd.DataFrame(rng.random((len(ids), 2)), index=index, columns=["u", "v"])
    values.iloc[len(ids) - gaps :, 0] = np.nan
    return values


@pytest.fixture(params=["memory", "disk"])
def prepare(request: pytest.FixtureRequest, tmp_path: Path) -> Prepare:
    """Prepare labels of these ids and the parties' tables."""

    def prepare(labels: Ids, parties: dict[str, pd.DataFrame], unlabeled: bool = True) -> Any:
        index = pd.Index(labels, dtype="str", name="id")
        y = pd.Series(np.arange(len(labels)) % 2, index=index, name="label")
        plan = PreparationPlan({}, Splits(0.2, 0.2, 0), unlabeled=unlabeled)
        if request.param == "memory":
            given = read_labels(y, id_column=None, column=None, where="labels")
            return prepare_in_memory(parties, given, plan)
        for name, each in {**parties, "labels": y.to_frame()}.items():
            each.to_parquet(tmp_path / f"{name}.parquet")
        files = {name: (f"{name}.parquet", "id") for name in parties}
        tables = open_tables(files, ("labels.parquet", "id"), "label", tmp_path)
        with closing(prepare_on_disk(tables, plan, tmp_path / "cache")) as dataset:
            return dataset

    return prepare


@pytest.fixture
def check(prepare: Prepare) -> Check:
    """Prepare tables; return the overlap and the warnings."""

    def run(*arguments: Any) -> tuple[Overlap, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dataset = prepare(*arguments)
        return dataset.overlap(), [str(each.message) for each in caught]

    return run


def numbers(start: int, stop: int, form: str = "c{}") -> Ids:
    return [form.format(i) for i in range(start, stop)]


@pytest.mark.parametrize("unlabeled", [True, False])
def test_rows_of_each_party_are_counted(check: Check, unlabeled: bool) -> None:
    parties = {
        "bank": frame(numbers(0, 800), gaps=100),
        "shop": frame(numbers(600, 900)),
        "club": frame(numbers(700, 1000)),
    }
    overlap, messages = check(numbers(100, 750), parties, unlabeled)
    assert messages == []
    full = {name: each.pop("full") for name, each in overlap.items()}
    assert overlap == {
        "bank": {"rows": 800, "shared": 200, "labeled": 650},
        "shop": {"rows": 300, "shared": 300, "labeled": 150},
        "club": {"rows": 300, "shared": 200, "labeled": 50},
        "all parties": {"rows": 1000, "shared": 300, "labeled": 650},
    }
    if unlabeled:
        assert full == {"bank": 700, "shop": 300, "club": 300, "all parties": 0}
    else:
        assert full == {"bank": 600, "shop": 150, "club": 50, "all parties": 0}


def test_leading_zeros_are_told(check: Check) -> None:
    shop = numbers(0, 400, "{:05d}") + numbers(10_000, 10_600, "{}")
    parties = {"bank": frame(numbers(0, 400, "{}") + shop[400:]), "shop": frame(shop)}
    overlap, messages = check(list(parties["bank"].index), parties)
    assert overlap["all parties"]["rows"] == 1400
    assert len(messages) == 1
    assert messages[0].startswith(
        "party 'bank' and party 'shop': 400 ids differ only in leading zeros ('0' and '00000', "
        "'1' and '00001'), so they do not match; read the id columns as text"
    )


@pytest.mark.parametrize(
    ("form", "difference"),
    [("C{}", "upper and lower case"), ("c {}", "spaces"), ("c{}.0", "a decimal .0")],
)
def test_other_spellings_of_labels_are_told(check: Check, form: str, difference: str) -> None:
    labels = numbers(0, 100) + numbers(100, ROWS, form)
    parties = {name: frame(numbers(0, ROWS)) for name in ("bank", "shop")}
    _, messages = check(labels, parties)
    near = [each for each in messages if "differ only" in each]
    assert len(near) == 2
    assert near[0].startswith(f"labels and party 'bank': 900 ids differ only in {difference} (")
    assert near[1].startswith("labels and party 'shop': ")
    assert sum("held by no party and were dropped" in each for each in messages) == 1


def test_no_match_at_all_is_explained_by_a_near_miss(prepare: Prepare) -> None:
    parties = {"bank": frame(numbers(0, 50, "0{}")), "shop": frame(numbers(0, 50, "{}"))}
    with (
        pytest.warns(DataWarning, match="'bank' and party 'shop': 50 ids differ only in leading"),
        pytest.raises(InputError, match="'bank': shares no id with the labels"),
    ):
        prepare(numbers(0, 50, "{}"), parties)


def test_one_id_of_thousands_is_suspicious(check: Check) -> None:
    ids = numbers(0, ROWS)
    parties = {"bank": frame(ids), "shop": frame(["c7", *numbers(0, ROWS, "x{}")])}
    _, messages = check(ids, parties)
    assert messages == [
        "party 'bank': only 1 of 1,000 rows are held by another party, 1,000 could be; check that "
        "the id columns hold the same ids, written alike",
        "party 'shop': only 1 of 1,001 rows are labeled, 1,000 could be; check that the id columns "
        "hold the same ids, written alike",
        "party 'shop': only 1 of 1,001 rows are held by another party, 1,000 could be; check that "
        "the id columns hold the same ids, written alike",
    ]


def test_a_small_table_inside_a_large_one_is_not(check: Check) -> None:
    parties = {"bank": frame(numbers(0, 5000)), "shop": frame(numbers(0, 40))}
    assert check(numbers(0, 100), parties)[1] == []
