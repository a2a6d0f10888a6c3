"""Compare filled cells with imputers on real tables, with cells hidden at random.

    python lab/benchmarks/filled_cells.py bank physionet2012 "HI.csv:hhi=yes:" --out cells.jsonl

A table is a data set of `xvfl-lab data`, or FILE:LABEL:COLUMNS as in
`xvfl_lab.datasets.csv_tables`. Two parties hold its columns. A share of the cells is hidden in all
rows; every method learns from the training rows and fills the test rows. RMSE and MAE are divided
by the standard deviation of the column and averaged over the numeric columns of both parties;
`correct` is the share of correct categories.
Rivals see the party's own columns, one-hot: the median and mode, scikit-learn's IterativeImputer
(`imputer`), and the same with LightGBM (100 trees, 3 rounds, 20 nearest columns). `alone` is
`complete` of one table, `peers` of both. `covered` is the share of cells in their 80 % intervals;
numbers without an interval (`none`) have a probability that the filled value is exact: the last
list compares it with the share of exact cells.
PhysioNet 2012 has one column for each parameter, its mean.

`--out` stores the scores of each finished step as a line of JSON: of medians, imputers or xvfl, for
a table, share and seed. A second call continues the file. After a change of xvfl, remove the lines
of step `xvfl`.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm import LGBMRegressor
from numpy.typing import NDArray
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from xvfl import XVFLClassifier
from xvfl.config import TableOptions
from xvfl.data.codecs import CategoryCodec, HashedCodec
from xvfl.data.encoder import TableEncoder
from xvfl.data.parse import mask_missing
from xvfl.data.text import as_text
from xvfl.model.filled_cells import Completion
from xvfl_lab.datasets import find
from xvfl_lab.datasets.csv_tables import read_csv_table
from xvfl_lab.datasets.table_sets import Table

MIN_CELLS = 20
"""Fewest hidden cells of a column that is compared."""
MAX_VALUES = 20
"""Values of a category that the rivals see and fill."""
FIGURES = ("rmse", "mae", "correct", "covered", "none")
METHODS = ("median", "imputer", "imputer LightGBM", "alone", "peers")
Frames = dict[str, pd.DataFrame]
Score = dict[str, Any]
"""Figures of a party, column and method."""
Means = dict[str, dict[str, float]]
"""Figures of a table, by method."""


@dataclass(frozen=True)
class Part:
    """Some rows of both parties, as they are and with hidden cells."""

    true: Frames
    hidden: Frames


def read(name: str) -> Table:
    """Read a data set with its own columns, or a CSV file."""
    if ":" in name:
        return read_csv_table(name)
    files = find(name)
    if files is None:
        raise SystemExit(f"{name}: not found; see `xvfl-lab data get {name}`")
    table = files.format.read(files.paths)
    assert isinstance(table, Table)
    kept = [c for c in table.frame if "__" not in c or c.endswith("__mean")]
    return replace(table, frame=table.frame[kept])


def draw(table: Table, rows: NDArray[np.int64], share: float, rng: np.random.Generator) -> Part:
    """Split rows over two parties and hide a share of the cells."""
    frame = table.frame.iloc[rows].set_axis([f"row {row}" for row in rows])
    true = {
        party: frame[[c for c in frame if c.partition("__")[0] in features]]
        for party, features in table.parties[2].items()
    }
    hidden = {p: each.mask(rng.random(each.shape) < share) for p, each in true.items()}
    return Part(true, hidden)


@dataclass(frozen=True)
class Problem:
    """Rows to learn from and rows to fill, with cells hidden by share and seed."""

    table: Table
    train_rows: NDArray[np.int64]
    train: Part
    test: Part
    seed: int

    @classmethod
    def draw(cls, table: Table, share: float, seed: int, rows: int, test_rows: int) -> "Problem":
        """Draw rows and hide cells."""
        rng = np.random.default_rng([seed, round(100 * share)])
        parts = (rng.permutation(np.flatnonzero(each)) for each in (~table.test, table.test))
        train, test = (part[:count] for part, count in zip(parts, (rows, test_rows), strict=True))
        drawn = draw(table, train, share, rng), draw(table, test, share, rng)
        return cls(table, train, *drawn, seed)

    def options(self, party: str) -> TableOptions:
        """Return the options of a party's columns."""
        own = tuple(c for c in self.table.options.categorical if c in self.train.true[party])
        return replace(self.table.options, categorical=own)

    def columns(self, party: str) -> "Columns":
        """Return a party's columns as rivals see them; they serve to compare all methods."""
        train = self.train.hidden[party]
        return Columns.of(TableEncoder.fit(train, self.options(party), party), train)


