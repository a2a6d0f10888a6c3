"""Completed rows back in a party's own columns and units."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn

from xvfl.data.encode import ImageEncoder, Images, TableEncoder
from xvfl.data.parse import blank
from xvfl.errors import InputError
from xvfl.federation.party import PartyNet
from xvfl.prepare import Encoder, Source

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
        gaps = blank(given[name], encoder.missing).isna()
        if gaps.any():
            mixed = given[name].astype(object).where(~gaps, completed[name].astype(object))
            given[name] = mixed.infer_objects()
    return given


def _vectors(encoder: TableEncoder, net: PartyNet) -> dict[str, Floats]:
    found = {}
    for feature, table in zip(encoder.layout.hashed, net.vectors, strict=True):
        assert isinstance(table, nn.Embedding)
        found[feature.name] = table.weight.detach().double().cpu().numpy()
    return found


def _fill_images(
    encoder: ImageEncoder, source: Images, ids: Sequence[str], values: Floats
) -> Images:
    return Images(encoder.decode(values), list(ids))
