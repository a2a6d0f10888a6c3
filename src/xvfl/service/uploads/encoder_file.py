"""An encoder as a file: trained on another machine, installed in the party's state folder.

The machine that trains needs the party's configuration, its table, and the ids that the encoder
must not learn from; neither a certificate nor a secret. The file is in safetensors format: the
weights, the model that fills the party's cells, and as JSON how columns are encoded, the
configuration of the encoder, and a fingerprint of the columns and of the rows that it learned from.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.config import EncoderConfig, build
from xvfl.data.encoder import encoder_from_dict
from xvfl.data.sources import Source, source_columns, source_index
from xvfl.errors import ConfigError, InputError, RunError, XVFLError
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl.matching.alignment import TableFingerprint
from xvfl.model.cell_filler import CellFiller, load_own_cells
from xvfl.model.run_dir import CELLS, CHECKPOINT, RunDir
from xvfl.service.matched_table import load_matched_table
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.secret import load_secret
from xvfl.service.uploads.file_exchange import read_held_out
from xvfl.service.uploads.party_encoder import (
    ENCODER,
    WEIGHTS,
    PartyEncoder,
    current_version,
    is_trained,
    load_held_out,
    store_held_out,
)
from xvfl.service.uploads.party_withdrawal import record_withdrawn_rows
from xvfl.service.uploads.withdrawn import Withdrawn
from xvfl.system.report import Report, no_report
from xvfl.training.optimizer import strip_prefix
from xvfl_serve.cell_model import check_cells

CELLS_PREFIX = "cells/"
"""Before the names of the tensors of the model that fills cells."""


def export_excluded(inputs: PartyInputs, held_out: Path | None, out: Path) -> int:
    """Write the ids that the encoder must not learn from; return their number.

    `held_out` is the coordinator's list as a file; it is stored in the state folder. Without it,
    the list must have arrived before.
    """
    ids = source_index(inputs.source)[_excluded_rows(inputs, held_out)].tolist()
    RunDir(out.parent).write_json(out.name, {"party": inputs.name, "ids": ids})
    return len(ids)


def read_excluded(path: Path) -> tuple[str, list[str]]:
    """Read a file of `export_excluded`: the party's name, and the ids."""
    content = RunDir(path.parent).read_json(path.name)
    name, ids = content.get("party"), content.get("ids")
    if not isinstance(name, str) or not isinstance(ids, list):
        raise InputError(f"{path}: expected a file of `xvfl upload exclude`")
    return name, ids


def train_encoder_file(
    inputs: PartyInputs, excluded: list[str], out: Path, stop: Event, report: Report = no_report
) -> int | None:
    """Train an encoder and write it to a file; return the number of rows, or None if stopped.

    Parameters
    ----------
    inputs
        The party's table and configuration, with an empty folder for the training, which is deleted
        at its end, or with the folder of a training that was stopped.
    excluded
        Ids that the encoder must not learn from.
    out
        The file to write.
    stop
        Stops the training.
    report
        Receives the progress.
    """
    if inputs.config.encoder.epsilon is not None:
        raise ConfigError(
            "encoder.epsilon: an encoder with differential privacy is not trained; start the party"
        )
    index = source_index(inputs.source)
    if unknown := set(excluded) - set(index):
        raise InputError(
            f"{len(unknown)} of {len(excluded)} excluded ids are not in the table; use a copy of "
            "the party's table"
        )
    rows, folder = np.flatnonzero(~index.isin(excluded)), inputs.folder
    learned = _fingerprint(inputs.source, rows, load_secret(folder).hex())
    # Another table or list has another folder.
    inputs = replace(inputs, folder=RunDir(folder / learned.ids[:16]))
    if not PartyEncoder(inputs).train(torch.from_numpy(rows), stop, report):
        return None
    trained = RunDir(inputs.folder / "encoders/1")
    weights, about = trained.load_tensors(WEIGHTS)
    cells = load_own_cells(trained)
    if cells is not None:
        weights |= {f"{CELLS_PREFIX}{name}": each for name, each in cells.to_tensors().items()}
    about |= {"encoder": trained.read_json(ENCODER), "rows": asdict(learned)}
    RunDir(out.parent).save_tensors(out.name, weights, about)
    shutil.rmtree(folder.path)
    return len(rows)