def fit(problem: Problem) -> XVFLClassifier:
    """Train small nets for one epoch: the model that fills cells does not depend on them."""
    tables = problem.train.hidden
    y = pd.Series(problem.table.y[problem.train_rows], index=next(iter(tables.values())).index)
    model = XVFLClassifier(
        table_options={party: problem.options(party) for party in tables},
        random_state=problem.seed,
        method="vanilla",
        members=1,
        epochs=1,
        patience=0,
        verbose=False,
        device="cpu",
    )
    return model.fit(tables, y)


@dataclass(frozen=True)
class Columns:
    """The columns of a party's table as rivals see them: numbers, and flags of frequent values."""

    encoder: TableEncoder
    values: dict[str, list[str]]
    """The most frequent values of categories."""

    @classmethod
    def of(cls, encoder: TableEncoder, train: pd.DataFrame) -> "Columns":
        """Collect the most frequent values."""
        values = {}
        for codec in encoder.codecs:
            if isinstance(codec, CategoryCodec | HashedCodec):
                texts = as_text(mask_missing(train[codec.name], encoder.missing).dropna())
                values[codec.name] = list(texts.value_counts().index[:MAX_VALUES])
        return cls(encoder, values)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Return numbers in the columns' units and flags, NaN where missing."""
        encoded, at, blocks = self.encoder.encode(frame), 0, []
        for number, codec in enumerate(self.encoder.codecs):
            if codec.name in self.values:
                texts = self.texts(frame, codec.name).to_numpy()
                block = (texts[:, None] == np.array(self.values[codec.name])).astype(float)
                gaps = mask_missing(frame[codec.name], self.encoder.missing).isna()
            else:
                block = codec.scale.invert(encoded.values[:, at].astype(float))[:, None]
                gaps = ~encoded.observed[:, number]
            block[np.asarray(gaps, dtype=bool)] = np.nan
            blocks.append(block)
            at += codec.feature.width if codec.feature.kind != "hashed" else 0
        return np.concatenate(blocks, 1)

    def places(self) -> Iterator[tuple[str, slice]]:
        """Yield the columns of `encode` by name."""
        at = 0
        for codec in self.encoder.codecs:
            width = len(self.values.get(codec.name, "1"))
            yield codec.name, slice(at, at + width)
            at += width

    def texts(self, frame: pd.DataFrame, name: str) -> pd.Series:
        """Return the cells of a category as text; whole numbers have no decimals."""
        cells = mask_missing(frame[name], self.encoder.missing).astype(object)
        whole = cells.map(lambda x: int(x) if isinstance(x, float) and x == x // 1 else x)
        return as_text(whole.where(cells.notna(), "")).astype(str)


Fill = Callable[[Columns, pd.DataFrame, pd.DataFrame], dict[str, NDArray[np.float64]]]
"""Fills a party's test rows; learns from its training rows."""


def fill_imputers(
    columns: Columns, train: pd.DataFrame, test: pd.DataFrame
) -> dict[str, NDArray[np.float64]]:
    """Fill a party's test rows by each imputer."""
    own, asked = columns.encode(train), columns.encode(test)
    empty = np.isnan(own).all(0)
    own[:, empty] = 0.0
    trees = LGBMRegressor(n_estimators=100, n_jobs=1, random_state=0, verbose=-1)
    rivals = {
        "imputer": IterativeImputer(random_state=0),
        "imputer LightGBM": IterativeImputer(
            trees, max_iter=3, n_nearest_features=20, random_state=0
        ),
    }
    return {name: each.fit(own).transform(asked) for name, each in rivals.items()}


def fill_medians(
    columns: Columns, train: pd.DataFrame, test: pd.DataFrame
) -> dict[str, NDArray[np.float64]]:
    """Fill a party's test rows by medians of numbers and modes of categories."""
    own, asked = columns.encode(train), columns.encode(test)
    own[:, np.isnan(own).all(0)] = 0.0
    center = np.nanmedian(own, 0)
    for name, place in columns.places():
        if name in columns.values:
            center[place] = np.nanmean(own[:, place], 0)
    return {"median": np.where(np.isnan(asked), center, asked)}


def compare(
    columns: Columns, party: str, part: Part, filled: Mapping[str, NDArray[np.float64]]
) -> list[Score]:
    """Score each column and rival of a party on the hidden cells."""
    scores = []
    for name, place, at, true in hidden_cells(columns, party, part):
        texts = columns.texts(part.true[party], name).to_numpy()[at]
        for method, values in filled.items():
            score: Score = {"party": party, "column": name, "method": method}
            if name in columns.values:
                own = np.array(columns.values[name])[values[at, place].argmax(1)]
                scores.append(score | {"correct": float((own == texts).mean())})
            else:
                scores.append(score | errors(values[at, place.start], true, at))
    return scores


def compare_found(
    columns: Columns, party: str, part: Part, found: Mapping[str, Completion]
) -> list[Score]:
    """Score each column of a party's completed tables on the hidden cells."""
    scores = []
    values = {method: columns.encode(each.table) for method, each in found.items()}
    for name, place, at, true in hidden_cells(columns, party, part):
        texts = columns.texts(part.true[party], name).to_numpy()[at]
        for method, each in found.items():
            score: Score = {"party": party, "column": name, "method": method}
            if name in columns.values:
                own = columns.texts(each.table, name).to_numpy()[at]
                scores.append(score | {"correct": float((own == texts).mean())})
            else:
                score |= errors(values[method][at, place.start], true, at)
                ids = part.true[party].index[at]
                exact = np.isclose(values[method][at, place.start], true[at])
                score["exact"] = float(exact.mean())
                scores.append(score | covered(each.cells, name, ids, true[at], exact))
    return scores


def hidden_cells(
    columns: Columns, party: str, part: Part
) -> Iterator[tuple[str, slice, NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the columns with enough hidden cells: name, place, rows of these cells, all cells."""
    true = columns.encode(part.true[party])
    for name, place in columns.places():
        gaps = part.hidden[party][name].isna().to_numpy(dtype=bool)
        at = np.flatnonzero(gaps & ~np.isnan(true[:, place.start]))
        if len(at) >= MIN_CELLS:
            yield name, place, at, true[:, place.start]


def errors(filled: NDArray[np.float64], true: NDArray[np.float64], at: NDArray[np.int64]) -> Score:
    """Return RMSE and MAE, divided by the standard deviation; `true` are all cells."""
    error = (filled - true[at]) / max(float(np.nanstd(true)), 1e-12)
    return {"rmse": float(np.sqrt((error**2).mean())), "mae": float(np.abs(error).mean())}


def covered(
    cells: pd.DataFrame,
    column: str,
    ids: pd.Index,
    true: NDArray[np.float64],
    exact: NDArray[np.bool_],
) -> Score:
    """Count the cells of a column with an interval, and those whose interval holds the cell.

    Of the others, sum the probabilities that the value is exact, and count the exact ones.
    """
    own = cells[cells["column"] == column].set_index("id").loc[ids]
    low, high, probability = (
        pd.to_numeric(own[each], errors="coerce").to_numpy(float)
        for each in ("low", "high", "probability")
    )
    # `true` was encoded in float32.
    equal = 1e-6 * max(float(np.ptp(true)), 1.0)
    inside, none = (low <= true + equal) & (true <= high + equal), np.isnan(low)
    return {
        "intervals": int((~none).sum()),
        "inside": int(inside.sum()),
        "without": int(none.sum()),
        "probability": float(np.nansum(probability[none])),
        "right": int(exact[none].sum()),
    }


def run_rivals(problem: Problem, fill: Fill = fill_imputers) -> list[Score]:
    """Fill the test rows of each party by rivals, from the party's own columns."""
    scores = []
    for party, hidden in problem.test.hidden.items():
        columns = problem.columns(party)
        filled = fill(columns, problem.train.hidden[party], hidden)
        scores += compare(columns, party, problem.test, filled)
    return scores


def run_xvfl(problem: Problem) -> list[Score]:
    """Fit xvfl, and fill the test rows of each party alone and with peers."""
    model = fit(problem)
    peers = model.complete_details(problem.test.hidden)
    scores = []
    for party, hidden in problem.test.hidden.items():
        alone = model.complete_details({party: hidden}, party)
        found = {"alone": alone, "peers": peers[party]}
        scores += compare_found(problem.columns(party), party, problem.test, found)
    return scores


STEPS: dict[str, Callable[[Problem], list[Score]]] = {
    "medians": partial(run_rivals, fill=fill_medians),
    "imputers": run_rivals,
    "xvfl": run_xvfl,
}


@dataclass(frozen=True)
class Results:
    """Scores of finished steps, in memory and in a file."""

    path: Path | None
    done: dict[str, list[Score]]

    @classmethod
    def read(cls, path: Path | None) -> "Results":
        """Read the finished steps of a file."""
        lines = path.read_text("utf-8").splitlines() if path and path.exists() else []
        records = map(json.loads, lines)
        return cls(path, {json.dumps(each["step"]): each["scores"] for each in records})

    def run(self, step: list[Any], compute: Callable[[], list[Score]]) -> list[Score]:
        """Return the scores of a step, and store them if they are new."""
        key = json.dumps(step)
        if key not in self.done:
            self.done[key] = compute()
            if self.path:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"step": step, "scores": self.done[key]}) + "\n")
        return self.done[key]


