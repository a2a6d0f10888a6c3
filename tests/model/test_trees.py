"""Trees: columns as encoded, missing values left missing, and what each way predicts from."""

import numpy as np
import pandas as pd
import pytest

from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.dataset.in_memory import to_party_table
from xvfl.model.trees import (
    MEAN,
    POOLED,
    FittedTrees,
    TreeConfig,
    TreeRows,
    TreeTable,
    _training_part,
    fit_trees,
    softmax,
)
from xvfl.primitives.metrics import accuracy, nll

pytest.importorskip("lightgbm")
SMALL = TreeConfig(max_trees=60, patience=10, masked_copies=2)


def tree_table(frame: pd.DataFrame, **options: object) -> TreeTable:
    encoder = TableEncoder.fit(frame, TableOptions(**options), "bank")  # type: ignore[arg-type]
    return TreeTable.from_party(to_party_table(encoder.layout, encoder.encode(frame)))


def mixed_frame(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 500, rows), unit="D")
    frame = pd.DataFrame(
        {
            "town": [f"town {i}" for i in rng.integers(0, 150, rows)],
            "income": np.exp(rng.normal(size=rows) * 3),
            "job": rng.choice(["cook", "nurse", "pilot"], rows),
            "opened": days,
        },
        index=pd.Index([f"c{i}" for i in range(rows)], name="id"),
    )
    return frame.mask(rng.random(frame.shape) < 0.2)


def test_columns_hold_what_the_table_holds() -> None:
    frame = mixed_frame()
    table = tree_table(frame, categorical=("town",))
    X = table.matrix(slice(None))
    assert X.shape == (len(frame), 1 + 1 + 5 + 1), "number, category, date, hashed category"
    income, job, date, town = X[:, 0], X[:, 1], X[:, 2:7], X[:, 7]
    assert table.categorical == (1, 7)
    assert table.feature.tolist() == [0, 1, 2, 2, 2, 2, 2, 3]
    for column, name in ((income, "income"), (job, "job"), (date[:, 0], "opened"), (town, "town")):
        assert (np.isnan(column) == frame[name].isna().to_numpy()).all(), name
    assert (np.isnan(date) == np.isnan(date[:, :1])).all()
    known = frame["income"].notna().to_numpy()
    assert (np.argsort(income[known]) == np.argsort(frame["income"][known])).all()
    for column, name in ((job, "job"), (town, "town")):
        pairs = pd.DataFrame({"code": column, "value": frame[name]}).dropna().drop_duplicates()
        assert not pairs["value"].duplicated().any(), "one code for each value"
    assert len(np.unique(job[~np.isnan(job)])) == 3


def test_joined_columns_are_the_parties_columns() -> None:
    first, second = tree_table(mixed_frame()), tree_table(mixed_frame()[["job", "income"]])
    both = TreeTable.join([first, second])
    parts = [first.matrix(slice(None)), second.matrix(slice(None))]
    np.testing.assert_array_equal(both.matrix(slice(None)), np.concatenate(parts, axis=1))
    width = first.columns.shape[1]
    assert both.categorical == (*first.categorical, *(width + c for c in second.categorical))


def number_table(X: np.ndarray, observed: np.ndarray | None = None) -> TreeTable:
    observed = np.ones(X.shape, dtype=bool) if observed is None else observed
    return TreeTable(X.astype(np.float32), np.arange(X.shape[1]), observed, ())


def split_rows(tables: list[TreeTable], y: np.ndarray, classes: int = 2) -> TreeRows:
    order = np.arange(len(y))
    third = len(y) // 3
    return TreeRows(
        tables, y, np.ones(len(y)), order[2 * third :], order[third : 2 * third], classes
    )


def test_a_missing_value_is_information() -> None:
    rng = np.random.default_rng(0)
    missing = rng.random((900, 2)) < 0.5
    table = number_table(rng.random((900, 2)), ~missing)
    rows = split_rows([table], missing[:, 0].astype(np.int64))
    fitted = fit_trees(rows, [0], SMALL, 0)
    # The value that stands in a missing cell is not read: it is random here.
    proba = softmax(fitted.logits(0, "none", np.arange(300)))
    seen = rows.observed(0, np.arange(300))
    assert accuracy(proba[seen], rows.y[seen]) == 1.0


