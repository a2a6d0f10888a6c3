"""Summaries of a stay's measurements: first, last, min, max, mean and count by parameter."""

from collections.abc import Sequence

import pandas as pd

SUMMARIES = ("first", "last", "min", "max", "mean", "n")


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
