"""What the pages of the grid figures show: one table and one paragraph, from the stored runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xvfl_lab.experiments.claims import CLAIMS, METHODS, PAPER, Answer, party_gaps
from xvfl_lab.experiments.compare import Difference, difference, values
from xvfl_lab.experiments.figure_tables import (
    COMPARED,
    Standing,
    axis_of,
    judged,
    markdown_table,
    methods_of,
    metric_of,
    points,
    position_text,
    standing,
    standings_of,
)
from xvfl_lab.experiments.figures import OURS
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.standings import behind, nearest_rival, overall

ByDataset = Mapping[str, Sequence[Result]]
"""Results of a figure by data set."""
MODES = ("local", "collaborative")
LEVELS = ("ahead", "level", "behind")


@dataclass(frozen=True)
class Summary:
    """The table of a page, what it shows, and what was found."""

    title: str
    table: Sequence[str]
    finding: str


def summarize(figure: str, by_dataset: ByDataset, answers: Mapping[str, Answer]) -> Summary:
    """Summarize a grid figure; the finding ends with the paper's claims judged from it."""
    summary = SUMMARIES.get(figure, leads)(figure, by_dataset)
    claims = [
        f"[{name}](claims.md#{name.lower()}) {answer.verdict}"
        for name, answer in answers.items()
        if CLAIMS[name].figure == figure
    ]
    told = [f"The paper's claims about `{PAPER}`: {', '.join(claims)}."] if claims else []
    return Summary(summary.title, summary.table, " ".join([summary.finding, *told]))


def span(values: Iterable[float], digits: int) -> str:
    """Write the smallest and the largest value, or one where they are the same."""
    listed = list(values)
    low, high = (f"{round(each, digits) + 0.0:.{digits}f}" for each in (min(listed), max(listed)))
    return low if low == high else f"{low} to {high}"


def leads(figure: str, by_dataset: ByDataset) -> Summary:
    """Show the score of `xvfl+` and its lead over the nearest rival in each setting."""
    rows = []
    for dataset, results in by_dataset.items():
        metric = metric_of(dataset)
        for where, compared in standings_of(results, axis_of(figure), metric).items():
            some = _at(figure, results, where)
            cells = [cell for mode in MODES for cell in _lead(some, compared, mode, metric)]
            rows.append([f"{dataset}, {where}", *cells])
    header = [text for mode in MODES for text in (f"`{mode}`", "lead over the nearest rival")]
    title = f"Score of `{OURS}` in %, and its lead in points ± standard error"
    return Summary(title, markdown_table(["", *header], rows), standing_text(figure, by_dataset))


def _at(figure: str, results: Sequence[Result], where: str) -> list[Result]:
    axis = axis_of(figure)
    here = [r for r in results if f"{axis.label} {position_text(axis.of(r.config))}" == where]
    return here or list(results)


def _lead(
    some: Sequence[Result], compared: Sequence[Standing], mode: str, metric: str
) -> tuple[str, str]:
    nearest = nearest_rival(compared, mode)
    return _score(some, OURS, mode, metric), (
        f"{points(nearest.gap)} `{nearest.rival}`, {nearest.verdict}"
    )


def _score(results: Sequence[Result], method: str, mode: str, metric: str) -> str:
    """Write the mean over seeds and judged rates, in percent."""
    by_seed = values(results, (method, mode), judged(results), metric)
    return f"{100 * sum(by_seed.values()) / len(by_seed):.1f}" if by_seed else "–"


def standing_text(figure: str, by_dataset: ByDataset) -> str:
    """Count where `xvfl+` is ahead of every rival, level or behind, and list where it is behind."""
    compared = [
        [each for each in of if each.mode == mode]
        for dataset, results in by_dataset.items()
        for of in standings_of(results, axis_of(figure), metric_of(dataset)).values()
        for mode in MODES
        if of
    ]
    counts = Counter(map(overall, compared))
    told = ", ".join(f"{level} in {counts[level]}" for level in LEVELS)
    rivals = Counter(min(of, key=lambda each: each.gap.mean).rival for of in compared)
    rival, times = rivals.most_common(1)[0] if rivals else ("", 0)
    lost = behind({(figure, dataset): results for dataset, results in by_dataset.items()})
    text = (
        f"Against all rivals together, `{OURS}` is {told} of {len(compared)} comparisons (data "
        "sets, settings, `local` and `collaborative`; 5 %, paired over seeds, Holm's correction "
        f"over the rivals). The nearest rival is `{rival}` in {times}. "
    )
    places = "; ".join(each.removeprefix(f"{figure}, ") for each in lost)
    return text + (
        f"At single settings it is behind in points: {places}."
        if lost
        else "At no single setting is it significantly behind a rival."
    )


