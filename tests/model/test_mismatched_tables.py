"""Tables and labels that hardly match are warned about wherever a trained model uses them."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.small_tables import CONFIG, make_tables, write_run_inputs
from xvfl import XVFLClassifier
from xvfl.data.frames import ROW_NUMBERS
from xvfl.dataset.row_numbers import warn_row_numbers
from xvfl.errors import InputError

ROWS = 120
BANK, SHOP, Y = make_tables(ROWS)
NEAR_MISS = "party 'bank' and party 'shop': 100 ids differ only in "
NO_OVERLAP = "party 'bank': only 0 of 120 rows are held by another party, 100 could be"
Use = Callable[[XVFLClassifier, dict[str, pd.DataFrame]], Any]
USES: dict[str, Use] = {
    "predict": lambda model, tables: model.predict(tables),
    "predict_proba": lambda model, tables: model.predict_proba(tables),
    "assisted": lambda model, tables: model.predict(tables, "assisted", "bank"),
    "score": lambda model, tables: model.score(tables, Y),
    "complete": lambda model, tables: model.complete(tables, "bank"),
    "complete_details": lambda model, tables: model.complete_details(tables, "bank"),
    "explain": lambda model, tables: model.explain(tables, Y, n_repeats=0, n_samples=10),
}


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    small = XVFLClassifier(epochs=3, embedding_dim=8, hidden_dim=16, device="cpu", verbose=False)
    return small.fit({"bank": BANK, "shop": SHOP}, Y)


def messages(use: Callable[[], Any]) -> list[str]:
    """Return the texts of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    return [str(each.message) for each in caught]


def starting(texts: list[str], start: str) -> int:
    """Count the texts that start so."""
    return sum(each.startswith(start) for each in texts)


@pytest.mark.parametrize("name", USES)
def test_near_misses_and_disjoint_tables(model: XVFLClassifier, name: str) -> None:
    def use(shop: pd.DataFrame) -> list[str]:
        return messages(lambda: USES[name](model, {"bank": BANK, "shop": shop}))

    spaced = SHOP.set_axis(SHOP.index.str.replace("c", "c "))
    assert starting(use(spaced), NEAR_MISS + "spaces") == 1
    texts = use(SHOP.set_axis("x" + SHOP.index))
    assert starting(texts, NO_OVERLAP) == 1 and starting(texts, NEAR_MISS) == 0
    assert use(SHOP) == []


def test_a_partial_overlap_is_normal(model: XVFLClassifier) -> None:
    few = {"bank": BANK.iloc[:60], "shop": SHOP.iloc[38:]}
    assert len(few["bank"].index.intersection(few["shop"].index)) == 2
    disjoint = {"bank": BANK.iloc[:3], "shop": SHOP.iloc[50:53]}
    for tables in ({"bank": BANK}, few, disjoint):
        assert messages(lambda tables=tables: model.predict(tables)) == []  # type: ignore[misc]
    # The shop's table is not used.
    other = {"bank": BANK, "shop": SHOP.set_axis("x" + SHOP.index)}
    assert messages(lambda: model.predict(other, "local", "bank")) == []
    assert messages(lambda: model.predict({"bank": BANK.head(0), "shop": SHOP.head(0)})) == []


def test_labels_that_hardly_match(model: XVFLClassifier) -> None:
    tables = {"bank": BANK, "shop": SHOP}
    wrong = Y.set_axis([*Y.index[:5], *(f"x{i}" for i in range(ROWS - 5))])
    expected = "labels: only 5 of 120 match a row of the tables (at most 120 could)"
    assert starting(messages(lambda: model.score(tables, wrong)), expected) == 1
    explain = lambda y: model.explain(tables, y, n_repeats=0, n_samples=10)  # noqa: E731
    assert starting(messages(lambda: explain(wrong)), expected) == 1
    upper = Y.set_axis([*Y.index[:60], *Y.index[60:].str.upper()])
    near_miss = "labels and party 'bank': 60 ids differ only in upper and lower case"
    assert starting(messages(lambda: model.score(tables, upper)), near_miss) == 1
    for few in (Y.iloc[:20], Y.iloc[:2]):
        assert messages(lambda few=few: model.score(tables, few)) == []  # type: ignore[misc]


def test_a_metric_that_needs_two_classes(model: XVFLClassifier) -> None:
    tables, yes = {"bank": BANK, "shop": SHOP}, Y[Y == "yes"]
    with pytest.raises(InputError, match=r"AUROC needs rows with different labels, but the \d+ ex"):
        model.explain(tables, yes)
    with pytest.raises(InputError, match=r"use metric='accuracy' \(--metric accuracy\)"):
        model.explain(tables, yes)
    found = model.explain(tables, yes, metric="accuracy", n_repeats=0, n_samples=10)
    assert 0 <= found.together.value <= 1


