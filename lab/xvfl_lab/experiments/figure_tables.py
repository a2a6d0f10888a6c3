"""Numbers and Markdown tables of a figure: means over seeds, differences of xvfl+ from rivals."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xvfl.primitives.metrics import METRICS
from xvfl_lab.experiments.compare import Difference, Mean, Way, difference, holm, mean, values
from xvfl_lab.experiments.figures import IMAGES, OURS
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.stacked_runs import RunConfig

MODES = ("local", "assisted", "peers", "collaborative")
COMPARED = ("local", "assisted", "collaborative")
"""The modes in which methods are compared."""
JUDGED = (0.5, 0.9)
"""The rates whose average decides who is ahead."""
PEERS = "peers alone"
"""In comparisons of `assisted`: the same method without the party's own row."""


@dataclass(frozen=True)
class Axis:
    """What varies over a figure beside methods and seeds."""

    name: str
    label: str

    def of(self, config: RunConfig) -> Any:
        """Return the position of a run."""
        return getattr(config, self.name)


RATE = Axis("rate", "R_miss")
AXES = {"overlap": Axis("overlap", "overlap"), "kinds": Axis("kind", "kind")}
"""Axes of the figures over something else than the missing rate."""


def axis_of(figure: str) -> Axis:
    """Return the axis of a figure."""
    return AXES.get(figure, RATE)


def metric_of(dataset: str) -> str:
    """Return the metric that decides: accuracy, or AUROC for data sets with a rare class."""
    return "accuracy" if dataset in IMAGES else "auroc"


def methods_of(results: Sequence[Result]) -> list[str]:
    """List the methods in the order of their runs."""
    return list(dict.fromkeys(each.config.name for each in results))


def by_position(results: Sequence[Result], axis: Axis) -> dict[Any, list[Result]]:
    """Group the runs by their position on an axis."""
    positions = sorted({axis.of(each.config) for each in results})
    return {at: [r for r in results if axis.of(r.config) == at] for at in positions}


def numbers(results: Sequence[Result], axis: Axis) -> list[dict[str, Any]]:
    """Return mean and deviation of every metric, by method, way and position."""
    rows = []
    for at, some in by_position(results, axis).items():
        for method in methods_of(some):
            first = next(each for each in some if each.config.name == method)
            for way in first.metrics:
                means = [mean(some, (method, way), first.config.rate, each) for each in METRICS]
                by_metric = dict(zip(METRICS, map(asdict, means), strict=True))
                rows.append({"method": method, "way": way, axis.name: at, **by_metric})
    return rows


def table(results: Sequence[Result], axis: Axis, way: str, metric: str) -> list[str]:
    """Lay out one way to predict: a row a method, a column a position, mean ± deviation."""
    positions = by_position(results, axis)
    return markdown_table(
        [axis.label, *map(position_text, positions)],
        (
            [
                _bold(method),
                *(mean_text(some, (method, way), metric) for some in positions.values()),
            ]
            for method in methods_of(results)
        ),
    )


def markdown_row(cells: Iterable[object]) -> str:
    """Lay out a row of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def markdown_table(header: Sequence[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lay out a Markdown table of one text column and columns of numbers, and a blank line."""
    under = "|---|" + "--:|" * (len(header) - 1)
    return [markdown_row(header), under, *map(markdown_row, rows), ""]


def points(gap: Difference) -> str:
    """Write a difference in percentage points."""
    return f"{100 * gap.mean:+.2f} ± {100 * gap.error:.2f}"


def position_text(position: Any) -> str:
    """Write a position on an axis."""
    return f"{position:g}" if isinstance(position, float) else str(position)


def _bold(method: str) -> str:
    return f"**{method}**" if method == OURS else method


def level(some: Sequence[Result], way: Way, metric: str) -> Mean | None:
    """Average a metric over the seeds at a position; None where the method has no such way."""
    mine = [each for each in some if each.config.name == way[0] and way[1] in each.metrics]
    return mean(mine, way, mine[0].config.rate, metric) if mine else None


