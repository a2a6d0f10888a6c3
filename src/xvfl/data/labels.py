"""Labels that sit with a party that also has features: the usual bank."""

from collections.abc import Mapping

import pandas as pd

from xvfl.data.frames import read_labels
from xvfl.data.sources import Source
from xvfl.errors import InputError, unknown


def labels_at_party(
    sources: Mapping[str, Source], party: str, column: str, fewest: int = 2
) -> tuple[dict[str, Source], pd.Series]:
    """Take the labels out of the table of the party that holds them."""
    table = sources.get(party)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"labels: expected a table of party {party!r}, got {list(sources)}")
    where = f"labels of party {party!r}"
    if column not in table:
        raise InputError(f"{where}: {unknown('label column', column, table.columns)}")
    where += f", column {column!r}"
    labels = read_labels(table[column], id_column=None, column=None, where=where, fewest=fewest)
    return {**sources, party: table.drop(columns=[column])}, labels