def run(results: Results, table: Table, share: float, chosen: argparse.Namespace) -> pd.DataFrame:
    """Return the scores of all seeds: one row for each seed, column and method."""
    parts = []
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):

        def compute(name: str, seed: int = seed) -> list[Score]:
            drawn = Problem.draw(table, share, seed, chosen.rows, chosen.test_rows)
            return STEPS[name](drawn)

        for name in chosen.steps:
            step = [table.name, share, seed, chosen.rows, chosen.test_rows, name]
            scores = results.run(step, partial(compute, name))
            parts.append(pd.DataFrame(scores).assign(share=share, seed=seed))
    return pd.concat(parts)


def summarize(scores: pd.DataFrame) -> Means:
    """Average over columns and seeds, by method."""
    names = [each for each in ("rmse", "mae", "correct") if each in scores]
    means = scores.groupby("method")[names].mean().reindex(METHODS)
    if "intervals" in scores:
        sums = scores.groupby("method")[["inside", "intervals", "without"]].sum()
        means["covered"] = sums["inside"] / sums["intervals"]
        means["none"] = sums["without"] / (sums["intervals"] + sums["without"])
    return {m: {k: round(v, 4) for k, v in row.dropna().items()} for m, row in means.iterrows()}


def worse_than_median(scores: pd.DataFrame) -> dict[str, float]:
    """Return the columns whose mean MAE exceeds that of the median by more than 2 %."""
    if "mae" not in scores:
        return {}
    means = scores.groupby(["party", "column", "method"])["mae"].mean().unstack().dropna()
    if not {"alone", "median"} <= {*means}:
        return {}
    ratio = means[["alone", "peers"]].max(axis=1) / means["median"]
    return {" ".join(map(str, key)): round(each, 3) for key, each in ratio[ratio > 1.02].items()}


