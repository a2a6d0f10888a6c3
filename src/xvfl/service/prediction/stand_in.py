"""Stored uploads in the place of parties that are away, where the terms of the upload allow it.

Shapes: N rows of a batch, K parties in it, v views, d embedding width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from xvfl.data.frames import read_frame
from xvfl.federation.fused import pad
from xvfl.federation.predict_in_time import PartyAnswer, TimelyBatch
from xvfl.matching.alignment import load_coordinator_alignment
from xvfl.matching.normalize import normalize_ids
from xvfl.model.run_dir import RunDir
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
    answers, stood_in = dict(batch.answers), dict[str, Tensor]()
    _, views, width = batch.shape
    for place, stand_in in stand_ins.items():
        if place in answers or not stand_in.usable:
            continue
        handles = stand_in.handles[rows]
        status = stand_in.store.row_status()[handles] * (handles >= 0)
        held = status > 0
        if bool(held.any()):
            plain = stand_in.store.views()[handles.clamp(min=0), 0].float() * held.unsqueeze(1)
            E = pad(plain, width).unsqueeze(1).expand(-1, views, -1)
            handles = handles.masked_fill(~held, -1)
            answers[place] = PartyAnswer(handles, status, E, held.float())
            stood_in[f"{stand_in.store.manifest.party}: {stand_in.note}"] = held
    return replace(batch, answers=dict(sorted(answers.items()))), stood_in
