"""Compare XVFLRegressor with LightGBM and ridge regression on real tables: R² of test rows.

    python lab/benchmarks/regression.py diabetes --seeds 0 1 2 3 4
    python lab/benchmarks/regression.py sofa --rows 4000

`diabetes` comes with scikit-learn: 442 patients, the age, sex, body mass index and blood pressure
at one party, six blood measurements at the other. `sofa` predicts the SOFA score of a stay in
PhysioNet 2012 from the mean of each parameter: monitor and laboratory. A quarter of the rows is
tested. The rivals train on the columns of one party, or of both in one place.
"""

import argparse
import time
import warnings
from collections.abc import Mapping

import lightgbm
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from xvfl import DataWarning, XVFLRegressor
from xvfl_lab.datasets import find
from xvfl_lab.datasets.table_sets import Table

Tables = Mapping[str, pd.DataFrame]


def read_diabetes() -> tuple[Tables, pd.Series]:
    """Split the diabetes data over two parties."""
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    return {"clinic": X[["age", "sex", "bmi", "bp"]], "lab": X.filter(regex=r"^s\d")}, y


def read_sofa(rows: int) -> tuple[Tables, pd.Series]:
    """Sample stays of PhysioNet 2012 whose SOFA score is known."""
    files = find("physionet2012")
    if files is None or files.paths[0].suffix != ".parquet":
        raise SystemExit("physionet2012: expected the summary in a .parquet file")
    table = files.format.read(files.paths)
    assert isinstance(table, Table)
    score = pd.read_parquet(files.paths[0])["SOFA"].reset_index(drop=True)
    score = score[score >= 0].sample(rows, random_state=0).astype(float)
    frame = table.frame.loc[score.index]
    kept = [c for c in frame if "__" not in c or c.endswith("__mean")]
    return {
        party: frame[[c for c in kept if c.partition("__")[0] in features]]
        for party, features in table.parties[2].items()
    }, score


def trees(X: pd.DataFrame, y: pd.Series, test: pd.Index) -> float:
    """Return R² of LightGBM; every seventh training row chooses the number of trees."""
    train = y.index.difference(test)
    held = train[::7]
    fitted = train.difference(held)
    model = lightgbm.LGBMRegressor(
        n_estimators=1000, learning_rate=0.05, num_leaves=15, n_jobs=1, verbose=-1
    )
    stop = lightgbm.early_stopping(30, verbose=False)
    model.fit(X.loc[fitted], y[fitted], eval_X=X.loc[held], eval_y=y[held], callbacks=[stop])
    return float(r2_score(y[test], model.predict(X.loc[test])))


def ridge(X: pd.DataFrame, y: pd.Series, test: pd.Index) -> float:
    """Return R² of ridge regression with medians for missing numbers and flags of them."""
    train = y.index.difference(test)
    model = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True),
        StandardScaler(),
        RidgeCV(np.logspace(-2, 4, 13)),
    )
    return float(model.fit(X.loc[train], y[train]).score(X.loc[test], y[test]))


def compare(tables: Tables, y: pd.Series, seed: int, epochs: int) -> dict[str, float]:
    """Train on three quarters of the rows, and return R² of the others."""
    order = np.random.default_rng(seed).permutation(len(y))
    test = y.index[order[: len(y) // 4]]
    held_out = {party: table.loc[test] for party, table in tables.items()}
    started = time.perf_counter()
    model = XVFLRegressor(random_state=seed, epochs=epochs, device="cpu", verbose=False)
    model.fit({party: table.drop(test) for party, table in tables.items()}, y.drop(test))
    result = {"seconds": time.perf_counter() - started}
    result["xvfl+ collaborative"] = model.score(held_out, y[test])
    for party, table in {**tables, "pooled": pd.concat(tables, axis=1)}.items():
        named = table.set_axis([f"x{i}" for i in range(table.shape[1])], axis=1)
        if party != "pooled":
            for mode in ("local", "assisted"):
                result[f"xvfl+ {mode} {party}"] = model.score(held_out, y[test], mode, party)
        result[f"trees {party}"] = trees(named, y, test)
        result[f"ridge {party}"] = ridge(named, y, test)
    return result


def main() -> None:
    """Print mean and standard deviation over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=["diabetes", "sofa"])
    parser.add_argument("--rows", type=int, default=4000, help="rows of sofa")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=0, help="0: the default")
    given = parser.parse_args()
    tables, y = read_diabetes() if given.data == "diabetes" else read_sofa(given.rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        each = pd.DataFrame([compare(tables, y, seed, given.epochs) for seed in given.seeds])
    print(pd.DataFrame({"mean": each.mean(), "sd": each.std()}).round(3).to_string())


if __name__ == "__main__":
    main()
