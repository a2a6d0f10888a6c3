"""Any CSV file as a table of two parties, which hold every second column each."""

from pathlib import Path

import numpy as np
import pandas as pd

from xvfl.config import TableOptions
from xvfl.errors import InputError
from xvfl_lab.datasets.table_sets import Table

TRAIN_SHARE = 0.7
"""Largest share of the rows that train, those for validation included."""


def read_csv_table(
    argument: str, train_rows: int = 14_000, test_rows: int = 6_000, name: str = ""
) -> Table:
    """Read a file, shuffle its rows and split its columns over two parties.

    Parameters
    ----------
    argument : str
        FILE:LABEL:COLUMNS. LABEL is COLUMN=VALUE, or COLUMN>median; the column is no feature.
        COLUMNS are left out, separated by commas. Text columns are categories.
    train_rows, test_rows : int
        Most rows of each kind, 0 for no limit; at most 70 % of all rows train.
    name : str, optional
        Name of the table; by default, that of the file.

    Returns
    -------
    Table

    Raises
    ------
    InputError
        The argument has another form, or a column does not exist.
    """
    if argument.count(":") < 2:
        raise InputError(f"{argument}: expected FILE:LABEL:COLUMNS, where COLUMNS may be empty")
    path, label, left_out = argument.rsplit(":", 2)
    frame = pd.read_csv(path, na_values=["?"], skipinitialspace=True)
    unnamed = [column for column in frame if str(column).startswith("Unnamed")]
    frame = frame.drop(columns=unnamed).sample(frac=1, random_state=7, ignore_index=True)
    above = label.endswith(">median")
    column, _, value = label.partition(">" if above else "=")
    unused = [column, *filter(None, left_out.split(","))]
    missing = [each for each in unused if each not in frame]
    if missing:
        raise InputError(
            f"{path}: has no column {missing[0]!r}; it has {', '.join(map(str, frame))}"
        )
    y = frame[column] > frame[column].median() if above else frame[column].astype(str) == value
    frame = frame.drop(columns=unused)
    frame = frame.rename(columns=lambda each: each.replace("__", "_"))
    train = min(train_rows or len(frame), int(TRAIN_SHARE * len(frame)))
    end = train + test_rows if test_rows else len(frame)
    frame, y = frame.iloc[:end], y.iloc[:end]
    names = [str(each) for each in frame]
    text = tuple(each for each in names if not pd.api.types.is_numeric_dtype(frame[each]))
    parties = {2: {"first": names[::2], "second": names[1::2]}}
    test = np.arange(len(frame)) >= train
    labels = y.to_numpy().astype(np.int64)
    options = TableOptions(categorical=text)
    return Table(name or Path(path).stem, frame, labels, test, parties, options)
