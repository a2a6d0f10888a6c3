"""A party's images and their encoder.

Shapes: n images, C channels, H height, W width. The raw features are the H·W pixels.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.data.encoded import Encoded
from xvfl.data.ids import parse_ids
from xvfl.data.table_files import require_file
from xvfl.errors import InputError, unknown
from xvfl.primitives.layout import Layout
from xvfl_serve.encoding.columns import NOTES
from xvfl_serve.encoding.images import Axes, ImageScale, channels_first

CHANNELS = (1, 3, 4)
"""A last axis of one of these sizes holds the channels."""


@dataclass
class Images:
    """The images of a party, one per id.

    Parameters
    ----------
    pixels : array of shape (n, C, H, W), (n, H, W) or (n, H, W, C)
        The images, as integers or floats; channels come last only with 1, 3 or 4 of them. NaN
        marks a missing pixel.
    ids : sequence of length n
        The ids of the images, converted to strings. They must be unique.
    observed : bool array of shape (n, H, W), optional
        Which pixels are observed. By default, all that are not NaN.

    Raises
    ------
    InputError
        The number of ids is not the number of images, or an id is missing or occurs twice.

    Examples
    --------
    >>> import numpy as np
    >>> from xvfl import Images
    >>> scans = Images(np.zeros((2, 28, 28), dtype=np.uint8), ids=["p1", "p2"])
    >>> scans.ids
    ['p1', 'p2']

    """

    pixels: NDArray[Any]
    ids: Sequence[Any]
    observed: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        self.pixels = np.asarray(self.pixels)
        self.ids = _image_ids(self.ids, len(self.pixels), "images")


class ImageEncoder(ImageScale):
    """Encodes a party's images as numbers in [0, 1], and decodes them.

    Parameters
    ----------
    party : str
        The party's name, for messages.
    axes : {"HW", "CHW", "HWC"}
        The axes of the party's arrays, after the first one.
    shape : (int, int, int)
        Channels, height and width.
    low, high : float
        The range of the pixels that is scaled to [0, 1].
    dtype : str
        The type of the party's arrays.

    Examples
    --------
    >>> import numpy as np
    >>> pixels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    >>> encoder = ImageEncoder.fit(pixels, "clinic")
    >>> encoder.layout.image
    (1, 2, 2)
    >>> bool((encoder.decode(encoder.encode(pixels, ["a", "b"]).values) == pixels).all())
    True

    """

    @classmethod
    def fit(cls, pixels: NDArray[Any], party: str) -> "ImageEncoder":
        """Infer axes and range from training images."""
        axes = _axes(pixels, party)
        low, high = _range(pixels, party)
        channels, height, width = channels_first(pixels[:1], axes).shape[1:]
        return cls(party, axes, (channels, height, width), low, high, pixels.dtype.name)

    @property
    def layout(self) -> Layout:
        """The layout of the encoded images."""
        return Layout(image=self.shape)

    def encode(
        self, pixels: NDArray[Any], ids: Sequence[Any], observed: NDArray[np.bool_] | None = None
    ) -> Encoded:
        """Scale images to [0, 1]; a pixel that is missing in one channel is missing in all."""
        names = _image_ids(ids, len(pixels), f"party {self.party!r}, images")
        if pixels.shape[1:] != self.own_shape:
            raise InputError(
                f"party {self.party!r}: expected images of shape {self.own_shape} as in training, "
                f"but got {pixels.shape[1:]}; resize or reorder them"
            )
        _reject_infinite(pixels, self.party)
        expected = (len(pixels), *self.shape[1:])
        if observed is not None and observed.shape != expected:
            raise InputError(
                f"party {self.party!r}: expected observed of shape {expected} (images, height, "
                f"width), but got {observed.shape}; pass one flag per pixel"
            )
        scaled = self.scale(pixels, observed)
        notes = [NOTES["pixels"] if each else "" for each in scaled.notes["pixels"].tolist()]
        codes = np.zeros((len(pixels), 0), dtype=np.int64)
        return Encoded(names, scaled.values, codes, scaled.observed, notes)  # type: ignore[arg-type]

    def decode(
        self, encoded_columns: NDArray[Any], vectors: Mapping[str, NDArray[Any]] | None = None
    ) -> NDArray[Any]:
        """Convert (n, C·H·W) or (n, C, H, W) numbers to images of the party's axes and type."""
        return self.restore(encoded_columns)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        return {"type": "image", **asdict(self), "shape": list(self.shape)}


def read_images(path: str | Path) -> Images:
    """Read a party's images from an .npz file.

    Parameters
    ----------
    path : str or Path
        A file with the arrays ``images``, ``ids`` and, if pixels are missing, ``observed``.

    Returns
    -------
    Images

    Raises
    ------
    InputError
        The file does not exist, is not an .npz file without pickles, or lacks an array.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/scans.npz"
    >>> np.savez(path, images=np.zeros((2, 4, 4)), ids=["p1", "p2"])
    >>> read_images(path).ids
    ['p1', 'p2']

    """
    path = Path(path)
    require_file(path, f"file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"file {path}: cannot be read as .npz ({reason}); "
            "save images, ids and observed as plain arrays with numpy.savez"
        ) from error
    for name in ("images", "ids"):
        if name not in arrays:
            raise InputError(f"file {path}: {unknown('array', name, arrays)}; save {name!r} too")
    return Images(arrays["images"], arrays["ids"].tolist(), arrays.get("observed"))


def _image_ids(ids: Sequence[Any], count: int, where: str) -> list[str]:
    if len(ids) != count:
        raise InputError(
            f"{where}: expected one id per image, but got {len(ids)} ids for {count} images; "
            "pass both in the same order"
        )
    names: list[str] = parse_ids(pd.Series(list(ids), dtype=object), f"{where}, ids").tolist()
    return names


def _axes(pixels: NDArray[Any], party: str) -> Axes:
    if len(pixels) == 0 or pixels.ndim not in (3, 4) or pixels.dtype.kind not in "iubf":
        raise InputError(
            f"party {party!r}: expected numbers of shape (n, C, H, W), (n, H, W) or (n, H, W, C), "
            f"but got {pixels.dtype} of shape {pixels.shape}; convert the images"
        )
    if pixels.ndim == 3:
        return "HW"
    last = pixels.shape[3] in CHANNELS and pixels.shape[1] not in CHANNELS
    return "HWC" if last else "CHW"


def _range(pixels: NDArray[Any], party: str) -> tuple[float, float]:
    if pixels.dtype == np.uint8:
        return 0.0, 255.0
    _reject_infinite(pixels, party)
    if np.isnan(pixels).all():
        raise InputError(f"party {party!r}: expected pixels, but all are missing; check the images")
    low, high = float(np.nanmin(pixels)), float(np.nanmax(pixels))
    if low >= 0.0 and high <= 1.0:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0


def _reject_infinite(pixels: NDArray[Any], party: str) -> None:
    infinite = int(np.isinf(pixels).sum())
    if infinite:
        raise InputError(
            f"party {party!r}: expected finite pixels, but {infinite} are infinite; "
            "replace by a number, or NaN where missing"
        )
