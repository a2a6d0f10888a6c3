"""Labels that sit with a party that also has features: the usual bank."""

from collections.abc import Mapping

import pandas as pd

from xvfl.data.frames import read_labels
from xvfl.errors import InputError
from xvfl.prepare import Source


def labels_at_party(
    sources: Mapping[str, Source], party: str, column: str
) -> tuple[dict[str, Source], pd.Series]:
    """Take the labels out of the table of the party that holds them."""
    table = sources.get(party)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"labels: expected a table of party {party!r}, got {list(sources)}")
    labels = read_labels(
        table.reset_index(),
        id_column=str(table.index.name),
        column=column,
        where=f"labels of party {party!r}",
    )
    return {**sources, party: table.drop(columns=[column])}, labels
