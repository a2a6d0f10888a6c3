"""Fill the missing cells of tables from the observed cells of all given parties."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from xvfl.data.encoded import Encoded
from xvfl.data.encoder import TableEncoder
from xvfl.data.sources import Encoder
from xvfl.model.cell_calibration import calibrate_cells
from xvfl.model.cell_distributions import (
    CellDistributions,
    distributions_from_tensors,
    distributions_to_tensors,
)
from xvfl.model.cell_fit import ROWS, Cells, fit_cells
from xvfl.model.filled_cells import CompletedRows
from xvfl.model.run_dir import CELLS, RunDir
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable, RowSource, Table
from xvfl.primitives.seeding import derive_seed
from xvfl_serve.cell_model import CellModel, Predicted

MODEL_PREFIX, DISTRIBUTIONS_PREFIX = "model/", "distributions/"
SCORES = 10_000_000
"""Scores of the rows that are completed at once."""
VALIDATION_SHARE = 0.15
"""Share of a party's own rows on which the distributions of its filled cells are fitted."""


@dataclass(frozen=True)
class CellFiller:
    """The model that fills cells, and the distributions of filled cells by party."""

    parties: tuple[str, ...]
    """Parties with a table, in the order in which the model numbers them."""
    model: CellModel
    distributions: dict[str, CellDistributions]

    def complete(
        self,
        encoders: Mapping[str, Encoder],
        encoded: Mapping[str, Encoded],
        party: str,
        ids: Sequence[str],
    ) -> CompletedRows:
        """Predict every cell of some rows of a party from the observed cells of all tables."""
        encoder, number = encoders[party], self.parties.index(party)
        assert isinstance(encoder, TableEncoder)
        given = {at: encoded[name] for at, name in enumerate(self.parties) if name in encoded}
        rows = {at: pd.Index(each.ids).get_indexer(pd.Index(ids)) for at, each in given.items()}
        targets, size = self.model.of_party(number), max(SCORES // len(self.model.party), 1)
        found: dict[int, list[Predicted]] = {feature: [] for feature in targets}
        cues = np.zeros(len(ids), dtype=np.int64)
        for start in range(0, max(len(ids), 1), size):
            part = slice(start, start + size)
            tables = {at: _take(each, rows[at][part]) for at, each in given.items()}
            for at, table in tables.items():
                cues[part] |= np.where(table.observed.any(1), 1 if at == number else 2, 0)
            for feature, each in self.model.predict(tables, len(ids[part]), number).items():
                found[feature].append(each)
        joined = {feature: Predicted.join(each) for feature, each in found.items()}
        return CompletedRows(encoder, targets, joined, cues, self.distributions[party])

    def to_tensors(self) -> dict[str, Tensor]:
        """Return all contents as tensors, by name."""
        arrays = self.model.to_arrays().items()
        model = {f"{MODEL_PREFIX}{name}": torch.from_numpy(array) for name, array in arrays}
        parts = distributions_to_tensors(self.distributions).items()
        return model | {f"{DISTRIBUTIONS_PREFIX}{name}": each for name, each in parts}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], parties: Sequence[str]) -> "CellFiller":
        """Build it from the tensors of `to_tensors`."""
        model, distributions = (
            {name.removeprefix(each): t for name, t in tensors.items() if name.startswith(each)}
            for each in (MODEL_PREFIX, DISTRIBUTIONS_PREFIX)
        )
        arrays = {name: each.numpy() for name, each in model.items()}
        found = distributions_from_tensors(distributions, parties)
        return cls(tuple(parties), CellModel.from_arrays(arrays), found)


FitCells = Callable[[], CellFiller | None]
"""Fits the model that fills cells."""


def sample_cells(
    encoders: Mapping[str, Encoder],
    tables: Mapping[str, Table],
    training: RowSource,
    validation: RowSource,
    seed: int,
) -> FitCells:
    """Draw the rows that the model is fitted to and calibrated on; return what fits it.

    `encoders` and `tables` are those of all parties, in the order of the rows' handles.
    """
    places = {
        name: at
        for at, (name, each) in enumerate(encoders.items())
        if isinstance(each, TableEncoder)
    }

    def sample(rows: RowSource) -> Mapping[int, Cells]:
        rng = named_generator("cpu", seed, "cells")
        handles = rows.take(torch.randperm(len(rows), generator=rng)[:ROWS]).handles
        return {
            number: _cells(tables[name].take(handles[:, place]))
            for number, (name, place) in enumerate(places.items())
        }

    return partial(_fit, encoders, list(places), sample(training), sample(validation), seed)


def save_own_cells(
    folder: RunDir, name: str, encoder: Encoder, table: PartyTable, seed: int
) -> None:
    """Fit on a party's own rows alone and write the result into its folder; not for images."""
    if not isinstance(encoder, TableEncoder):
        return
    order = torch.randperm(len(table), generator=named_generator("cpu", seed, "cells"))
    order = order.to(table.device)
    count = max(int(len(table) * VALIDATION_SHARE), 1)
    validation, training = (_cells(table.take(each)) for each in (order[:count], order[count:]))
    cells = _fit({name: encoder}, [name], {0: training}, {0: validation}, seed)
    if cells is not None:
        folder.save_tensors(CELLS, cells.to_tensors(), {"party": name})


def load_own_cells(folder: RunDir) -> CellFiller | None:
    """Read what `save_own_cells` wrote; None if it wrote nothing."""
    if not folder.has(CELLS):
        return None
    tensors, about = folder.load_tensors(CELLS)
    return CellFiller.from_tensors(tensors, [about["party"]])


def _fit(
    encoders: Mapping[str, Encoder],
    names: Sequence[str],
    training: Mapping[int, Cells],
    validation: Mapping[int, Cells],
    seed: int,
) -> CellFiller | None:
    own = {
        at: each
        for at, name in enumerate(names)
        if isinstance(each := encoders[name], TableEncoder)
    }
    if not own:
        return None
    seeds = (derive_seed(seed, "cells", purpose) for purpose in ("fit", "calibration"))
    model = fit_cells(own, training, next(seeds))
    model, found = calibrate_cells(model, own, training, validation, next(seeds))
    return CellFiller(tuple(names), model, {names[at]: each for at, each in found.items()})


def _cells(table: PartyTable) -> Cells:
    values, codes, observed = (
        each.cpu().numpy() for each in (table.values, table.codes, table.observed)
    )
    return Cells(values, codes, observed)


def _take(encoded: Encoded, places: np.ndarray) -> Cells:
    """Select encoded rows; place −1 is a row that the party does not hold."""
    parts: list[np.ndarray] = [encoded.values, encoded.codes, encoded.observed]
    if not len(encoded.ids):
        parts = [np.zeros((1, *each.shape[1:]), each.dtype) for each in parts]
    values, codes, observed = (each[places] for each in parts)
    return Cells(values, codes, observed & (places >= 0)[:, None])