def mean_text(some: Sequence[Result], way: Way, metric: str) -> str:
    """Write mean ± deviation over the seeds at a position, in percent."""
    value = level(some, way, metric)
    if value is None:
        return "n/a"
    several = len({each.config.seed for each in some}) > 1
    return f"{100 * value.mean:.1f}" + (f" ± {100 * value.deviation:.1f}" if several else "")


MORE: tuple[tuple[str, str, str], ...] = (
    ("local, mixed rows", "local mixed", ""),
    ("collaborative, mixed", "collaborative mixed", ""),
    ("local, whole rows", "local whole", ""),
    ("collaborative, whole", "collaborative whole", ""),
    ("local, balanced accuracy", "local", "balanced_accuracy"),
    ("local, ECE", "local", "ece"),
    ("local, NLL", "local", "nll"),
    ("collaborative, ECE", "collaborative", "ece"),
    ("collaborative, NLL", "collaborative", "nll"),
)
"""Columns of the table of other rows and metrics: name, way, metric; "" = the deciding one."""


def more_metrics(results: Sequence[Result], metric: str, rates: Sequence[float]) -> list[str]:
    """Lay out other test rows and metrics, means over seeds and the rates; NLL in nats."""

    def cell(method: str, way: str, chosen: str) -> str:
        by_seed = values(results, (method, way), rates, chosen or metric)
        if not by_seed:
            return "n/a"
        value = sum(by_seed.values()) / len(by_seed)
        return f"{value:.2f}" if chosen == "nll" else f"{100 * value:.1f}"

    return markdown_table(
        ["", *(name for name, _, _ in MORE)],
        (
            [_bold(method), *(cell(method, way, chosen) for _, way, chosen in MORE)]
            for method in methods_of(results)
        ),
    )


@dataclass(frozen=True)
class Standing:
    """The difference of `xvfl+` from one rival in one mode."""

    mode: str
    rival: str
    gap: Difference
    verdict: str


def standing(results: Sequence[Result], metric: str, rates: Sequence[float]) -> list[Standing]:
    """Compare `xvfl+` with every rival that has the mode, on the average over the rates."""
    standings = []
    for mode in COMPARED:
        gaps = {}
        ours = values(results, (OURS, mode), rates, metric)
        for rival in methods_of(results):
            theirs = values(results, (rival, mode), rates, metric)
            if rival != OURS and len(theirs.keys() & ours.keys()) > 1:
                gaps[rival] = difference(results, (OURS, mode), (rival, mode), rates, metric)
        verdicts = holm(gaps)
        standings += [Standing(mode, rival, gap, verdicts[rival]) for rival, gap in gaps.items()]
    if len(values(results, (OURS, "peers"), rates, metric)) > 1:
        gap = difference(results, (OURS, "assisted"), (OURS, "peers"), rates, metric)
        standings.append(Standing("assisted", PEERS, gap, gap.verdict))
    return standings


def standings_of(results: Sequence[Result], axis: Axis, metric: str) -> dict[str, list[Standing]]:
    """Compare `xvfl+` with every rival: over the judged rates, or at each other position."""
    if axis == RATE:
        rates = judged(results)
        where = f"R_miss {' and '.join(map(position_text, rates))}"
        return {where: standing(results, metric, rates)}
    return {
        f"{axis.label} {position_text(at)}": standing(some, metric, judged(some))
        for at, some in by_position(results, axis).items()
    }


def judged(results: Sequence[Result]) -> tuple[float, ...]:
    """Return the rates that decide who is ahead: 0.5 and 0.9 where both were run."""
    rates = {each.config.rate for each in results}
    return tuple(rate for rate in JUDGED if rate in rates) or (max(rates),)


def standing_table(standings: Sequence[Standing]) -> list[str]:
    """Lay out standings: a row a rival, a column a mode."""
    modes = [mode for mode in COMPARED if any(each.mode == mode for each in standings)]
    cells = {(each.rival, each.mode): f"{points(each.gap)}, {each.verdict}" for each in standings}
    return markdown_table(
        ["xvfl+ minus", *modes],
        (
            [rival, *(cells.get((rival, mode), "n/a") for mode in modes)]
            for rival in dict.fromkeys(each.rival for each in standings)
        ),
    )
