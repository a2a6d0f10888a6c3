"""A party's rows as given, a table or images, and their encoder."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.config import TableOptions
from xvfl.data.encoded import Encoded
from xvfl.data.encoder import TableEncoder
from xvfl.data.images import ImageEncoder, Images
from xvfl.data.value_stats import FitLimits
from xvfl.errors import InputError

Source = pd.DataFrame | Images
"""A party's rows: a frame indexed by id, or images with ids."""
Encoder = TableEncoder | ImageEncoder


def source_ids(source: Source | pd.Series) -> list[str]:
    """List the ids of a party's rows, or of labels."""
    return list(source.ids) if isinstance(source, Images) else source.index.tolist()


def source_index(source: Source) -> pd.Index:
    """Return the ids of a party's rows as an index, to look up many ids at once."""
    return pd.Index(source.ids) if isinstance(source, Images) else source.index


def source_columns(source: Source) -> list[str]:
    """List the columns of a party's rows; for images, their shape."""
    if isinstance(source, Images):
        return [f"image {'x'.join(map(str, source.pixels.shape[1:]))}"]
    return list(source.columns)


def take_rows(source: Source, rows: NDArray[Any]) -> Source:
    """Select rows by a mask or by their positions."""
    if isinstance(source, Images):
        observed = None if source.observed is None else source.observed[rows]
        ids = np.asarray(source.ids, dtype=object)[rows].tolist()
        return Images(source.pixels[rows], ids, observed)
    return source.iloc[rows]


def take_ids(source: Source, ids: Sequence[str]) -> Source:
    """Select the rows of the given ids, in the order of the ids; skip unknown ids."""
    rows = source_index(source).get_indexer(pd.Index(ids))
    return take_rows(source, rows[rows >= 0])


def no_rows(encoder: Encoder) -> Source:
    """Return a table without rows and columns, or no images, as a party that gives nothing has."""
    if isinstance(encoder, ImageEncoder):
        return Images(np.zeros((0, *encoder.own_shape)), [])
    return pd.DataFrame(index=pd.Index([], dtype="str"))


def encode(encoder: Encoder, source: Source, strict: bool = True) -> Encoded:
    """Encode a party's rows with its own encoder; see `TableEncoder.encode`."""
    if isinstance(source, Images) != isinstance(encoder, ImageEncoder):
        raise InputError("expected the kind of data used in training: a table or images")
    if isinstance(encoder, ImageEncoder):
        images = cast(Images, source)
        return encoder.encode(images.pixels, images.ids, images.observed)
    return encoder.encode(cast(pd.DataFrame, source), strict)


def fit_encoder(
    training: Iterable[Source], options: TableOptions, party: str, limits: FitLimits | None = None
) -> Encoder:
    """Fit a party's encoder on its training rows; images must come in one chunk."""
    chunks = (chunk for chunk in training if source_ids(chunk))
    first = next(chunks, None)
    if first is None:
        raise InputError(
            f"party {party!r}: holds no training row; add rows or change `random_state`"
        )
    if isinstance(first, Images):
        return ImageEncoder.fit(first.pixels, party)
    frames = cast("Iterable[pd.DataFrame]", chain([first], chunks))
    return TableEncoder.fit_chunks(frames, options, party, limits)
