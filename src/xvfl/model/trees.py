"""Gradient-boosted trees (LightGBM) on the parties' encoded tables, a reference for the methods.

Three ways to predict: `local`, trees of one party's columns; `logit mean`, the mean of the parties'
logits, which needs labels at every party; `pooled`, trees of all columns in one place, without
privacy. Missing values stay missing: LightGBM handles them itself. Every model is fitted twice,
with and without randomly masked copies of the training rows, and each way uses what has the lower
log-loss on the validation rows.

LightGBM is optional (`pip install 'xvfl[trees]'`); it is imported when trees are fitted.
Shapes: N rows, k parties, p raw features, w columns, C classes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.errors import InputError
from xvfl.primitives.masks import drop_features
from xvfl.primitives.metrics import nll, rmse
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Masks = Literal["none", "random"]
VARIANTS: tuple[Masks, ...] = ("none", "random")
Owner = int | Literal["pooled"]
"""Whose columns a model has: those of a party by its number, or of all parties."""
Way = Owner | Literal["logit mean"]
"""A way to predict."""
POOLED: Literal["pooled"] = "pooled"
MEAN: Literal["logit mean"] = "logit mean"


@dataclass(frozen=True)
class TreeConfig:
    """Settings of LightGBM, at its defaults, and of the training rows."""

    learning_rate: float = 0.1
    num_leaves: int = 31
    min_child_samples: int = 20
    max_trees: int = 1000
    """Largest number of trees; early stopping on the validation rows chooses the number."""
    patience: int = 50
    """Stop after this many trees without a lower validation log-loss."""
    masked_copies: int = 6
    """Masked copies of each training row, added to the row as observed. 0: no fit with masks."""


@dataclass(frozen=True)
class TreeTable:
    """The columns of one or several parties, as trees read them."""

    columns: NDArray[np.float32]
    """(N, w) numbers, category numbers and bucket codes."""
    feature: Ints
    """(w,) the raw feature of each column."""
    observed: Bools
    """(N, p) which raw features are observed."""
    categorical: tuple[int, ...]
    """Columns that are categories."""

    @classmethod
    def from_party(cls, table: PartyTable) -> "TreeTable":
        """Convert encoded rows: a one-hot group becomes one column of category numbers."""
        if table.layout.image is not None:
            raise InputError("trees need tables: expected columns, got images")
        values, codes = table.values.numpy(), iter(table.codes.numpy().T)
        columns: list[NDArray[Any]] = []
        feature: list[int] = []
        categorical: list[int] = []
        at = 0
        for number, each in enumerate(table.layout.features):
            if each.kind != "numeric":
                categorical.append(len(columns))
            if each.kind == "hashed":
                columns.append(next(codes))
            else:
                part = values[:, at : at + each.width]
                columns += [part.argmax(1)] if each.kind == "category" else list(part.T)
                at += each.width
            feature += [number] * (len(columns) - len(feature))
        stacked = np.stack(columns, axis=1).astype(np.float32)
        return cls(stacked, np.array(feature), table.observed.numpy(), tuple(categorical))

    @classmethod
    def join(cls, tables: Sequence["TreeTable"]) -> "TreeTable":
        """Put the columns of several parties side by side."""
        widths = np.cumsum([0, *(each.columns.shape[1] for each in tables)])
        features = np.cumsum([0, *(each.observed.shape[1] for each in tables)])
        return cls(
            np.concatenate([each.columns for each in tables], axis=1),
            np.concatenate([t.feature + at for t, at in zip(tables, features, strict=False)]),
            np.concatenate([each.observed for each in tables], axis=1),
            tuple(
                int(at) + column
                for table, at in zip(tables, widths, strict=False)
                for column in table.categorical
            ),
        )

    def matrix(self, rows: Ints | slice, observed: Bools | None = None) -> NDArray[np.float32]:
        """Return rows with NaN where a feature is missing. (n, w)"""
        mask = self.observed[rows] if observed is None else observed
        return np.where(mask[:, self.feature], self.columns[rows], np.float32(np.nan))


@dataclass(frozen=True)
class TreeRows:
    """Labeled rows of all parties, and which of them train and validate."""

    tables: Sequence[TreeTable]
    """By party; every table has all N rows, unobserved where the party does not hold them."""
    y: NDArray[Any]
    """Class numbers, or numbers."""
    weight: Floats
    train: Ints
    validation: Ints
    n_classes: int
    """1 if labels are numbers."""
    column_share: float = 1.0
    """Share of the columns that each tree may use, to fit fast on wide tables."""

    @property
    def numbers(self) -> bool:
        """Whether labels are numbers."""
        return self.n_classes == 1

    @cached_property
    def _pooled(self) -> TreeTable:
        return TreeTable.join(self.tables)

    def table(self, owner: Owner) -> TreeTable:
        """Return the columns of a party, or of all parties."""
        return self._pooled if owner == POOLED else self.tables[owner]

    def observed(self, way: Way, rows: Ints) -> Ints:
        """Select the rows of which the way's parties observe any feature."""
        owner = POOLED if way == MEAN else way
        return rows[self.table(owner).observed[rows].any(1)]