def levels(figure: str, by_dataset: ByDataset) -> Summary:
    """Show every method on every data set: `local` / `collaborative`."""
    methods = list(dict.fromkeys(m for some in by_dataset.values() for m in methods_of(some)))
    rows = []
    for method in methods:
        cells = [
            "/".join(_score(some, method, mode, metric_of(dataset)) for mode in MODES)
            if method in methods_of(some)
            else "–"
            for dataset, some in by_dataset.items()
        ]
        rows.append([f"**{method}**" if method == OURS else method, *cells])
    title = "Score in %, mean of R_miss 0.5 and 0.9, `local`/`collaborative`"
    table = markdown_table(["", *by_dataset], rows)
    return Summary(title, table, standing_text(figure, by_dataset))


def mode_gaps(figure: str, by_dataset: ByDataset) -> Summary:
    """Show what `collaborative` adds to `local`, by method."""

    def gap(dataset: str, method: str, mode: str = "local") -> Difference | None:
        some, metric = by_dataset[dataset], metric_of(dataset)
        ways = (method, "collaborative"), (method, mode)
        both = all(values(some, way, 0.9, metric) for way in ways)
        return difference(some, *ways, 0.9, metric) if both else None

    methods = list(dict.fromkeys(m for some in by_dataset.values() for m in methods_of(some)))
    rows = [
        [method, *(f"{100 * each.mean:.1f}" if each else "–" for each in gaps)]
        for method in methods
        for gaps in [[gap(dataset, method) for dataset in by_dataset]]
        if any(gaps)
    ]

    def lost(method: str, mode: str) -> str:
        return span([100 * g.mean for d in by_dataset if (g := gap(d, method, mode))], 1)

    others = "; ".join(f"`{m}` {lost(m, 'local')}" for m in ("laser+mask", PAPER, "fedcvt"))
    finding = (
        f"`{OURS}` loses {lost(OURS, 'local')} points when a party predicts alone ({others}). With "
        f"its peers' embeddings (`assisted`) it loses {lost(OURS, 'assisted')} points."
    )
    title = "Points that a party alone loses: `collaborative` minus `local` at R_miss 0.9"
    return Summary(title, markdown_table(["", *by_dataset], rows), finding)


def party_differences(figure: str, by_dataset: ByDataset) -> Summary:
    """Show the difference between the parties, by method."""
    gaps = {dataset: party_gaps(some, metric_of(dataset)) for dataset, some in by_dataset.items()}
    columns = [(dataset, mode) for dataset in gaps for mode in COMPARED[:2]]
    rows = [
        [
            method,
            *(points(gap) if (gap := gaps[d].get((method, mode))) else "–" for d, mode in columns),
        ]
        for method in METHODS
        if any((method, mode) in gaps[d] for d, mode in columns)
    ]
    title = "Party with 80 % of the full rows minus party with 20 %, in points ± standard error"
    table = markdown_table(["", *(f"{d}, `{mode}`" for d, mode in columns)], rows)
    return Summary(title, table, standing_text(figure, by_dataset))


def ablation_costs(figure: str, by_dataset: ByDataset) -> Summary:
    """Show what `xvfl+` loses without each of its parts."""
    cells: dict[tuple[str, str, str], Standing] = {
        (each.rival, dataset, each.mode): each
        for dataset, some in by_dataset.items()
        for each in standing(some, metric_of(dataset), judged(some))
        if each.mode in MODES
    }
    rows = [
        [
            part,
            *(
                " / ".join(_cost(cells[part, dataset, mode]) for mode in MODES)
                if (part, dataset, MODES[0]) in cells
                else "–"
                for dataset in by_dataset
            ),
        ]
        for part in dict.fromkeys(part for part, _, _ in cells)
    ]

    def named(verdict: str) -> str:
        found = [
            f"{part} on {dataset} in `{mode}` ({100 * each.gap.mean:.1f})"
            for (part, dataset, mode), each in cells.items()
            if each.verdict == verdict
        ]
        return "; ".join(found) or "none"

    finding = (
        "Self completion is training on randomly masked rows, cross completion is XCom. "
        f"Significant losses in points: {named('ahead')}. Variants that are significantly better "
        f"than `{OURS}`: {named('behind')}."
    )
    title = (
        "Points lost by a variant in `local` / `collaborative`, mean of R_miss 0.5 and 0.9; bold: "
        "significant at 5 % (Holm)"
    )
    return Summary(title, markdown_table(["variant", *by_dataset], rows), finding)


def _cost(each: Standing) -> str:
    text = f"{100 * each.gap.mean:.1f}".replace("-0.0", "0.0")
    return text if each.verdict == "level" else f"**{text}**"


SUMMARIES: dict[str, Callable[[str, ByDataset], Summary]] = {
    "missing-rates": levels,
    "mode-gap": mode_gaps,
    "imbalance": party_differences,
    "ablations": ablation_costs,
}
"""Summaries of the figures that do not show leads."""
