"""Predict Parquet tables of any size chunk by chunk, with the results of `Model.predict`."""

import errno
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from xvfl.data.join import join_tables, prefetch
from xvfl.data.parquet import ParquetTable
from xvfl.data.table_writer import TableWriter
from xvfl.dataset.overlap import check_index
from xvfl.errors import InputError, warn
from xvfl.methods import Mode
from xvfl.model.given_tables import check_given
from xvfl.model.model import Model
from xvfl.model.prediction import UNKNOWN_ID, used_tables
from xvfl.system.report import Report
from xvfl_serve.row_report import FULL_ROW, NO_GAP, NOT_OBSERVED


@dataclass
class PredictionSummary:
    """Counts of predicted rows: in total, by mode, and with notes."""

    prior_name: str = "class prior"
    """The prediction of rows without any observed feature."""
    rows: int = 0
    with_notes: int = 0
    """Rows with other notes than that they were decided alone."""
    decided_alone: int = 0
    """Rows of an assisted prediction that needed no assistance."""
    modes: Counter[str] = field(default_factory=Counter)
    not_observed: Counter[str] = field(default_factory=Counter)
    """Rows that were predicted without any observed feature, by note."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """First ids of these rows, by note."""

    def add(self, frame: pd.DataFrame) -> None:
        """Count the rows of a table of predictions."""
        self.rows += len(frame)
        for note, count in Counter(frame["notes"].tolist()).items():
            self.with_notes += count * (note not in ("", NO_GAP, FULL_ROW))
            self.decided_alone += count * (NO_GAP in note or FULL_ROW in note)
        self.modes.update(frame["mode"].tolist())
        notes = frame["notes"][frame["mode"] == "prior"]
        for note in (NOT_OBSERVED, UNKNOWN_ID):
            ids = notes.index[[note in each for each in notes]]
            self.not_observed[note] += len(ids)
            self.examples[note] = [*self.examples.get(note, []), *map(str, ids[:2])][:2]

    def warn(self) -> None:
        """Warn about rows that were predicted without any observed feature."""
        reasons = {
            UNKNOWN_ID: "rows have an id that is in none of the tables used",
            NOT_OBSERVED: "rows have no observed feature at the parties used",
        }
        for note, reason in reasons.items():
            if self.not_observed[note]:
                ids = ", ".join(map(repr, self.examples[note]))
                warn(
                    f"{self.not_observed[note]:,} of {self.rows:,} {reason} ({ids}); their "
                    f"prediction is the {self.prior_name}, mode 'prior': check the ids and tables, "
                    "or leave these rows out"
                )


def predict_stream(
    model: Model,
    tables: Mapping[str, ParquetTable],
    mode: Mode | None,
    party: str | None,
    output: Path,
    report: Report,
    strict: bool = False,
) -> PredictionSummary:
    """Predict the rows of the given tables and write the predictions to a file."""
    request = model.resolve_request(tables, mode, party)
    used = used_tables(request, tables)
    columns = {name: table.columns for name, table in used.items() if len(table)}
    nothing = check_given(model.encoders, used, columns, strict)
    given = {name: used[name] for name in model.encoders if name in used}
    summary = PredictionSummary(model.task.prior_name)
    try:
        with (
            TableWriter(output) as writer,
            tempfile.TemporaryDirectory(prefix=".xvfl-", dir=output.parent) as folder,
        ):
            joined = join_tables(given, request.party, Path(folder), check_index)
            for ids, sources in prefetch(joined.chunks):
                prediction = model.predict(
                    sources, request.mode, request.party, ids, strict, nothing
                )
                frame = prediction.frame()
                writer.add(frame)
                summary.add(frame)
                share = summary.rows / max(joined.rows, 1)
                report(f"{summary.rows:,} of {joined.rows:,} rows", share)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise InputError(
            f"{output.parent}: no space left for the predictions and the id index; free some "
            "space, or choose another --out"
        ) from error
    return summary
