"""Print what `xvfl inspect` finds in CSV files, to judge by hand which warnings are false.

    python lab/benchmarks/inspection_alarms.py "adult.csv:label=>50K:" more/*.csv [--sample 60]

A table is FILE, or FILE:LABEL:COLUMNS as in `xvfl_lab.datasets.csv_tables`; a label above its
median is inspected as a number. COLUMNS, the label and a first column without a name are left out.
"""

import argparse
import re
from pathlib import Path

import numpy as np
import pandas as pd

from xvfl.config import TableOptions
from xvfl.dataset.inspection import Inspection, inspect_tables


def inspect_file(argument: str) -> Inspection:
    """Inspect one file."""
    path, label, left_out = (*argument.rsplit(":", 2), "", "")[:3]
    column = re.split("=|>median", label)[0]
    first = pd.read_csv(path, nrows=0, encoding_errors="replace").columns[0]
    unnamed = [first] if first.startswith("Unnamed") else []
    options = TableOptions(drop=(*filter(None, left_out.split(",")), *unnamed))
    name = Path(path).stem
    return inspect_tables(
        {name: path},
        {name: None},
        column or None,
        {name: options},
        "regression" if label.endswith(">median") else "classification",
    )


def main() -> None:
    """Inspect the files and print each problem."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--sample", type=int, default=0, help="inspect a random sample of these")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tables = sorted(given.tables)
    if given.sample:
        rng = np.random.default_rng(given.seed)
        tables = [tables[i] for i in np.sort(rng.permutation(len(tables))[: given.sample])]
    columns = named = warnings = 0
    for each in tables:
        found = inspect_file(each)
        problems = found.problems()
        columns += sum(map(len, found.columns.values()))
        named += bool(problems)
        warnings += len(problems)
        for problem in problems:
            print(f"{each}: {problem.level}: {problem}")
    print(f"{len(tables)} tables, {columns} columns: {warnings} problems in {named} tables")


if __name__ == "__main__":
    main()
