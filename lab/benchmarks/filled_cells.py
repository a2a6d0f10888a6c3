"""Check intervals and probabilities of filled cells on real tables, with cells hidden at random.

    python lab/benchmarks/filled_cells.py bank physionet2012 --json filled-cells.json

For each data set: train on rows as they are, hide a share of the cells of the test rows at both
parties, complete them, and compare with the hidden values. PhysioNet 2012 has one column for each
parameter, its mean. `previous` and `campaign` of Bank have few different values; the interval of
such a column holds at least the stated share.
"""

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from xvfl import DataWarning, XVFLClassifier
from xvfl.model.filled_cells import Completion
from xvfl.primitives.metrics import ece
from xvfl_lab.datasets import find
from xvfl_lab.datasets.table_sets import Table

MIN_CELLS = 500
"""Fewest cells for a figure of a single column."""


def read(name: str) -> Table:
    """Read a data set with its own columns."""
    files = find(name)
    if files is None:
        raise SystemExit(f"{name}: not found; see `xvfl-lab data get {name}`")
    table = files.format.read(files.paths)
    assert isinstance(table, Table)
    kept = [c for c in table.frame if "__" not in c or c.endswith("__mean")]
    return replace(table, frame=table.frame[kept])


def split(table: Table, rows: np.ndarray) -> dict[str, pd.DataFrame]:
    """Split rows over two parties."""
    frame = table.frame.iloc[rows].set_axis([f"row {row}" for row in rows])
    return {
        party: frame[[c for c in frame if c.partition("__")[0] in features]]
        for party, features in table.parties[2].items()
    }


def fit(table: Table, rows: np.ndarray, seed: int) -> XVFLClassifier:
    """Train with the default configuration."""
    tables = split(table, rows)
    options = {
        party: replace(
            table.options, categorical=tuple(c for c in table.options.categorical if c in frame)
        )
        for party, frame in tables.items()
    }
    y = pd.Series(table.y[rows], index=next(iter(tables.values())).index)
    model = XVFLClassifier(table_options=options, random_state=seed, verbose=False)
    return model.fit(tables, y)


def compare(true: pd.DataFrame, found: Completion, missing: tuple[str, ...]) -> pd.DataFrame:
    """Tell for each hidden cell whether the interval holds it, or the value is correct."""
    cells = found.cells
    values = true.astype(object).stack(future_stack=True)
    keys = pd.MultiIndex.from_frame(cells[["id", "column"]])
    cells = cells.assign(true=values.loc[keys].to_numpy())
    cells = cells[cells["true"].notna() & ~cells["true"].isin(missing)]
    numeric = cells["low"].notna()
    low, high, numbers = (
        pd.to_numeric(cells[each].where(numeric)) for each in ("low", "high", "true")
    )
    inside = (low <= numbers + 1e-6) & (numbers <= high + 1e-6)
    correct = cells["value"].astype(str) == cells["true"].map(_text)
    return cells.assign(numeric=numeric, hit=np.where(numeric, inside, correct))


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def figures(cells: pd.DataFrame) -> dict[str, Any]:
    """Compute the coverage of intervals and the calibration error of probabilities."""
    numbers, categories = cells[cells["numeric"]], cells[~cells["numeric"]]
    result: dict[str, Any] = {
        "numbers": len(numbers),
        "coverage": round(float(numbers["hit"].mean()), 3),
        "categories": len(categories),
        "ece": round(calibration_error(categories), 3),
    }
    by_column = {str(name): of for name, of in cells.groupby("column") if len(of) >= MIN_CELLS}
    result["coverage by column"] = {
        name: round(float(of["hit"].mean()), 3)
        for name, of in by_column.items()
        if of["numeric"].all()
    }
    result["ece by column"] = {
        name: round(calibration_error(of), 3)
        for name, of in by_column.items()
        if not of["numeric"].any()
    }
    return result


def calibration_error(cells: pd.DataFrame) -> float:
    """Compute the ECE of the probabilities of the filled values."""
    confidence = cells["probability"].to_numpy(dtype=float)
    # `ece` takes the largest probability and its class: 0 here if the value is correct.
    proba = np.stack([confidence, np.zeros(len(cells))], 1)
    return ece(proba, np.where(cells["hit"], 0, 1))


def main() -> None:
    """Print the figures of each data set and share of hidden cells."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", nargs="+", help="bank, physionet2012")
    parser.add_argument("--rows", type=int, default=12_000, help="most training and test rows")
    parser.add_argument("--hidden", type=float, nargs="+", default=[0.1, 0.3, 0.6])
    parser.add_argument("--level", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", DataWarning)
    results = {}
    for name in chosen.datasets:
        table, rng = read(name), np.random.default_rng(chosen.seed)
        parts = (rng.permutation(np.flatnonzero(part)) for part in (~table.test, table.test))
        train, test = (part[: chosen.rows] for part in parts)
        started = time.perf_counter()
        model = fit(table, train, chosen.seed)
        seconds = time.perf_counter() - started
        print(f"{name}: trained on {len(train):,} rows in {seconds:.0f} s")
        true = split(table, test)
        for share in chosen.hidden:
            hidden = {p: frame.mask(rng.random(frame.shape) < share) for p, frame in true.items()}
            found = model.complete_details(hidden, level=chosen.level)
            missing = table.options.na_values
            cells = pd.concat([compare(true[p], found[p], missing) for p in true])
            result = results[f"{name}, {share:g} hidden"] = figures(cells)
            print(f"  {share:.0%} hidden: {json.dumps(result)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
