"""What tables to predict or to complete do not have: columns used in training, or any row."""

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from xvfl.data.encoder import TableEncoder
from xvfl.data.sources import Encoder, Source, source_columns, source_index
from xvfl.errors import InputError, warn
from xvfl.methods import Mode
from xvfl.model.model import Model
from xvfl.model.prediction import Prediction, used_tables

MAX_NAMED = 5
"""Absent columns of a table that a warning names."""


def predict_given(
    model: Model,
    sources: Mapping[str, Source],
    mode: Mode | None,
    party: str | None,
    ids: Sequence[str] | None = None,
    strict: bool = False,
) -> Prediction:
    """Predict with what the tables have; see `check_given`."""
    used = used_tables(model.resolve_request(sources, mode, party), sources)
    columns = {name: source_columns(each) for name, each in used.items() if len(source_index(each))}
    nothing = check_given(model.encoders, used, columns, strict)
    return model.predict(sources, mode, party, ids, strict, nothing)


def check_given(
    encoders: Mapping[str, Encoder],
    parties: Collection[str],
    columns: Mapping[str, Sequence[str]],
    strict: bool,
) -> list[str]:
    """Return the parties without rows; warn about columns that seem to be renamed.

    `columns` are those of the parties with rows. If `strict`, reject a party without rows.
    """
    nothing = [name for name in parties if name not in columns]
    if nothing and strict:
        raise InputError(
            f"party {nothing[0]!r}: expected a table with rows, because of `strict`, but got "
            "nothing; give its table, or leave the party out"
        )
    for name, own in columns.items():
        encoder = encoders[name]
        renamed = encoder.renamed(own) if isinstance(encoder, TableEncoder) else {}
        if renamed and not strict:
            named = "; ".join(f"{old!r} (did you mean {new!r}?)" for old, new in renamed.items())
            warn(
                f"party {name!r}: columns used in training are not in the table and count as "
                f"missing: {named}; if they were renamed, restore their names"
            )
    return nothing


def add_absent_columns(
    encoders: Mapping[str, Encoder], sources: Mapping[str, Source]
) -> dict[str, Source]:
    """Add the columns that tables to complete do not have, without values; warn about them."""
    result = dict(sources)
    for name, source in sources.items():
        encoder = encoders.get(name)
        if not isinstance(encoder, TableEncoder) or not isinstance(source, pd.DataFrame):
            continue
        absent = encoder.absent(source.columns)
        if not absent:
            continue
        renamed = encoder.renamed(source.columns)
        named = [
            f"{each!r} (did you mean {renamed[each]!r}?)" if each in renamed else repr(each)
            for each in absent
        ]
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        warn(
            f"party {name!r}: columns used in training are not in the table, so that all their "
            f"cells are filled: {', '.join(named[:MAX_NAMED])}{more}"
        )
        result[name] = source.reindex(columns=[*source.columns, *absent])
    return result
