"""The result of an explanation: figures with intervals, as tables, JSON, plot and page."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from xvfl.errors import InputError
from xvfl.model.explain.bootstrap import METRIC_NAMES, NEEDS_TWO_LABELS, Estimate
from xvfl.model.run_dir import finite_json
from xvfl.system.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPLANATION = "explanation.json"


@dataclass(frozen=True)
class PartyWorth:
    """What one party is worth, on the same rows as every other party.

    Intervals of one figure hold jointly for all parties.
    """

    party: str
    rows: int
    """Of the explained rows, those of which the party observes something."""
    alone: Estimate
    """The metric with this party alone."""
    without: Estimate
    """The metric with all parties but this one."""
    adds: Estimate
    """The metric with all parties, less that without this one."""
    shapley: Estimate
    """The Shapley value: the mean increase when the party joins some of the others."""
    share: Estimate | None
    """The Shapley value as a share of the sum; None if the parties together are worth nothing."""


@dataclass(frozen=True)
class FeatureImportance:
    """What one feature is worth: the decrease of the metric when its cells are permuted."""

    party: str
    feature: str
    importance: Estimate


@dataclass(frozen=True)
class FilledCell:
    """A missing cell and the value it was completed with, in the column's own units."""

    party: str
    column: str
    value: Any


@dataclass(frozen=True)
class RowChange:
    """How completion changed the prediction of one row."""

    id: Any
    label: Any
    class_: Any
    """The class of the probabilities: the second of two, or the predicted one of several. None in
    regression."""
    observed: float
    """Its probability, or the predicted number, from observed features alone."""
    completed: float
    """Its probability, or the predicted number, with missing features completed."""
    prediction_observed: Any
    prediction_completed: Any
    cells: list[FilledCell]


@dataclass(frozen=True)
class CompletionEffect:
    """What completion changed, over the rows with a gap."""

    rows: int
    """Rows that are not full at one party or more."""
    observed: Estimate
    """The metric on these rows from observed features alone."""
    completed: Estimate
    """The metric on these rows with missing features completed."""
    difference: Estimate
    changed: int
    """Rows whose predicted class, or number, changed."""
    examples: list[RowChange] = field(default_factory=list)

    @property
    def is_defined(self) -> bool:
        """Whether the metric is defined on these rows; some need rows with different labels."""
        return not math.isnan(self.observed.value)


@dataclass(frozen=True)
class Explanation:
    """What parties and features are worth, and what completion changed.

    Parameters
    ----------
    metric : {"auroc", "accuracy", "log_loss", "r2", "squared_error", "absolute_error"}
        The metric of all figures. Greater is better: `log_loss` is the mean log-likelihood, errors
        have a minus sign.
    n_rows : int
        Number of explained rows, the same for all parties.
    nobody : float
        The metric without any party: every row gets the class prior, or the mean label.
    together : Estimate
        The metric with all parties.
    worth : list of PartyWorth
        One entry for each party, with 95 % intervals that hold jointly for all parties.
    importances : list of FeatureImportance
        One entry for each feature, by party, most important first.
    completion : CompletionEffect or None
        None if the method does not complete missing features, no row has a gap, or this part was
        left out.
    exact : bool
        Whether all subsets of parties were evaluated; otherwise a sample of orders.
    classes : list
        Class labels; empty in regression.
    """

    metric: str
    n_rows: int
    nobody: float
    together: Estimate
    worth: list[PartyWorth]
    importances: list[FeatureImportance]
    completion: CompletionEffect | None
    exact: bool
    classes: list[Any]

    @property
    def metric_name(self) -> str:
        """The metric as it is called in tables and plots."""
        return METRIC_NAMES[self.metric]

    @property
    def undefined_completion(self) -> str:
        """Why the metric of the rows with a gap is undefined; empty if it is not."""
        if self.completion is None or self.completion.is_defined:
            return ""
        return (
            f"{self.metric_name} of the {self.completion.rows:,} rows with a gap is undefined, "
            f"because all of them have the same label; use the metric "
            f"{NEEDS_TWO_LABELS[self.metric]!r} to compare them"
        )

    @property
    def parties(self) -> pd.DataFrame:
        """What each party is worth.

        `_low` and `_high` are the ends of 95 % intervals that hold jointly for all parties.
        """
        rows = {
            each.party: {
                "rows": each.rows,
                **_columns("alone", each.alone),
                **_columns("without", each.without),
                **_columns("adds", each.adds),
                **_columns("shapley", each.shapley),
                **_columns("share", each.share),
            }
            for each in self.worth
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("party")

    @property
    def features(self) -> pd.DataFrame:
        """The importance of each feature, most important first."""
        columns = ["party", "feature", "importance", "importance_low", "importance_high"]
        rows = [
            (each.party, each.feature, *vars(each.importance).values()) for each in self.importances
        ]
        frame = pd.DataFrame(rows, columns=columns)
        order = frame["importance"].sort_values(ascending=False, kind="stable").index
        return frame.loc[order].reset_index(drop=True)

    @property
    def completed_cells(self) -> pd.DataFrame:
        """The cells that completion filled in the example rows, and how predictions moved."""
        columns = ["id", "label", "class", "observed", "completed", "party", "column", "value"]
        examples = self.completion.examples if self.completion else []
        rows = [
            (row.id, row.label, row.class_, row.observed, row.completed, *vars(cell).values())
            for row in examples
            for cell in row.cells
        ]
        return pd.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; NaN becomes null."""
        data: dict[str, Any] = finite_json(asdict(self))
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Explanation":
        """Restore an explanation from its JSON form."""
        completion = data["completion"]
        return cls(
            data["metric"],
            data["n_rows"],
            data["nobody"],
            _estimate(data["together"]),
            [PartyWorth(**_with_estimates(each)) for each in data["worth"]],
            [FeatureImportance(**_with_estimates(each)) for each in data["importances"]],
            completion
            and CompletionEffect(
                **{
                    **_with_estimates(completion),
                    "examples": [
                        RowChange(**{**row, "cells": [FilledCell(**cell) for cell in row["cells"]]})
                        for row in completion["examples"]
                    ],
                }
            ),
            data["exact"],
            data["classes"],
        )

    def plot(self, max_features: int = 15) -> "Figure":
        """Plot the worth of the parties and the importance of features.

        Parameters
        ----------
        max_features : int, default=15
            Number of features to show, the most important ones.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from xvfl.model.explain.explanation_plot import plot_explanation

        return plot_explanation(self, max_features)

    def to_html(self, title: str = "Explanation of a model") -> str:
        """Return a self-contained page."""
        from xvfl.model.explain.explanation_page import page

        return page(self, title)

    def save_html(self, path: str | Path, title: str = "Explanation of a model") -> None:
        """Write a self-contained page.

        Parameters
        ----------
        path : str or Path
            The file to write.
        title : str, default="Explanation of a model"
            Heading of the page.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        try:
            with atomic_write(Path(path)) as temporary:
                temporary.write_text(self.to_html(title), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    values = (None, None, None) if estimate is None else tuple(vars(estimate).values())
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _estimate(data: Mapping[str, Any]) -> Estimate:
    values = {name: float("nan") if each is None else each for name, each in data.items()}
    return Estimate(**values)


def _with_estimates(data: Mapping[str, Any]) -> dict[str, Any]:
    keys = {"value", "low", "high"}
    return {
        name: _estimate(each) if isinstance(each, Mapping) and set(each) == keys else each
        for name, each in data.items()
    }