def test_a_forgotten_id_column() -> None:
    """Rows in another order are joined by row number, unless the id becomes the index."""
    numbers = pd.Index(range(ROWS), name="cust")
    bank = BANK.set_axis(numbers).sample(frac=1, random_state=1)
    shop = SHOP.set_axis(numbers[20:]).sample(frac=1, random_state=2)
    y = Y.set_axis(numbers)
    in_order = {"bank": bank.sort_index().reset_index(), "shop": shop.sort_index().reset_index()}
    reset = {"bank": bank.reset_index(), "shop": shop.reset_index()}
    small = XVFLClassifier(epochs=1, embedding_dim=8, hidden_dim=16, device="cpu", verbose=False)
    expected = (
        "party 'bank': rows are matched by row number, but 'cust' looks like the id: 100 of its "
        "values are in the column of the same name of party 'shop', in other rows; use "
        "table.set_index('cust'), or id_column='cust'"
    )
    for tables in (reset, in_order):
        assert messages(lambda tables=tables: small.fit(tables, y)).count(expected) == 1  # type: ignore[misc]
    model = small.fit({"bank": bank, "shop": shop}, y)
    one = "party 'shop': rows are matched by row number, but 'cust' looks like the id: 100 of its"
    texts = messages(lambda: model.predict({"bank": bank, "shop": reset["shop"]}))
    assert starting(texts, one) == 1
    aligned = {
        "bank": reset["bank"],
        "shop": reset["bank"][["cust"]].join(SHOP.set_axis(numbers[20:]), on="cust"),
    }
    for tables in ({"bank": reset["bank"]}, aligned, {"bank": bank, "shop": shop}):
        texts = messages(lambda tables=tables: model.predict(tables))  # type: ignore[misc]
        assert not [each for each in texts if "row number" in each]
    assert messages(lambda: model.set_params(id_column="cust").predict(reset)) == []


def test_numbers_that_are_no_ids() -> None:
    """A salary is not distinct enough, or not among all ids that count rows."""
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"salary": rng.integers(0, 30_000, 40_000)})
    shop = pd.DataFrame({"salary": rng.integers(0, 30_000, 40_000)})
    counted = pd.DataFrame({"x": rng.random(400)}, index=np.arange(400) + 1)
    few = pd.DataFrame({"visits": rng.permutation(800)[:400]})
    lists = pd.DataFrame({"salary": [[1], [2]] * 10})
    for table in (bank, shop, few, lists):
        table.attrs[ROW_NUMBERS] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_row_numbers({"bank": bank, "shop": shop})
        warn_row_numbers({"few": few, "counted": counted})
        warn_row_numbers({"bank": bank, "lists": lists})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it new tables whose ids differ in leading zeros, except 20 of them."""
    folder = tmp_path_factory.mktemp("mismatched")
    path = write_run_inputs(folder, CONFIG.replace("shop.parquet", "shop.csv"))
    SHOP.to_csv(folder / "shop.csv")
    assert run_xvfl("train", path, "--out", folder / "run").code == 0
    digits = BANK.index.str.removeprefix("c")
    new = {"new_bank": BANK.set_axis(digits.astype(int)), "new_shop": SHOP.set_axis(digits[20:])}
    for name, table in new.items():
        table.rename_axis("customer").to_csv(folder / f"{name}.csv")
        table.rename_axis("customer").to_parquet(folder / f"{name}.parquet")
    return folder / "run"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_command_predict(run: Path, suffix: str, tmp_path: Path) -> None:
    bank, shop = (run.parent / f"new_{name}.{suffix}" for name in ("bank", "shop"))
    out = tmp_path / "answers.csv"
    result = run_xvfl("predict", run, f"bank={bank}", f"shop={shop}", "--out", out)
    assert result.code == 0 and len(pd.read_csv(out)) == 200
    expected = "warning: party 'bank' and party 'shop': 80 ids differ only in leading zeros"
    assert result.err.count(expected) == result.err.count("warning: ") == 1
    alone = run_xvfl("predict", run, f"bank={bank}", "--out", out)
    assert alone.code == 0 and "warning" not in alone.err


def test_parquet_tables_without_a_common_id(run: Path, tmp_path: Path) -> None:
    for name, table in {"bank": BANK, "shop": SHOP.set_axis("x" + SHOP.index)}.items():
        table.rename_axis("customer").to_parquet(tmp_path / f"{name}.parquet")
    inputs = [f"{name}={tmp_path / name}.parquet" for name in ("bank", "shop")]
    result = run_xvfl("predict", run, *inputs, "--out", tmp_path / "answers.csv")
    assert result.code == 0 and NO_OVERLAP in result.err


@pytest.mark.slow
def test_the_commands_complete_evaluate_and_explain(run: Path, tmp_path: Path) -> None:
    folder = run.parent
    tables = [f"{name}={folder / f'new_{name}.csv'}" for name in ("bank", "shop")]
    expected = "ids differ only in leading zeros"
    assert expected in run_xvfl("complete", run, *tables, "--out", tmp_path / "filled").err
    copied = shutil.copytree(folder, tmp_path / "copied")
    manifest = copied / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(folder), str(copied)))
    assert "warning" not in run_xvfl("evaluate", copied / "run").err
    spaced = SHOP.set_axis(SHOP.index.str.replace("c", "c ")).rename_axis("customer")
    spaced.to_csv(copied / "shop.csv")
    for command in (["evaluate", copied / "run"], ["explain", copied / "run", "--repeats", "0"]):
        result = run_xvfl(*command)
        assert result.code == 0 and "100 ids differ only in spaces" in result.err
