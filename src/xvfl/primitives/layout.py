"""The layout of a party's encoded features, shared by encoders, masks and nets.

Raw features can be missing: a table's columns, an image's pixels. Encoded columns are the nets'
inputs: a one-hot group or a date has several, a hashed category has its embedding.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

Kind = Literal["numeric", "category", "hashed"]


@dataclass(frozen=True)
class Feature:
    """One raw feature of a table.

    Parameters
    ----------
    name : str
        The column's name.
    kind : {"numeric", "category", "hashed"}
        Numbers in [0, 1], a one-hot group, or hash buckets with learned embeddings.
    width : int
        The number of encoded columns.
    buckets : int, default=0
        The number of embeddings of a hashed feature: one for each frequent hash bucket, and the
        first for all other values.
    """

    name: str
    kind: Kind
    width: int
    buckets: int = 0


@dataclass(frozen=True)
class NumberBins:
    """Label-free encodings of the numbers in one encoded column; by default none."""

    knots: tuple[float, ...] = ()
    """Ends of the bins of the piecewise linear encoding, ascending."""
    frequent: tuple[float, ...] = ()
    """Values that many rows have; each gets a flag."""


@dataclass(frozen=True)
class Difference:
    """What one number adds to another that is correlated with it: x₁ − slope · x₂, scaled."""

    first: int
    """Encoded column of x₁."""
    second: int
    """Encoded column of x₂."""
    slope: float
    low: float
    """Becomes 0, and so do smaller differences."""
    high: float
    """Becomes 1, and so do larger differences."""


@dataclass(frozen=True)
class Layout:
    """A party's encoded features: those of a table, or one image.

    Parameters
    ----------
    features : tuple of Feature
        The features of a table: dense ones first, hashed ones last.
    image : (int, int, int), optional
        Channels, height and width of an image; its raw features are the pixels.
    bins : tuple of NumberBins, default=()
        One for each dense column of a table; empty if they were not fitted.
    differences : tuple of Difference, default=()
        Of pairs of correlated numbers of a table.

    Raises
    ------
    ValueError
        Both or neither are given, a dense feature follows a hashed one, or `bins` has another
        length.

    Examples
    --------
    >>> layout = Layout((Feature("age", "numeric", 1), Feature("job", "category", 3)))
    >>> layout.raw, layout.encoded
    (2, 4)
    """

    features: tuple[Feature, ...] = ()
    image: tuple[int, int, int] | None = None
    bins: tuple[NumberBins, ...] = ()
    differences: tuple[Difference, ...] = ()

    def __post_init__(self) -> None:
        kinds = [feature.kind == "hashed" for feature in self.features]
        if kinds != sorted(kinds):
            raise ValueError("hashed features must come last in a layout")
        if bool(self.features) == (self.image is not None):
            raise ValueError("a layout holds either table features or one image")
        if self.bins and len(self.bins) != self.dense:
            raise ValueError(f"expected {self.dense} bins, one a column, got {len(self.bins)}")

    @cached_property
    def raw(self) -> int:
        """Number of raw features."""
        if self.image is not None:
            return self.image[1] * self.image[2]
        return len(self.features)

    @cached_property
    def encoded(self) -> int:
        """Number of encoded columns; for an image, of all its values."""
        if self.image is not None:
            return self.image[0] * self.image[1] * self.image[2]
        return sum(feature.width for feature in self.features)

    @cached_property
    def dense(self) -> int:
        """Number of encoded columns that are stored as numbers, not as bucket codes."""
        return sum(feature.width for feature in self.features if feature.kind != "hashed")

    @cached_property
    def hashed(self) -> tuple[Feature, ...]:
        """The features that are stored as bucket codes."""
        return tuple(feature for feature in self.features if feature.kind == "hashed")

    @cached_property
    def feature_of_column(self) -> list[int]:
        """Raw feature index of each encoded column of a table."""
        return [i for i, feature in enumerate(self.features) for _ in range(feature.width)]

    @cached_property
    def numbers(self) -> list[int]:
        """Encoded columns that are numbers."""
        kinds = [self.features[raw].kind for raw in self.feature_of_column]
        return [column for column, kind in enumerate(kinds) if kind == "numeric"]

    def only_bins_with_flags(self) -> "Layout":
        """Return the layout with the bins of those columns alone that have frequent values."""
        bins = tuple(each if each.frequent else NumberBins() for each in self.bins)
        return replace(self, bins=bins if any(each.frequent for each in bins) else ())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        optional = {"bins": self.bins, "differences": self.differences}
        return {name: each for name, each in asdict(self).items() if optional.get(name, True)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Layout":
        """Build a layout from its JSON form."""
        features = tuple(Feature(**feature) for feature in data["features"])
        bins = tuple(bins_from_dict(each) for each in data.get("bins", ()))
        differences = tuple(Difference(**each) for each in data.get("differences", ()))
        return cls(features, tuple(data["image"]) if data["image"] else None, bins, differences)


def bins_from_dict(data: Mapping[str, Any]) -> NumberBins:
    """Build the bins of a column from their JSON form."""
    return NumberBins(tuple(data["knots"]), tuple(data["frequent"]))


def any_image(layouts: Mapping[str, Layout]) -> bool:
    """Return whether any party holds images, which decides default widths and threads."""
    return any(layout.image is not None for layout in layouts.values())
