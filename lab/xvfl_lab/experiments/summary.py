"""What a figure's runs say: means over seeds, differences from us, in numbers and in Markdown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xvfl.primitives.metrics import METRICS
from xvfl_lab.experiments.compare import Difference, Way, difference, mean, standings, values
from xvfl_lab.experiments.jobs import IMAGES, OURS
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.trial import Setting

MODES = ("local", "assisted", "peers", "collaborative")
COMPARED = ("local", "assisted", "collaborative")
"""The modes in which methods are compared."""
JUDGED = (0.5, 0.9)
"""The rates whose average decides who is ahead."""


@dataclass(frozen=True)
class Axis:
    """What varies over a figure beside methods and seeds."""

    name: str
    label: str

    def of(self, setting: Setting) -> Any:
        """Give a run's place."""
        return getattr(setting, self.name)


RATE = Axis("rate", "R_miss")
AXES: dict[str, Axis] = {
    "missing-rates": RATE,
    "mode-gap": RATE,
    "overlap": Axis("overlap", "overlap"),
    "imbalance": RATE,
    "four-parties": RATE,
    "ablations": RATE,
    "kinds": Axis("kind", "kind"),
}


def metric_of(dataset: str) -> str:
    """Choose what decides: accuracy, or AUROC where one class is rare."""
    return "accuracy" if dataset in IMAGES else "auroc"


def methods_of(results: Sequence[Result]) -> list[str]:
    """List the methods in the order of their runs."""
    return list(dict.fromkeys(each.setting.method for each in results))


def by_place(results: Sequence[Result], axis: Axis) -> dict[Any, list[Result]]:
    """Group the runs by their place on an axis."""
    places = sorted({axis.of(each.setting) for each in results})
    return {place: [r for r in results if axis.of(r.setting) == place] for place in places}


def numbers(results: Sequence[Result], axis: Axis) -> list[dict[str, Any]]:
    """Give mean and deviation of every metric, by method, way and place."""
    rows = []
    for place, some in by_place(results, axis).items():
        for method in methods_of(some):
            mine = [each for each in some if each.setting.method == method]
            for way in mine[0].metrics:
                rate = mine[0].setting.rate
                found = {
                    metric: asdict(mean(mine, (method, way), rate, metric)) for metric in METRICS
                }
                rows.append({"method": method, "way": way, axis.name: place, **found})
    return rows


def table(results: Sequence[Result], axis: Axis, way: str, metric: str) -> list[str]:
    """Lay out one way to predict: methods down, places across, mean ± deviation in points."""
    places = by_place(results, axis)
    lines = [
        f"| {axis.label} | " + " | ".join(place_text(place) for place in places) + " |",
        "|---|" + "--:|" * len(places),
    ]
    for method in methods_of(results):
        cells = [_cell(some, (method, way), metric) for some in places.values()]
        bold = "**" if method == OURS else ""
        lines.append(f"| {bold}{method}{bold} | " + " | ".join(cells) + " |")
    return lines


def place_text(place: Any) -> str:
    """Write a place on an axis."""
    return f"{place:g}" if isinstance(place, float) else str(place)


def _cell(some: Sequence[Result], way: Way, metric: str) -> str:
    mine = [each for each in some if each.setting.method == way[0]]
    if not mine or way[1] not in mine[0].metrics:
        return "n/a"
    found = mean(mine, way, mine[0].setting.rate, metric)
    spread = f" ± {100 * found.deviation:.1f}" if len(mine) > 1 else ""
    return f"{100 * found.mean:.1f}{spread}"


BESIDES: tuple[tuple[str, str, str], ...] = (
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
"""Columns of the table of other rows and metrics: name, way, metric; "" = what decides."""


def besides(results: Sequence[Result], metric: str, rates: Sequence[float]) -> list[str]:
    """Lay out other test rows and metrics, means over seeds and the rates; NLL in nats."""
    lines = [
        "| | " + " | ".join(name for name, _, _ in BESIDES) + " |",
        "|---|" + "--:|" * len(BESIDES),
    ]
    for method in methods_of(results):
        cells = []
        for _, way, chosen in BESIDES:
            there = values(results, (method, way), rates, chosen or metric)
            found = sum(there.values()) / len(there) if there else None
            text = "n/a" if found is None else f"{100 * found:.1f}"
            cells.append(f"{found:.2f}" if found is not None and chosen == "nll" else text)
        bold = "**" if method == OURS else ""
        lines.append(f"| {bold}{method}{bold} | " + " | ".join(cells) + " |")
    return lines


@dataclass(frozen=True)
class Standing:
    """How we stand against one rival in one mode."""

    mode: str
    rival: str
    gap: Difference
    verdict: str


def standing(results: Sequence[Result], metric: str, rates: Sequence[float]) -> list[Standing]:
    """Compare us with every rival that has the mode, on the average over the rates."""
    found = []
    for mode in COMPARED:
        gaps = {}
        for rival in methods_of(results):
            there = values(results, (rival, mode), rates, metric)
            ours = values(results, (OURS, mode), rates, metric)
            if rival != OURS and len(there.keys() & ours.keys()) > 1:
                gaps[rival] = difference(results, (OURS, mode), (rival, mode), rates, metric)
        verdicts = standings(gaps)
        found += [Standing(mode, rival, gap, verdicts[rival]) for rival, gap in gaps.items()]
    if len(values(results, (OURS, "peers"), rates, metric)) > 1:
        gap = difference(results, (OURS, "assisted"), (OURS, "peers"), rates, metric)
        found.append(Standing("assisted", "peers alone", gap, gap.verdict))
    return found


def compared(results: Sequence[Result], axis: Axis, metric: str) -> dict[str, list[Standing]]:
    """Compare us with every rival over the judged rates, at each place of another axis apart."""
    if axis == RATE:
        rates = judged(results)
        return {f"R_miss {' and '.join(map(place_text, rates))}": standing(results, metric, rates)}
    return {
        f"{axis.label} {place_text(place)}": standing(some, metric, judged(some))
        for place, some in by_place(results, axis).items()
    }


def judged(results: Sequence[Result]) -> tuple[float, ...]:
    """Choose the rates that decide who is ahead: 0.5 and 0.9 where both were run."""
    there = {each.setting.rate for each in results}
    wanted = tuple(rate for rate in JUDGED if rate in there)
    return wanted or (max(there),)


def standing_table(found: Sequence[Standing]) -> list[str]:
    """Lay out standings: rivals down, modes across."""
    modes = [mode for mode in COMPARED if mode in _modes(found)]
    lines = ["| xvfl+ minus | " + " | ".join(modes) + " |", "|---|" + "--:|" * len(modes)]
    for rival in dict.fromkeys(each.rival for each in found):
        cells = []
        for mode in modes:
            mine = [each for each in found if each.rival == rival and each.mode == mode]
            cells.append(
                f"{100 * mine[0].gap.mean:+.2f} ± {100 * mine[0].gap.error:.2f}, {mine[0].verdict}"
                if mine
                else "n/a"
            )
        lines.append(f"| {rival} | " + " | ".join(cells) + " |")
    return lines


def _modes(found: Sequence[Standing]) -> set[str]:
    return {each.mode for each in found}
