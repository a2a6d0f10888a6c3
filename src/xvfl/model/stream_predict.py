"""Predict Parquet tables of any size in a stream, row for row as `Model.predict` does."""

import errno
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from xvfl.data.join import ahead, together
from xvfl.data.parquet import ParquetTable
from xvfl.data.table_writer import TableWriter
from xvfl.errors import InputError
from xvfl.methods import Mode
from xvfl.model.model import Model

Progress = Callable[[int, int], None]
"""Told how many rows are done, of how many."""


@dataclass
class PredictionSummary:
    """What was written: how many rows, in which modes, how many with notes."""

    rows: int = 0
    flagged: int = 0
    modes: Counter[str] = field(default_factory=Counter)

    def add(self, frame: pd.DataFrame) -> None:
        """Count the rows of some answers."""
        self.rows += len(frame)
        self.flagged += int((frame["notes"] != "").sum())
        self.modes.update(frame["mode"].tolist())


def predict_stream(
    model: Model,
    tables: Mapping[str, ParquetTable],
    mode: Mode | None,
    party: str | None,
    output: Path,
    progress: Progress,
) -> PredictionSummary:
    """Predict the rows of the given tables and write the answers as they come."""
    asked = model.asked(tables, mode, party)
    names = [asked.party] if asked.mode == "local" and asked.party else list(model.encoders)
    given = {name: tables[name] for name in names if name in tables}
    answered = PredictionSummary()
    try:
        with (
            TableWriter(output) as writer,
            tempfile.TemporaryDirectory(prefix=".xvfl-", dir=output.parent) as folder,
        ):
            walk = together(given, asked.party, Path(folder))
            progress(0, walk.rows)
            for ids, sources in ahead(walk.pieces):
                frame = model.predict(sources, asked.mode, asked.party, ids).frame()
                writer.add(frame)
                answered.add(frame)
                progress(answered.rows, walk.rows)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise InputError(
            f"{output.parent}: no space is left for the answers and for matching the ids; make "
            "space there, or write them elsewhere"
        ) from error
    return answered
