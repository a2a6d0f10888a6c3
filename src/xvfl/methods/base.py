"""What a method sees of a federation, and what everyone sees of a method.

Shapes: B rows, k parties, v views, d embedding width, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

from torch import Tensor, nn

from xvfl.errors import ModeError
from xvfl.primitives.rows import Rows

Mode = Literal["local", "assisted", "collaborative", "peers"]
"""The three ways to predict (method.md), and `peers`: the full parties other than the asking one,
always shown beside `assisted`."""

MODES: tuple[Mode, ...] = ("local", "assisted", "collaborative")

View = Literal["plain", "masked", "self"]


class Federation(Protocol):
    """The parties of a run, wherever they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parties that are there, in the order of the rows' columns."""

    def embed(self, rows: Rows, views: Sequence[View], wanted: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view. (B, k, v, d)

        Where not `wanted` (B, k, v), the answer may be anything finite.
        """

    def complete(self, cues: Tensor, whole: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Embed the batch just embedded, completed from each party's cue. (B, k, d)

        Where not `wanted` (B, k), the answer may be anything finite.
        """

    def backward(self, loss: Tensor) -> None:
        """Send the gradients of the loss to every party."""


class Method(Protocol):
    """A way to train and to predict, written once for fused and cut federations."""

    heads: nn.Module
    modes: frozenset[Mode]

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Name the terms of a batch's loss; their sum is minimised."""

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch in a mode. (B, C)"""

    def select_parties(self, parties: Sequence[int]) -> "Method":
        """Return the method for a subset of the parties (D7); use with `Rows.select_parties`."""


T = TypeVar("T")
Work = Callable[[Federation, Method, Rows], T]
"""Something done with a batch: learning from it, or deciding it."""


def require_mode(method: Method, mode: Mode, name: str = "this method") -> None:
    """Refuse a mode that the method does not have."""
    if mode not in method.modes:
        can = ", ".join(each for each in MODES if each in method.modes)
        raise ModeError(f"{name} cannot predict in mode {mode!r}; it can: {can}")
