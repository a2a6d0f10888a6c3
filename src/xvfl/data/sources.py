"""A party's rows as given, a table or images, and their encoder."""

from collections.abc import Sequence

import pandas as pd

from xvfl.config import TableOptions
from xvfl.data.encoder import Encoded, ImageEncoder, Images, TableEncoder
from xvfl.errors import InputError

Source = pd.DataFrame | Images
"""A party's rows: a frame indexed by id, or images with ids."""
Encoder = TableEncoder | ImageEncoder


def source_ids(source: Source) -> list[str]:
    """List the ids of a party's rows."""
    return list(source.ids) if isinstance(source, Images) else list(source.index)


def source_columns(source: Source) -> list[str]:
    """Name the columns of a party's rows; the shape stands for those of images."""
    if isinstance(source, Images):
        return [f"image {'x'.join(map(str, source.pixels.shape[1:]))}"]
    return list(source.columns)


def take(source: Source, ids: Sequence[str]) -> Source:
    """Give the rows of a source that are among the ids, in the ids' order."""
    mine = pd.Index(source_ids(source))
    at = mine.get_indexer(pd.Index(ids))
    at = at[at >= 0]
    if isinstance(source, Images):
        seen = None if source.observed is None else source.observed[at]
        return Images(source.pixels[at], [source.ids[int(i)] for i in at], seen)
    return source.iloc[at]


def encode(encoder: Encoder, source: Source) -> Encoded:
    """Encode a party's rows with its own encoder."""
    if isinstance(source, Images) != isinstance(encoder, ImageEncoder):
        raise InputError("expected the kind of data of training: a table or images")
    if isinstance(encoder, ImageEncoder):
        assert isinstance(source, Images)
        return encoder.encode(source.pixels, source.ids, source.observed)
    assert isinstance(source, pd.DataFrame)
    return encoder.encode(source)


def fit_encoder(training: Source, options: TableOptions, name: str) -> Encoder:
    """Fit a party's encoder on its training rows."""
    if isinstance(training, Images):
        return ImageEncoder.fit(training.pixels, name)
    return TableEncoder.fit(training, options, name)