def need_both(rows: int = 3000) -> TreeRows:
    """Labels that are the exclusive or of the parties' signs."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows, 2, 3))
    y = ((X[:, 0, 0] > 0) ^ (X[:, 1, 0] > 0)).astype(np.int64)
    return split_rows([number_table(X[:, 0]), number_table(X[:, 1])], y)


def test_pooled_trees_use_what_no_party_knows_alone() -> None:
    rows = need_both()
    fitted = fit_trees(rows, [0, 1, POOLED], SMALL, 0)
    test = np.arange(len(rows.y) // 3)

    def score(way: object) -> float:
        proba = softmax(fitted.logits(way, fitted.choose(way), test))  # type: ignore[arg-type]
        return accuracy(proba, rows.y[test])

    assert max(score(0), score(1), score(MEAN)) < 0.6
    assert score(POOLED) > 0.95
    assert fitted.seconds.keys() == {0, 1, POOLED}


@pytest.fixture(scope="module")
def three_classes() -> FittedTrees:
    """Two parties of which each observes two thirds of the rows, and three classes."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1200, 2, 2))
    y = np.digitize(X.sum((1, 2)) + 0.3 * rng.normal(size=1200), [-1, 1])
    holds = [np.arange(1200) % 3 != 1, np.arange(1200) % 3 != 2]
    tables = [
        number_table(X[:, i], np.repeat(held[:, None], 2, axis=1)) for i, held in enumerate(holds)
    ]
    return fit_trees(split_rows(tables, y, 3), [0, 1, POOLED], SMALL, 0)


def test_the_mean_is_over_the_parties_that_observe_the_row(three_classes: FittedTrees) -> None:
    rows = np.arange(400)
    mean = three_classes.logits(MEAN, "random", rows)
    for row in rows[:30]:
        parties = [i for i in (0, 1) if three_classes.rows.tables[i].observed[row].any()]
        own = [three_classes.logits(i, "random", np.array([row]))[0] for i in parties]
        np.testing.assert_allclose(mean[row], np.mean(own, axis=0))
    assert mean.shape == (400, 3)
    assert accuracy(mean, three_classes.rows.y[rows]) > 0.5


def test_validation_rows_choose_the_masks(three_classes: FittedTrees) -> None:
    data = three_classes.rows
    for way in (0, 1, MEAN, POOLED):
        rows = [
            r for r in data.validation if way not in (0, 1) or data.tables[way].observed[r].any()
        ]
        at = np.array(rows)
        loss = {
            masks: nll(softmax(three_classes.logits(way, masks, at)), data.y[at])  # type: ignore[arg-type]
            for masks in ("none", "random")
        }
        assert three_classes.choose(way) == min(loss, key=loss.__getitem__)  # type: ignore[arg-type]


def test_a_fit_reads_training_and_validation_rows_only(three_classes: FittedTrees) -> None:
    data = three_classes.rows
    test = np.setdiff1d(np.arange(len(data.y)), np.concatenate([data.train, data.validation]))
    y = data.y.copy()
    y[test] = (y[test] + 1) % 3
    tables = []
    for table in data.tables:
        columns = table.columns.copy()
        columns[test] = 7
        tables.append(number_table(columns, table.observed))
    changed = TreeRows(tables, y, data.weight, data.train, data.validation, 3)
    again = fit_trees(changed, [0], SMALL, 0)
    for masks in ("none", "random"):
        first, second = three_classes.boosters[0, masks], again.boosters[0, masks]  # type: ignore[index]
        assert first.model_to_string() == second.model_to_string()


def test_masked_copies_follow_the_rows_and_only_lose_features() -> None:
    rng = np.random.default_rng(3)
    tables = [number_table(rng.random((300, 8)), rng.random((300, 8)) < 0.9) for _ in range(2)]
    rows = split_rows(tables, rng.integers(0, 2, 300))
    X, y, weight = _training_part(rows, POOLED, 3, seed=0)
    train = rows.observed(POOLED, rows.train)
    n = len(train)
    np.testing.assert_array_equal(X[:n], rows.table(POOLED).matrix(train))
    np.testing.assert_array_equal(y, np.tile(rows.y[train], 4))
    assert len(X) == len(weight) == 4 * n
    for copy in X[n:].reshape(3, n, 16):
        kept = ~np.isnan(copy)
        np.testing.assert_array_equal(copy[kept], X[:n][kept])
        shares = kept.reshape(n, 2, 8).mean(2)
        assert 0.3 < shares.mean() < 0.6 and shares.std() > 0.2, "a rate of its own for each row"
        assert abs(np.corrcoef(shares.T)[0, 1]) < 0.3, "and for each party"


def test_a_party_without_validation_rows_fits() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 2))
    observed = np.ones(X.shape, dtype=bool)
    observed[100:200] = False
    rows = split_rows([number_table(X, observed)], (X[:, 0] > 0).astype(np.int64))
    fitted = fit_trees(rows, [0], SMALL, 0)
    assert fitted.choose(0) == "none"
    test = np.arange(100)
    assert accuracy(fitted.logits(0, "none", test), rows.y[test]) > 0.9
