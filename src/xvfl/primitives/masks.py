"""Random masks of observed features."""

from torch import Tensor

from xvfl.primitives.layout import Layout

MAX_UNMASKED_SHARE = 0.5
"""Share of the copies that keep all features if nothing is missing in the training rows."""
MISSING_LIMIT = 0.1
"""Missing share of the median feature from which every copy is masked."""
FEW_FEATURES = 4
"""Features of a party up to which missing values do not matter: a masked copy keeps hardly any."""


def drop_features(observed: Tensor, uniform: Tensor, unmasked: float | Tensor = 0.0) -> Tensor:
    """Drop observed features of each row at a rate of its own. (B, p)

    `uniform` (B, 1 + p), in [0, 1): the row's rate, then a number for each of its features. A share
    `unmasked` of the rows, a number or (B, 1), keeps all features; the rates of the others are
    uniform.
    """
    rate = (uniform[:, :1] - unmasked) / (1 - unmasked)
    return observed & (uniform[:, 1:] >= rate)


def median_missing_share(observed: Tensor, rows: int) -> float:
    """Return the missing share of the median feature; 0 without rows.

    `observed` (p,): the number of rows that observe each feature.
    """
    return 1 - observed.double().quantile(0.5).item() / rows if rows else 0.0


def choose_unmasked_share(layout: Layout, observed: Tensor, wanted: float | None = None) -> float:
    """Return the wanted share of copies that keep all features; by default by `observed` (B, p)."""
    if wanted is not None:
        return wanted
    return unmasked_share(layout, median_missing_share(observed.sum(0), len(observed)))


def unmasked_share(layout: Layout, missing: float) -> float:
    """Choose the share of copies that keep all features, by the median feature's missing share.

    What is missing in training rows will be missing in prediction too, and masks prepare for it. A
    few features that are mostly missing do not count. Hashed categories overfit without masks.
    """
    if layout.hashed:
        return 0.0
    if layout.raw <= FEW_FEATURES:
        return MAX_UNMASKED_SHARE
    return MAX_UNMASKED_SHARE * max(0.0, 1 - missing / MISSING_LIMIT)
