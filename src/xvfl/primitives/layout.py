"""What a party's encoded features look like: the one thing encoders, masks and nets agree on.

Raw features are what goes missing (a table's columns, an image's pixels); encoded columns are
what the nets see (a one-hot group has several, a date has several, a hashed category its vector).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

Kind = Literal["numeric", "category", "hashed"]


@dataclass(frozen=True)
class Feature:
    """One raw feature of a table."""

    name: str
    kind: Kind
    """`numeric`: values in [0, 1]; `category`: a one-hot group; `hashed`: a learned vector."""
    width: int
    """Encoded columns it takes."""
    buckets: int = 0
    """`hashed` only: rows of its learned table."""


@dataclass(frozen=True)
class Layout:
    """A party's encoded features, in order: dense ones first, hashed ones last, or one image."""

    features: tuple[Feature, ...] = ()
    image: tuple[int, int, int] | None = None
    """(channels, height, width) of an image party; its raw features are the pixels."""

    def __post_init__(self) -> None:
        kinds = [feature.kind == "hashed" for feature in self.features]
        if kinds != sorted(kinds):
            raise ValueError("hashed features must come last in a layout")
        if bool(self.features) == (self.image is not None):
            raise ValueError("a layout holds either table features or one image")

    @cached_property
    def raw(self) -> int:
        """Number of raw features: what missing rates and masks count."""
        if self.image is not None:
            return self.image[1] * self.image[2]
        return len(self.features)

    @cached_property
    def encoded(self) -> int:
        """Number of encoded columns (an image: all its values)."""
        if self.image is not None:
            return self.image[0] * self.image[1] * self.image[2]
        return sum(feature.width for feature in self.features)

    @cached_property
    def dense(self) -> int:
        """Number of encoded columns stored as numbers, not as codes."""
        return sum(feature.width for feature in self.features if feature.kind != "hashed")

    @cached_property
    def hashed(self) -> tuple[Feature, ...]:
        """The features stored as codes."""
        return tuple(feature for feature in self.features if feature.kind == "hashed")

    @cached_property
    def feature_of_column(self) -> list[int]:
        """Raw feature index of each encoded column of a table."""
        return [i for i, feature in enumerate(self.features) for _ in range(feature.width)]

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Layout":
        """Read the JSON form."""
        features = tuple(Feature(**feature) for feature in data["features"])
        return cls(features, tuple(data["image"]) if data["image"] else None)


def any_image(layouts: Mapping[str, Layout]) -> bool:
    """Return whether any party holds images, which decides default widths and threads."""
    return any(layout.image is not None for layout in layouts.values())