def install_encoder(inputs: PartyInputs, path: Path) -> int:
    """Store the encoder of a file as the version that the party uploads next; return the version.

    It must have the party's configuration, and must have learned from the rows from which the party
    would learn.
    """
    folder, version = inputs.folder, current_version(inputs.folder)
    if is_trained(folder, version):
        raise RunError(
            f"version {version} of the encoder is trained already; allow the next one with `xvfl "
            "upload new-version`"
        )
    try:
        tensors, about = RunDir(path.parent).load_tensors(path.name)
        cells = strip_prefix(tensors, CELLS_PREFIX)
        weights = {n: each for n, each in tensors.items() if not n.startswith(CELLS_PREFIX)}
        _check_config(inputs.config.encoder, build(EncoderConfig, about["config"], "config"))
        _check_rows(inputs, build(TableFingerprint, about["rows"], "rows"))
        layout = encoder_from_dict(about["encoder"]).layout
        build_encoder(inputs.name, layout, inputs.config.encoder, [0]).load_state_dict(weights)
        if not all(bool(each.isfinite().all()) for each in weights.values()):
            raise RunError("its weights are not finite")
        if cells:
            check_cells(CellFiller.from_tensors(cells, [inputs.name]).model)
        kept = {
            "full_threshold": float(about["full_threshold"]),
            "config": asdict(inputs.config.encoder),
        }
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = error if isinstance(error, XVFLError) else f"not a complete encoder ({error!r})"
        raise RunError(f"{path}: the encoder is rejected: {reason}") from error
    stored = RunDir(folder / f"encoders/{version}").create()
    with stored.transaction():
        stored.write_json(ENCODER, about["encoder"])
        if cells:
            stored.save_tensors(CELLS, cells, {"party": inputs.name})
        stored.save_tensors(WEIGHTS, weights, kept)
    (stored / CHECKPOINT).unlink(missing_ok=True)
    return version


def _excluded_rows(inputs: PartyInputs, held_out: Path | None = None) -> NDArray[np.int64]:
    """Return the rows that are held out or withdrawn."""
    folder, table = inputs.folder, load_matched_table(inputs)
    if table.match is None:
        raise RunError("ids are not matched yet; run `xvfl align` first")
    record_withdrawn_rows(inputs, table)
    session, matched = table.match.session.hex(), table.match.rows
    if held_out is not None:
        listed, found, _ = read_held_out(inputs.config, inputs.name, held_out)
        if found != session:
            raise RunError(f"{held_out}: the list belongs to another alignment; ask for a new one")
        store_held_out(folder, session, listed, len(matched))
    handles = load_held_out(folder, session)
    if handles is None:
        raise RunError(
            "the held-out rows of this alignment are not known yet; run `xvfl upload held-out` at "
            "the coordinator, and `xvfl upload exclude --held-out` with the file that it writes"
        )
    return matched[[*handles, *Withdrawn(folder).rows(session)]]


def _fingerprint(source: Source, rows: NDArray[Any], secret: str) -> TableFingerprint:
    return TableFingerprint.of(source_columns(source), source_index(source)[rows].tolist(), secret)


def _check_rows(inputs: PartyInputs, found: TableFingerprint) -> None:
    """Reject an encoder that learned from other columns or rows than the party would."""
    rows = np.setdiff1d(np.arange(len(source_index(inputs.source))), _excluded_rows(inputs))
    now = _fingerprint(inputs.source, rows, found.secret)
    if now.columns != found.columns:
        raise RunError(f"it has the columns {list(found.columns)}, the table {list(now.columns)}")
    if now != found:
        raise RunError(
            f"it learned from {found.rows} rows, expected the {now.rows} rows of this table that "
            "are neither held out nor withdrawn; write their ids again with `xvfl upload exclude`, "
            "and train again"
        )


def _check_config(expected: EncoderConfig, found: EncoderConfig) -> None:
    """Reject an encoder with another configuration; the number of copies has no effect on it."""
    now, before = asdict(expected), asdict(found)
    names = [name for name in now if now[name] != before[name] and name != "masked_copies"]
    if names:
        here, there = ({name: each[name] for name in names} for each in (now, before))
        raise RunError(f"[encoder] has {here} at this party, and {there} in the file")
