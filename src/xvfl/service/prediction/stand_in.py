"""Stored uploads in the place of parties that are away, where the terms of the upload allow it.

Shapes: N rows of a batch, K parties in it, v views, d embedding width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torch import Tensor
from torch.nn import functional

from xvfl.data.frames import read_frame
from xvfl.federation.predict_in_time import TimelyBatch
from xvfl.matching.alignment import load_coordinator_alignment
from xvfl.matching.normalize import normalize_ids
from xvfl.model.run_dir import RunDir
from xvfl.primitives.rows import FULL, Rows
from xvfl.service.config import ALIGNMENT, CoordinatorConfig
from xvfl.service.trained_heads import TrainedHeads
from xvfl.service.uploads.upload_store import UploadStore, find_upload


@dataclass(frozen=True)
class StandIn:
    """A stored upload that may stand in for its party."""

    store: UploadStore
    handles: Tensor
    """(n,) handle of each prediction row in the upload, −1 where it has none."""

    @property
    def usable(self) -> bool:
        """Whether the terms allow it today, and no later part has replaced it."""
        store = self.store
        return store.manifest.terms.stand_in and not store.problem and not store.replaced

    @property
    def note(self) -> str:
        """Tell callers how old the upload is."""
        created = datetime.fromisoformat(self.store.manifest.created)
        days = (datetime.now(UTC) - created).days
        return f"its upload stands in for it: {days} days old, of {created:%Y-%m-%d}"


def find_stand_ins(
    config: CoordinatorConfig, model: TrainedHeads, ids: Sequence[str]
) -> dict[int, StandIn]:
    """Return the stored uploads that may stand in, by the place of their party in the model.

    `ids` are those that may be predicted, normalized. An upload of another version than the heads'
    cannot stand in.
    """
    folder = RunDir(config.state_dir)
    if not model.encoders or not folder.has(ALIGNMENT):
        return {}
    alignment, labels = load_coordinator_alignment(folder / ALIGNMENT), config.labels
    trained = list(read_frame(labels.table, labels.id_column, "labels").index)
    if alignment.labels.rows != len(trained):
        return {}
    texts = normalize_ids(trained, config.matching.rule, "labels")
    place = {each: i for i, each in enumerate(texts)}
    at = torch.tensor([place.get(each, -1) for each in ids], dtype=torch.long)
    found = {}
    for i, name in enumerate(model.names):
        match = alignment.matches.get(name)
        if match is None:
            continue
        version = model.encoders[name]["version"]
        store = find_upload(folder, name, match.session.hex(), version)
        # Place −1, a row that was not in training, selects the last entry.
        matched = torch.from_numpy(match.handles)
        handles = torch.cat([matched, matched.new_full((1,), -1)])[at]
        if store is not None and (stand_in := StandIn(store, handles)).usable:
            found[i] = stand_in
    return found


def add_stand_ins(
    batch: TimelyBatch, rows: Tensor, stand_ins: Mapping[int, StandIn]
) -> tuple[TimelyBatch, dict[str, Tensor]]:
    """Add stored embeddings of parties that did not answer.

    Returns the batch, and for each party that stands in, a note and the rows that it has. (N,)
    """
    stood_in = {}
    for place, stand_in in stand_ins.items():
        if place in batch.places or not stand_in.usable:
            continue
        handles = stand_in.handles[rows]
        status = stand_in.store.row_status()[handles] * (handles >= 0)
        held = status > 0
        if bool(held.any()):
            plain = stand_in.store.views()[handles.clamp(min=0), 0].float()
            batch = _add(batch, place, plain * held.unsqueeze(1), handles, status)
            stood_in[f"{stand_in.store.manifest.party}: {stand_in.note}"] = held
    return batch, stood_in


def _add(
    batch: TimelyBatch, place: int, plain: Tensor, handles: Tensor, status: Tensor
) -> TimelyBatch:
    """Add a party, in the order of places."""
    n, _, views, width = batch.E.shape
    own = functional.pad(plain, (0, width - plain.shape[-1])).unsqueeze(1).expand(n, views, width)
    held, rows = status > 0, batch.rows
    columns = (
        (rows.handles, handles.masked_fill(~held, -1)),
        (rows.full, status == FULL),
        (rows.seen, held),
        (batch.E, own),
        (batch.observed, held.float()),
        (batch.refused, torch.zeros_like(held)),
    )
    handles, full, seen, E, observed, refused = (
        torch.cat([before, new.unsqueeze(1)], 1) for before, new in columns
    )
    added = TimelyBatch(
        (*batch.places, place),
        Rows(handles, full, seen, rows.y, rows.weight),
        E,
        batch.tensor_id,
        observed,
        refused,
        (*batch.refusals, ""),
    )
    order = sorted(range(len(added.places)), key=lambda i: added.places[i])
    return added.select(order)
