"""The interfaces between methods and federations.

A method is written once against `Federation`. The same code trains with all parties in one process
(`FusedFederation`) and with parties behind a network (`SplitFederation`).
Shapes: B rows, k parties, v views, d embedding width, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

from torch import Tensor, nn

from xvfl.errors import ModeError
from xvfl.primitives.rows import Rows

Mode = Literal["local", "assisted", "collaborative", "peers"]
"""The three modes of prediction (docs/method.md), and `peers`: a prediction by the full parties
other than the requesting one, reported as a baseline for `assisted`."""

MODES: tuple[Mode, ...] = ("local", "assisted", "collaborative")


def mode_key(mode: Mode, party: str) -> str:
    """Return the key of a mode and party; collaborative prediction has no party."""
    return mode if mode == "collaborative" else f"{mode}/{party}"


View = Literal["plain", "masked", "self"]
"""What a party embeds: `plain`, a row as observed; `masked`, with features dropped at random, in
training only; `self`, the masked row completed from its own embedding."""


class Federation(Protocol):
    """The parties of a run, as a method sees them.

    A method calls `embed`, then optionally `complete`, to compute embeddings of one batch. The
    training loop calls `backward` with the method's loss.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the available parties, in the order of the rows' columns."""

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view.

        Parameters
        ----------
        rows : Rows
            The batch: row numbers at each party, labels, and which parties hold each row in full
            (`rows.full`) or observed any of it (`rows.seen`).
        views : sequence of {"plain", "masked", "self"}
            The n-th `self` view completes the n-th `masked` view.
        needed : Tensor of shape (B, k, v), dtype bool, optional
            Entries that the loss uses. Others may be skipped: their values are arbitrary and
            finite. By default all are computed.

        Returns
        -------
        Tensor of shape (B, k, v, d)
        """

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the batch of the last `embed`, with missing features completed from cues.

        Parameters
        ----------
        cues : Tensor of shape (B, k, d)
            The input of each party's completer.
        replace_observed : Tensor of shape (B,), dtype bool
            Rows whose observed features are replaced by completed ones as well.
        needed : Tensor of shape (B, k), dtype bool, optional
            Entries that the loss uses, as in `embed`.

        Returns
        -------
        Tensor of shape (B, k, d)
        """

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss in the heads and in every party's net.

        Parameters
        ----------
        loss : Tensor of shape ()
            The loss of the last batch. Parties add their own objective, if they have one.
        """


class Method(Protocol):
    """A way to train and to predict.

    Attributes
    ----------
    heads : nn.Module
        The coordinator's nets. They are trained, checkpointed and saved with the model.
    modes : frozenset of Mode
        The modes in which the method predicts.

    Examples
    --------
    Train one head on the mean embedding of the parties that observed a row:

    >>> import torch
    >>> from xvfl.maths import cross_entropy, mean_over
    >>> class MeanVFL:
    ...     modes = frozenset({"local", "collaborative"})
    ...
    ...     def __init__(self, head):
    ...         self.heads = head
    ...
    ...     def loss(self, federation, rows):
    ...         E = federation.embed(rows, ["plain"])[:, :, 0]
    ...         logits = self.heads(mean_over(E, rows.seen))
    ...         return {"joint": (cross_entropy(logits, rows.y) * rows.weight).mean()}
    ...
    ...     def logits(self, federation, rows, mode, party):
    ...         E = federation.embed(rows, ["plain"])[:, :, 0]
    ...         return self.heads(E[:, party] if mode == "local" else mean_over(E, rows.seen))
    ...
    ...     def select_parties(self, parties):
    ...         return self  # The mean of any subset of parties is a valid input.

    Register it under a name to train it like every other method:

    >>> from xvfl.methods import MethodSpec, register_method, unregister_method
    >>> register_method("mean", MethodSpec(lambda loss, parts: MeanVFL(parts.head(parts.width))))
    >>> unregister_method("mean")
    """

    heads: nn.Module
    modes: frozenset[Mode]

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the loss of a batch.

        Parameters
        ----------
        federation : Federation
            The available parties.
        rows : Rows
            The batch. Multiply the loss of each row by `rows.weight`.

        Returns
        -------
        dict of str to Tensor of shape ()
            Named terms; their sum is minimized.
        """

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits of a batch.

        Parameters
        ----------
        federation : Federation
            The available parties.
        rows : Rows
            The batch.
        mode : Mode
            One of `modes`.
        party : int
            Index of the party that predicts; ignored in mode "collaborative".

        Returns
        -------
        Tensor of shape (B, C)
        """

    def select_parties(self, parties: Sequence[int]) -> "Method":
        """Return the method for a subset of the parties, used while others are offline (D7).

        Parameters
        ----------
        parties : sequence of int
            Indices of the available parties. Federation and rows are restricted to them as well.

        Returns
        -------
        Method
            It shares the weights of this one.
        """


T = TypeVar("T")
BatchFunction = Callable[[Federation, Method, Rows], T]
"""A function of one batch: a training step, or a prediction."""


def require_mode(method: Method, mode: Mode, name: str = "this method") -> None:
    """Raise `ModeError` if the method does not predict in the mode."""
    if mode not in method.modes:
        supported = ", ".join(each for each in MODES if each in method.modes)
        raise ModeError(f"{name} cannot predict in mode {mode!r}; supported: {supported}")