def wrong_coverage(scores: pd.DataFrame) -> dict[str, str]:
    """Return the columns whose intervals hold less than 75 or more than 85 % of the cells."""
    if "intervals" not in scores:
        return {}
    own = scores[scores["method"].isin(("alone", "peers"))]
    by_column = own.groupby(["method", "party", "column"])
    sums = by_column[["inside", "intervals"]].sum()
    share = (sums["inside"] / sums["intervals"]).dropna()
    return {
        " ".join(map(str, key)): f"{each:.0%} of {sums.loc[key, 'intervals']:.0f}"
        for key, each in share[(share < 0.75) | (share > 0.85)].items()
    }


def without_interval(scores: pd.DataFrame) -> dict[str, str]:
    """Compare the probabilities of numbers without an interval with the share of exact ones."""
    if "without" not in scores:
        return {}
    sums = scores.groupby("method")[["probability", "right", "without"]].sum()
    shares = sums.div(sums.pop("without"), axis=0).dropna()
    return {
        str(method): f"{each['right']:.1%} exact, mean probability {each['probability']:.1%}"
        for method, each in shares.iterrows()
    }


def main() -> None:
    """Print a table of the methods for each data set and share of hidden cells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+", help="data sets, or FILE:LABEL:COLUMNS")
    parser.add_argument("--rows", type=int, default=6_000, help="most training rows")
    parser.add_argument("--test-rows", type=int, default=3_000, help="most test rows")
    parser.add_argument("--hidden", type=float, nargs="+", default=[0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--out", type=Path, help="store finished steps there, and continue it")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    results = Results.read(chosen.out)
    print("| table, hidden | figure |", " | ".join(METHODS), "|")
    print("|---|---|", "--:|" * len(METHODS), sep="")
    found: list[Means] = []
    worse: dict[str, dict[str, float]] = {}
    wrong: dict[str, dict[str, str]] = {}
    without: dict[str, dict[str, str]] = {}
    for name in chosen.tables:
        table = read(name)
        for share in chosen.hidden:
            scores, key = run(results, table, share, chosen), f"{table.name}, {share:.0%}"
            found.append(summarize(scores))
            worse[key], wrong[key] = worse_than_median(scores), wrong_coverage(scores)
            without[key] = without_interval(scores)
            show(key, found[-1])
    for number, share in enumerate(chosen.hidden):
        own = found[number :: len(chosen.hidden)]
        show(f"mean of {len(own)} tables, {share:.0%}", mean_of(own))
    show_columns("MAE divided by that of the median, where above 1.02", worse)
    show_columns("Cells in 80 % intervals, where outside of 75 to 85 %", wrong)
    show_columns("Cells without an interval", without)


def mean_of(found: list[Means]) -> Means:
    """Average figures over tables; a table without categories has no share of correct ones."""
    return {
        method: {
            figure: float(
                np.mean([each[method][figure] for each in found if figure in each[method]])
            )
            for figure in FIGURES
            if any(figure in each[method] for each in found)
        }
        for method in METHODS
    }


def show_columns(title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a figure of some columns of each table."""
    print(f"\n{title}:")
    for key, columns in found.items():
        print(f"- {key}:", ", ".join(f"{c} {each}" for c, each in columns.items()) or "none")


def show(key: str, means: Means) -> None:
    """Print the means of a table and a share."""
    for figure in FIGURES:
        cells = [f"{means[m][figure]:.3f}" if figure in means[m] else "" for m in METHODS]
        if any(cells):
            print(f"| {key} | {figure} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
