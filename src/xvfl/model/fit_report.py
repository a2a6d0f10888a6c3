"""What a training did: rows, columns, validation scores, completion, and what to try next.

`build_report` makes it; here are the data and their text. It is stored as `report.json`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from xvfl.config import TaskKind
from xvfl.model.run_dir import RunDir
from xvfl.system.printable import printable

REPORT = "report.json"
METRICS = {
    "classification": {"auroc": "AUROC", "accuracy": "accuracy", "nll": "log-loss"},
    "regression": {"r2": "R²", "rmse": "RMSE", "mae": "MAE"},
}
"""The metrics that are shown, by task; the first one is also shown of trees."""


@dataclass(frozen=True)
class Score:
    """Metrics of one mode at one party on the validation rows."""

    mode: str
    party: str
    rows: int
    metrics: dict[str, float]
    trees: dict[str, float] = field(default_factory=dict)
    """Metrics of trees on these rows: of the party's columns, or of all columns in one place."""


@dataclass(frozen=True)
class CompletionUse:
    """Whether the predictions of one mode at one party use completed features, and why."""

    mode: str
    party: str
    share: float
    """Weight of the completed row, 0 to 1; the rest is that of the row as observed."""
    reason: str = ""


@dataclass(frozen=True)
class FitReport:
    """What a training did."""

    method: str
    task: TaskKind
    rows: dict[str, int]
    """Labeled and unlabeled training rows, validation and test rows."""
    columns: dict[str, int]
    """Number of features used, by party."""
    missing: dict[str, float]
    """Missing share of the median feature in the training rows, by party."""
    baseline: dict[str, float]
    """Metrics of always predicting the class frequencies, or the mean."""
    scores: list[Score]
    completion: list[CompletionUse]
    tree_rows: int
    """Training rows of the trees."""
    no_trees: str
    """Why there are no trees; empty if there are."""
    hints: list[str]
    """What to try next."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FitReport":
        """Restore a report from its JSON form."""
        scores = [Score(**each) for each in data["scores"]]
        completion = [CompletionUse(**each) for each in data["completion"]]
        return cls(**{**data, "scores": scores, "completion": completion})

    @property
    def table(self) -> pd.DataFrame:
        """The scores, one row for each mode and party, and the baseline."""
        names = METRICS[self.task]
        first, heading = next(iter(names.items()))
        rows = [
            {
                "mode": each.mode,
                "party": each.party,
                "rows": f"{each.rows:,}",
                **{title: _figure(each.metrics, name) for name, title in names.items()},
                f"{heading} of trees": _figure(each.trees, first),
            }
            for each in self.scores
        ]
        frame = pd.DataFrame(rows)
        baseline = "majority class" if self.task == "classification" else "mean label"
        last = {title: _figure(self.baseline, name) for name, title in names.items()}
        frame.loc[len(frame)] = {"mode": baseline, **last}
        return frame.fillna("").set_index("mode")

    @property
    def lines(self) -> list[str]:
        """What to know besides the scores: completion, trees, and what to try next."""
        used = [each for each in self.completion if each.share]
        unused = [each for each in self.completion if not each.share]
        lines = [f"completion is used in {_uses_text(used)}"] if used else []
        if unused and not used and len({each.reason for each in unused}) == 1:
            lines.append(f"completion is not used: {unused[0].reason}")
        elif unused:
            lines.append(f"completion is not used in {_uses_text(unused)}")
        if self.no_trees:
            lines.append(f"no trees to compare with: {self.no_trees}")
        return [printable(each) for each in (*lines, *(f"try: {each}" for each in self.hints))]

    def __str__(self) -> str:
        text = self.table.rename_axis(None).reset_index(names="").to_string(index=False)
        trees = f"; trees of {self.tree_rows:,} rows" if self.tree_rows else ""
        title = f"validation scores, of {self.rows['validation']:,} rows{trees}:"
        shown = (*self._used(), title, *text.split("\n"), *self.lines)
        return "\n".join(map(printable, shown))

    def _repr_html_(self) -> str:
        from html import escape

        listed = "".join(f"<li>{escape(each)}</li>" for each in (*self._used(), *self.lines))
        return f"{self.table.to_html(border=0)}<ul>{listed}</ul>"

    def _used(self) -> list[str]:
        unlabeled = self.rows["unlabeled"]
        also = f" and {unlabeled:,} unlabeled" if unlabeled else ""
        columns = ", ".join(
            f"{name} {count:,} ({self.missing[name]:.0%} missing)"
            for name, count in self.columns.items()
        )
        rows = f"trained {self.method} on {self.rows['labeled']:,} labeled{also} rows"
        return [rows, f"columns: {columns}"]


def read_report(folder: RunDir) -> FitReport | None:
    """Read the report of a run or model folder; None if it has none."""
    return FitReport.from_dict(folder.read_json(REPORT)) if folder.has(REPORT) else None


def _figure(metrics: Mapping[str, float], metric: str) -> str:
    """Write a metric; errors in the units of a label have four digits."""
    value = metrics.get(metric)
    if value is None:
        return ""
    return f"{value:.4g}" if metric in ("rmse", "mae") else f"{value:.3f}"


def _uses_text(uses: Iterable[CompletionUse]) -> str:
    """List modes and parties, those with the same reason together."""
    places: dict[str, list[str]] = {}
    for use in uses:
        place = f"{use.mode} at {use.party}" if use.mode != "collaborative" else use.mode
        weight = f" (weight {use.share:g})" if 0 < use.share < 1 else ""
        places.setdefault(use.reason, []).append(place + weight)
    texts = ((", ".join(each), reason) for reason, each in places.items())
    return "; ".join(f"{each}: {reason}" if reason else each for each, reason in texts)
