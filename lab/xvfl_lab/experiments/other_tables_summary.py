"""Who is ahead on other tables: `xvfl+` or the best tree, by table and rate, and on the mean.

In `local` the rival is the party's own tree. In `collaborative` it is the mean of the parties'
logits or the pooled trees, whichever has the higher mean over seeds on the table at the rate. A
table is ahead or behind by Student's t over seeds, with Holm's correction over the tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xvfl_lab.experiments.compare import Difference, holm
from xvfl_lab.experiments.figure_tables import markdown_table

Record = Mapping[str, Any]
RIVALS = {
    "local": ("trees local",),
    "collaborative": ("trees collaborative", "trees pooled collaborative"),
}
SHORT = {
    "trees local": "own tree",
    "trees collaborative": "logit mean",
    "trees pooled collaborative": "pooled",
}
MEAN_OF_RATES = "mean"
Scores = dict[tuple[str, float, str], dict[int, float]]
"""AUROC in percent by table, rate and way; then by seed."""


def scores_of(records: Iterable[Record]) -> Scores:
    """Collect the AUROC of each table, rate and way."""
    scores: Scores = {}
    for each in records:
        for mode, auroc in each["auroc"].items():
            key = (each["table"], each["rate"], f"{each['name']} {mode}")
            scores.setdefault(key, {})[each["seed"]] = 100 * auroc
    return scores


def summary(records: Sequence[Record], ours: str = "xvfl+") -> list[str]:
    """Lay out a table of means, differences and verdicts for each mode, and the means."""
    scores = scores_of(records)
    return [line for mode in RIVALS for line in _mode_table(scores, mode, f"{ours} {mode}")]


def _mode_table(scores: Scores, mode: str, way: str) -> list[str]:
    rates = sorted({rate for _, rate, name in scores if name == way})
    tables = sorted({table for table, _, name in scores if name == way}, key=str.lower)
    chosen: dict[tuple[str, float], str] = {}
    gaps: dict[tuple[str, float], dict[int, float]] = {}
    for table in tables:
        for rate in rates:
            rivals = [each for each in RIVALS[mode] if (table, rate, each) in scores]
            if len(rivals) < len(RIVALS[mode]) or (table, rate, way) not in scores:
                continue
            best = max(rivals, key=lambda name: _mean(scores[table, rate, name]))
            first, second = scores[table, rate, way], scores[table, rate, best]
            chosen[table, rate] = best
            gaps[table, rate] = {seed: first[seed] - second[seed] for seed in first.keys() & second}
    lines = [f"## {mode}", ""]
    columns: list[float | str] = [*rates, MEAN_OF_RATES]
    differences = {column: _differences(gaps, tables, rates, column) for column in columns}
    verdicts = {column: holm(each) for column, each in differences.items()}
    body = []
    for table in tables:
        cells = []
        for column in columns:
            gap = differences[column].get(table)
            if gap is None:
                cells.append("–")
                continue
            verdict = verdicts[column][table]
            text = _interval(gap)
            if isinstance(column, float):
                rival = chosen[table, column]
                pair = [_mean(scores[table, column, name]) for name in (way, rival)]
                text = f"{pair[0]:.2f} / {pair[1]:.2f} ({SHORT[rival]}): {text}"
            cells.append(text + ("" if verdict == "level" else f" **{verdict}**"))
        body.append([table, *cells])
    header = ["table", *(f"R_miss {rate:g}" for rate in rates), "mean of the rates"]
    lines += markdown_table(header, body)
    for column in columns:
        of_tables = {
            table: gap for table, gap in differences[column].items() if not table.endswith("-all")
        }
        if not of_tables:
            continue
        overall = Difference.of([gap.mean for gap in of_tables.values()])
        name = f"R_miss {column:g}" if isinstance(column, float) else "mean of the rates"
        better = sum(gap.mean > 0 for gap in of_tables.values())
        behind = [table for table, verdict in verdicts[column].items() if verdict == "behind"]
        lines.append(
            f"{mode}, {name}: {_interval(overall)} "
            f"(p = {overall.p_value:.3g}), better on {better} of {len(of_tables)}; "
            f"significantly behind: {', '.join(behind) or 'none'}"
        )
    return [*lines, ""]


def _differences(
    gaps: Mapping[tuple[str, float], Mapping[int, float]],
    tables: Sequence[str],
    rates: Sequence[float],
    column: float | str,
) -> dict[str, Difference]:
    """Return the difference of each table at a rate, or on the mean of the rates."""
    wanted = [column] if isinstance(column, float) else rates
    differences = {}
    for table in tables:
        of_rates = [gaps[table, rate] for rate in wanted if (table, rate) in gaps]
        if len(of_rates) == len(wanted):
            seeds = sorted(set.intersection(*(set(each) for each in of_rates)))
            each = [_mean({rate: of[seed] for rate, of in enumerate(of_rates)}) for seed in seeds]
            if each:
                differences[table] = Difference.of(each)
    return differences


def _interval(gap: Difference) -> str:
    """Write a difference with its 95 % confidence interval."""
    return f"{gap.mean:+.2f}" + (f" ± {gap.half_width:.2f}" if gap.seeds > 1 else "")


def _mean(values: Mapping[int, float]) -> float:
    return float(np.mean(list(values.values())))
