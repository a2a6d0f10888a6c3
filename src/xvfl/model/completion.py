"""Completed rows back in a party's own columns and units."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from torch import nn

from xvfl.data.encoder import ImageEncoder, Images, TableEncoder
from xvfl.data.parse import mask_missing
from xvfl.data.sources import Encoder, Source
from xvfl.data.text import as_text
from xvfl.errors import InputError
from xvfl.nets.party_net import PartyNet

Floats = NDArray[np.float64]


def fill(
    encoder: Encoder, net: PartyNet, source: Source, ids: Sequence[str], values: Floats
) -> Source:
    """Put completed values (n, …) into the gaps of a party's rows; what was there stays."""
    if isinstance(encoder, ImageEncoder) and isinstance(source, Images):
        return _fill_images(encoder, source, ids, values)
    if isinstance(encoder, TableEncoder) and isinstance(source, pd.DataFrame):
        return _fill_table(encoder, net, source, ids, values)
    raise InputError("complete: expected the kind of data of training: a table or images")


def _fill_table(
    encoder: TableEncoder, net: PartyNet, source: pd.DataFrame, ids: Sequence[str], values: Floats
) -> pd.DataFrame:
    index = pd.Index(list(ids), name="id")
    completed = encoder.decode(values, _vectors(encoder, net)).set_axis(index)
    given = source.reindex(index)
    for name in encoder.columns:
        gaps = mask_missing(given[name], encoder.na_values).isna()
        if gaps.any():
            form = encoder.date_formats.get(name)
            made = completed[name].dt.strftime(form) if form else completed[name]
            given[name] = _mix(given[name], made, gaps)
    return given


def _mix(given: pd.Series, completed: pd.Series, gaps: pd.Series) -> pd.Series:
    """Fill gaps in the type the party's own column has."""
    if types.is_string_dtype(given[~gaps]) and not types.is_string_dtype(completed):
        completed = as_text(completed)
    mixed = given.astype(object).where(~gaps, completed.astype(object)).infer_objects()
    if isinstance(given.dtype, pd.CategoricalDtype):
        known = given.cat.categories
        new = pd.Index(mixed.dropna().unique()).difference(known, sort=False)
        return mixed.astype(pd.CategoricalDtype(known.append(new), given.cat.ordered))
    return mixed


def _vectors(encoder: TableEncoder, net: PartyNet) -> dict[str, Floats]:
    found = {}
    for feature, table in zip(encoder.layout.hashed, net.vectors, strict=True):
        assert isinstance(table, nn.Embedding)
        found[feature.name] = table.weight.detach().double().cpu().numpy()
    return found


def _fill_images(
    encoder: ImageEncoder, source: Images, ids: Sequence[str], values: Floats
) -> Images:
    completed = encoder.decode(values)
    at = pd.Index(source.ids).get_indexer(pd.Index(list(ids)))
    held = np.flatnonzero(at >= 0)
    own = source.pixels[at[held]]
    seen = None if source.observed is None else source.observed[at[held]]
    there = encoder.encode(own, [ids[int(row)] for row in held], seen).observed
    there = there.reshape(len(held), *encoder.shape[1:])
    if encoder.axes != "HW":
        there = there[:, None] if encoder.axes == "CHW" else there[..., None]
    completed[held] = np.where(there, own, completed[held])
    return Images(completed, list(ids))
