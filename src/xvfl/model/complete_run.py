"""Complete tables with the model of a run folder, and write them to files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from xvfl.data.sources import Source, source_ids, take_ids
from xvfl.data.table_writer import write_table
from xvfl.data.text import as_text
from xvfl.dataset.overlap import check_tables
from xvfl.errors import InputError, unknown
from xvfl.model.filled_cells import Completion
from xvfl.model.given_tables import add_absent_columns
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import open_bundle, open_run, read_source
from xvfl.primitives.seeding import derive_seed
from xvfl.system.report import Report

FORMATS = ("csv", "parquet")
CHUNK = 20_000
"""Rows that are completed at once."""


@dataclass(frozen=True)
class CompleteOptions:
    """Which tables to complete, and what to report."""

    parties: tuple[str, ...] = ()
    """All given tables if empty."""
    level: float = 0.8
    n_draws: int = 0
    id_column: str | None = None
    format: str = "csv"
    """csv or parquet."""


@dataclass(frozen=True)
class CompletedFiles:
    """The files of one party, and what was filled."""

    party: str
    rows: int
    cells: int
    """Number of filled cells."""
    paths: tuple[Path, ...]


def complete_run(
    folder: RunDir,
    inputs: Mapping[str, str],
    out: Path,
    options: CompleteOptions,
    report: Report,
) -> list[CompletedFiles]:
    """Complete tables; write each table, its filled cells and its draws into a folder."""
    bundle = open_bundle(folder)
    if bundle is not None:
        model, columns = Model.load(bundle), bundle.manifest().get("id_column", {})
    else:
        model, _, config = open_run(folder)
        columns = {name: party.id_column for name, party in config.parties.items()}
    for name in inputs:
        if name not in model.encoders:
            raise InputError(f"tables: {unknown('party', name, model.encoders)}")
    for name in options.parties:
        if name not in inputs:
            raise InputError(f"--party: {unknown('table', name, inputs)}")
    names = options.parties or tuple(inputs)
    if options.format not in FORMATS:
        raise InputError(f"--format: {unknown('format', options.format, FORMATS)}")
    for name in names:
        model.check_details(name, options.level, options.n_draws)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: expected a folder, found a file; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    ids = {name: options.id_column or columns.get(name) for name in inputs}
    sources = {name: read_source(table, ids[name], name, 0) for name, table in inputs.items()}
    check_tables(sources)
    sources = add_absent_columns(model.encoders, sources)
    return [
        _complete_party(model, sources, name, ids[name], out, options, report, (at, len(names)))
        for at, name in enumerate(names)
    ]


def _complete_party(
    model: Model,
    sources: Mapping[str, Source],
    party: str,
    id_column: str | None,
    out: Path,
    options: CompleteOptions,
    report: Report,
    place: tuple[int, int],
) -> CompletedFiles:
    ids = source_ids(sources[party])
    rng = np.random.default_rng(derive_seed(model.random_state, "draws", party))
    parts: list[Completion] = []
    for start in range(0, max(len(ids), 1), CHUNK):
        report(party, (place[0] + start / max(len(ids), 1)) / place[1])
        chosen = ids[start : start + CHUNK]
        rows = {name: take_ids(source, chosen) for name, source in sources.items()}
        parts.append(
            model.complete_details(rows, party, chosen, options.level, options.n_draws, rng)
        )
    cells = pd.concat([part.cells for part in parts], ignore_index=True)
    texts = {name: as_text(cells[name]) for name in ("value", "low", "high")}
    completed = [part.table for part in parts]
    tables = {
        party: pd.concat(completed).rename_axis(id_column),
        f"{party}.cells": cells.assign(**texts),
    }
    for number in range(options.n_draws):
        drawn = pd.concat([part.draws[number] for part in parts])
        tables[f"{party}.draw{number + 1}"] = drawn.rename_axis(id_column)
    paths = [out / f"{name}.{options.format}" for name in tables]
    for table, path in zip(tables.values(), paths, strict=True):
        write_table(table, path)
    return CompletedFiles(party, len(ids), len(cells), tuple(paths))
