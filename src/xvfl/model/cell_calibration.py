"""Fit the distributions of filled cells on validation rows with cells hidden at random.

Shapes: N rows, n copies of them, p encoded columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from xvfl.data.codecs import CategoryCodec, HashedCodec, NumberCodec
from xvfl.data.encoder import TableEncoder
from xvfl.federation.fused import FusedFederation
from xvfl.model.cell_distributions import (
    BINS,
    GROUPS,
    LEVELS,
    CellDistributions,
    cell_groups,
    fit_quantiles,
    fit_scores,
)
from xvfl.model.complete_rows import complete_rows
from xvfl.model.completion import hash_embeddings
from xvfl.model.model import Model
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable, Rows, align_rows, observation_levels

ROWS, MAX_REPEATS = 4000, 5
"""Number of rows whose cells are hidden; fewer validation rows are used several times."""
MAX_HASHED_CELLS = 500
"""Most hidden cells of a hashed column; each is compared with the whole vocabulary."""
HIDDEN = ("everywhere", "own", "absent")
"""Hide cells at all parties, at the party alone, or all of its cells and some at the others."""


@torch.no_grad()
def fit_cell_distributions(
    model: Model, federation: FusedFederation, rows: Rows
) -> dict[str, CellDistributions]:
    """Fit the distributions of the filled cells of every party with a table."""
    rng = named_generator("cpu", model.random_state, "cell calibration")
    chosen = torch.randperm(len(rows), generator=rng)[:ROWS]
    rows = rows.take(chosen.to(rows.device))
    tables = {
        worker.name: worker.table.take(rows.handles[:, i]).to(torch.device("cpu"))
        for i, worker in enumerate(federation.workers)
    }
    repeats = min(max(ROWS // max(len(rows), 1), 1), MAX_REPEATS)
    fitted = {}
    for party, name in enumerate(tables):
        encoder = model.encoders[name]
        if isinstance(encoder, TableEncoder) and model.parties[name].completes:
            kinds = HIDDEN * repeats
            completed = [
                _complete_hidden(model, tables, party, kinds[at : at + repeats], rng)
                for at in range(0, len(kinds), repeats)
            ]
            fitted[name] = _fit_party(model, encoder, tables[name], completed)
    return fitted


HiddenCells = tuple[Tensor, Tensor, np.ndarray]
"""Completed rows (n·N, p), which cells were hidden (n·N, raw), and the group of each row (n·N,)."""


def _complete_hidden(
    model: Model,
    tables: Mapping[str, PartyTable],
    party: int,
    kinds: Sequence[str],
    rng: torch.Generator,
) -> HiddenCells:
    """Hide cells of the rows at random, once for each kind, and complete all copies together."""
    drops = [_draw_hidden(tables, party, kind, rng) for kind in kinds]
    whole, masked = {}, {}
    for name, table in tables.items():
        whole[name] = table.take(torch.arange(len(table)).repeat(len(kinds)))
        drop = torch.cat([each[name] for each in drops])
        masked[name] = replace(whole[name], observed=whole[name].observed & ~drop)
    levels = [
        observation_levels(each.observed, model.full_threshold[n]) for n, each in masked.items()
    ]
    count = len(levels[0])
    handles = torch.arange(count).unsqueeze(1).expand(-1, len(masked))
    federation = model.federation(masked)
    rows = align_rows(handles, levels).to(federation.workers[party].table.device)
    completed = complete_rows(federation, rows, party, model.net.members).cpu()
    name = list(masked)[party]
    observed = masked[name].observed
    return completed, whole[name].observed & ~observed, cell_groups(rows, observed, party)


def _draw_hidden(
    tables: Mapping[str, PartyTable], party: int, kind: str, rng: torch.Generator
) -> dict[str, Tensor]:
    """Draw which cells of each party are hidden. (N, raw) each"""
    drops = {}
    for i, (name, table) in enumerate(tables.items()):
        count, raw = table.observed.shape
        rate = torch.rand(count, 1, generator=rng)
        drop = torch.rand(count, raw, generator=rng) < rate
        if i == party and kind == "absent":
            drop[:] = True
        elif i != party and kind == "own":
            drop[:] = False
        drops[name] = drop
    return drops


def _fit_party(
    model: Model, encoder: TableEncoder, table: PartyTable, completed: list[HiddenCells]
) -> CellDistributions:
    vectors = hash_embeddings(encoder, model.parties[encoder.party])
    values = torch.cat([each for each, _, _ in completed]).double().numpy()
    hidden = torch.cat([each for _, each, _ in completed]).numpy()
    groups = np.concatenate([each for _, _, each in completed])
    copies = len(values) // max(len(table), 1)
    true = np.tile(table.values.double().cpu().numpy(), (copies, 1))
    codes = np.tile(table.codes.cpu().numpy(), (copies, 1))
    numeric, categorical = [], []
    width = max((len(c.values) for c in encoder.codecs if isinstance(c, CategoryCodec)), default=0)
    at = hashed = 0
    for number, codec in enumerate(encoder.codecs):
        part, cells = slice(at, at + codec.feature.width), np.flatnonzero(hidden[:, number])
        at = part.stop
        if not isinstance(codec, CategoryCodec | HashedCodec):
            near = values[cells, part.start]
            rounded = codec.rounded(near) if isinstance(codec, NumberCodec) else near
            numeric.append(fit_quantiles(near, rounded, true[cells, part.start], groups[cells]))
            continue
        if isinstance(codec, HashedCodec):
            cells = cells[:: max(len(cells) // MAX_HASHED_CELLS, 1)]
            option = codec.options_of(codes[cells, hashed])
            hashed += 1
            cells, option = cells[option >= 0], option[option >= 0]
        else:
            option = true[cells, part].argmax(1)
        scores = codec.scores(values[cells, part], vectors)
        categorical.append(fit_scores(scores, option, groups[cells], width))
    edges, quantiles, relative = zip(*numeric, strict=True) if numeric else ((), (), ())
    factors, biases = zip(*categorical, strict=True) if categorical else ((), ())
    return CellDistributions(
        np.reshape(edges, (-1, GROUPS, BINS - 1)),
        np.reshape(quantiles, (-1, GROUPS, BINS, len(LEVELS))),
        np.reshape(relative, (-1, GROUPS)),
        np.reshape(factors, (-1, GROUPS)),
        np.reshape(biases, (len(biases), GROUPS, width)),
    )