@dataclass
class FittedTrees:
    """Models of parties and of the pooled columns, each with and without masks."""

    rows: TreeRows
    boosters: dict[tuple[Owner, Masks], Any] = field(default_factory=dict)
    seconds: dict[Owner, float] = field(default_factory=dict)
    """Seconds of both fits of an owner, with one thread."""

    def logits(self, way: Way, masks: Masks, rows: Ints) -> Floats:
        """Predict the logits, or the numbers, of rows. (n, C)"""
        if way == MEAN:
            return self._mean_logits(masks, rows)
        X = self.rows.table(way).matrix(rows)
        raw: Floats = self.boosters[way, masks].predict(X, raw_score=True)
        if raw.ndim > 1:
            return raw
        return raw[:, None] if self.rows.numbers else np.stack([np.zeros_like(raw), raw], 1)

    def _mean_logits(self, masks: Masks, rows: Ints) -> Floats:
        """Average the predictions of the parties that observe a row. (n, C)"""
        seen = np.stack([table.observed[rows].any(1) for table in self.rows.tables])
        out = np.stack([self.logits(party, masks, rows) for party in range(len(seen))])
        mean: Floats = (out * seen[:, :, None]).sum(0) / np.maximum(seen.sum(0), 1)[:, None]
        return mean

    def choose(self, way: Way) -> Masks:
        """Choose training with or without masks by the loss on the validation rows."""
        rows = self.rows.observed(way, self.rows.validation)
        if not len(rows):
            return "none"
        y = self.rows.y[rows]

        def loss(masks: Masks) -> float:
            out = self.logits(way, masks, rows)
            return rmse(out[:, 0], y) if self.rows.numbers else nll(softmax(out), y)

        losses = {masks: loss(masks) for masks in VARIANTS}
        return min(VARIANTS, key=losses.__getitem__)


def fit_trees(
    rows: TreeRows,
    owners: Sequence[Owner],
    config: TreeConfig,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
    on_owner: Callable[[Owner, int], None] = lambda owner, done: None,
) -> FittedTrees:
    """Fit the models of the owners, each with and without masks.

    Parameters
    ----------
    rows : TreeRows
        The rows; those that an owner does not observe are left out of its training.
    owners : sequence of int or "pooled"
        Whose models to fit.
    config : TreeConfig
        Settings.
    seed : int
        Seed of masks and trees.
    clock : callable, default=time.perf_counter
        Measures the seconds of a fit.
    on_owner : callable, optional
        Called before the fit of each owner, with the owner and the number of finished ones.

    Returns
    -------
    FittedTrees

    Raises
    ------
    ModuleNotFoundError
        LightGBM is not installed.
    """
    fitted = FittedTrees(rows)
    for done, owner in enumerate(owners):
        on_owner(owner, done)
        started = clock()
        for masks in VARIANTS if config.masked_copies else VARIANTS[:1]:
            train = _training_part(rows, owner, config.masked_copies * (masks == "random"), seed)
            booster = _fit(train, _validation_part(rows, owner), rows, owner, config, seed)
            fitted.boosters[owner, masks] = booster
        fitted.seconds[owner] = clock() - started
    return fitted


def softmax(logits: Floats) -> Floats:
    """Return probabilities. (n, C)"""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    proba: Floats = powers / powers.sum(1, keepdims=True)
    return proba


_Part = tuple[NDArray[np.float32], NDArray[Any], Floats]
"""Columns, labels and weights of some rows."""


def _training_part(rows: TreeRows, owner: Owner, copies: int, seed: int) -> _Part:
    """Return the training rows that the owner observes, followed by masked copies of them."""
    table, train = rows.table(owner), rows.observed(owner, rows.train)
    masks = [_masked(rows, owner, train, seed, copy) for copy in range(copies)]
    X = [table.matrix(train), *(table.matrix(train, mask) for mask in masks)]
    y, weight = np.tile(rows.y[train], 1 + copies), np.tile(rows.weight[train], 1 + copies)
    return np.concatenate(X), y, weight


def _masked(rows: TreeRows, owner: Owner, train: Ints, seed: int, copy: int) -> Bools:
    """Drop features of each row and party at a rate of its own, as `laser+mask` does. (n, p)"""
    masks = []
    for party in range(len(rows.tables)) if owner == POOLED else [owner]:
        observed = torch.from_numpy(rows.tables[party].observed[train])
        rng = named_generator("cpu", seed, "tree masks", party, copy)
        uniform = torch.rand(len(train), 1 + observed.shape[1], generator=rng)
        masks.append(drop_features(observed, uniform).numpy())
    return np.concatenate(masks, axis=1)


def _validation_part(rows: TreeRows, owner: Owner) -> _Part:
    validation = rows.observed(owner, rows.validation)
    return rows.table(owner).matrix(validation), rows.y[validation], rows.weight[validation]


def _fit(
    train: _Part,
    validation: _Part,
    rows: TreeRows,
    owner: Owner,
    config: TreeConfig,
    seed: int,
) -> Any:
    """Fit one model; without validation rows, with LightGBM's default number of trees."""
    several = rows.n_classes > 2
    import lightgbm

    parameters: dict[str, Any] = {
        "objective": "regression" if rows.numbers else "multiclass" if several else "binary",
        "num_class": rows.n_classes if several else 1,
        "learning_rate": config.learning_rate,
        "num_leaves": config.num_leaves,
        "min_child_samples": config.min_child_samples,
        "feature_fraction": rows.column_share,
        "seed": seed,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    X, y, weight = train
    categorical = list(rows.table(owner).categorical)
    data = lightgbm.Dataset(X, y, weight=weight, categorical_feature=categorical)
    X, y, weight = validation
    if not len(y):
        return lightgbm.train(parameters, data)
    held = data.create_valid(X, y, weight=weight)
    stop = lightgbm.early_stopping(config.patience, verbose=False)
    return lightgbm.train(parameters, data, config.max_trees, [held], callbacks=[stop])


def require_lightgbm() -> None:
    """Raise `ModuleNotFoundError` if LightGBM is not installed."""
    import lightgbm  # noqa: F401
