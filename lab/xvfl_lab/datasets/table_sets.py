"""Shared by the table data sets: each party encodes its own columns, fitted on training rows.

Shapes: N rows. A column `NAME__SUMMARY` is part of the raw feature NAME, which is observed or
missing as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.config import TableOptions
from xvfl.data.encoded import Encoded
from xvfl.data.encoder import TableEncoder
from xvfl.errors import InputError
from xvfl.primitives.layout import Layout
from xvfl_lab.task import Task

SUMMARIES = ("first", "last", "min", "max", "mean", "n")
"""Summaries of the measurements of one parameter in a stay."""
Parties = Mapping[str, Sequence[str]]
"""Party names and their raw features."""


@dataclass(frozen=True)
class Table:
    """Table, labels and test rows of a data set."""

    name: str
    frame: pd.DataFrame
    y: NDArray[np.int64]
    test: NDArray[np.bool_]
    parties: Mapping[int, Parties]
    """The splits, by number of parties."""
    options: TableOptions

    def split(self, parties: int) -> Task:
        """Encode each party's columns with its own encoder, fitted on the training rows."""
        layouts, values, observed, codes = {}, {}, {}, {}
        for party, features in self.parties[parties].items():
            own = self.frame[[c for c in self.frame.columns if _feature(c) in features]]
            listed = tuple(name for name in self.options.categorical if name in own.columns)
            options = replace(self.options, categorical=listed)
            encoder = TableEncoder.fit(own[~self.test], options, party)
            layouts[party], encoded = whole_features(encoder.layout, encoder.encode(own))
            values[party], observed[party] = encoded.values, encoded.observed
            if encoded.codes.shape[1]:
                codes[party] = encoded.codes
        # Arrays of pandas may be read-only, which torch warns about.
        y, test = self.y.copy(), self.test.copy()
        return Task(self.name, layouts, values, y, observed, codes, test)


def whole_features(layout: Layout, encoded: Encoded) -> tuple[Layout, Encoded]:
    """Merge the columns of one raw feature, which the encoder treats as separate features."""
    numbered = list(enumerate(layout.features))
    groups = [list(each) for _, each in groupby(numbered, lambda each: _feature(each[1].name))]
    features = tuple(
        replace(first, name=_feature(first.name), width=sum(feature.width for _, feature in group))
        for group in groups
        for first in [group[0][1]]
    )
    observed = np.stack([encoded.observed[:, group[0][0]] for group in groups], axis=1)
    return replace(layout, features=features), replace(encoded, observed=observed)


def require_columns(frame: pd.DataFrame, columns: Sequence[str], path: Path) -> None:
    """Reject a table without the columns."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(
            f"{path}: expected the columns {', '.join(columns)}, got none named "
            f"{', '.join(missing)}; get the publisher's own file"
        )


def _feature(column: str) -> str:
    return column.partition("__")[0]


def summarize(events: pd.DataFrame, stays: Sequence[int]) -> pd.DataFrame:
    """Turn chronological events (stay, parameter, value) into one row for each stay.

    Columns are PARAMETER__SUMMARY; all six are empty where the parameter was never measured.
    """
    values = events.groupby(["parameter", "stay"])["value"]
    table = values.agg(["first", "last", "min", "max", "mean", "count"])
    table = table.rename(columns={"count": "n"})
    columns: dict[str, pd.Series] = {}
    for parameter in sorted(events["parameter"].unique()):
        own = table.loc[parameter].reindex(list(stays)).astype("float64")
        columns |= {f"{parameter}__{summary}": own[summary] for summary in SUMMARIES}
    return pd.DataFrame(columns)
