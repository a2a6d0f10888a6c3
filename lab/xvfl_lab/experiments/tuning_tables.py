"""Tables of `tuning`: the chosen settings, the cases of P1, and what the search of λ changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from xvfl_lab.experiments.claims import PAPER, Cases, cases
from xvfl_lab.experiments.compare import difference
from xvfl_lab.experiments.figure_tables import COMPARED, markdown_table, metric_of
from xvfl_lab.experiments.figures import IMAGES, OURS
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.stacked_runs import RunConfig

NAME = "tuning"
UNTUNED = "xvfl, λ 0.1"
"""Name of `xvfl` with the λ of the other figures."""

Figures = Mapping[str, Mapping[str, Any]]
"""By data set: `trials` by method, and `runs`."""


def best_setting(trials: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the setting with the highest score."""
    chosen = max(trials, key=lambda each: each["score"])
    return {name: value for name, value in chosen.items() if name != "score"}


def results_of(dataset: str, runs: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Return stored runs as results, which `compare` and `claims` take."""
    metric = metric_of(dataset)
    return [
        Result(
            RunConfig(run["method"], run["rate"], run["seed"]),
            {mode: {metric: run[mode]} for mode in COMPARED if mode in run},
            seconds=0.0,
            majority=0.0,
        )
        for run in runs
    ]


def with_baselines(figures: Figures) -> dict[str, list[Result]]:
    """Return the results on the data sets on which baselines are tuned: all but images."""
    return {
        dataset: results_of(dataset, of_set["runs"])
        for dataset, of_set in figures.items()
        if dataset not in IMAGES
    }


def tables(figures: Figures) -> list[str]:
    """Lay out all tables."""
    settings = [
        [dataset, method, len(trials), _text(best_setting(trials))]
        for dataset, of_set in figures.items()
        for method, trials in of_set["trials"].items()
    ]
    compared = with_baselines(figures)
    return [
        "Settings chosen by the validation rows:",
        "",
        *markdown_table(["data set", "method", "trials", "chosen"], settings),
        "The cases of P1 against the tuned baselines. A case is a missing rate. "
        "*Ahead*: of every baseline; `assisted` is compared with `local` of the baselines. `xvfl` "
        "with the chosen λ, with λ1 = λ2 = 0.1, and `xvfl+` with its default settings:",
        "",
        *case_table(compared, PAPER),
        *case_table(compared, UNTUNED),
        *case_table(compared, OURS),
        "What the search of λ changes for `xvfl` on the test rows, against λ1 = λ2 = 0.1; points "
        "of AUROC (tables) or accuracy (images), ± standard error. The verdicts of this table are "
        "not corrected for the number of comparisons:",
        "",
        *markdown_table(["data set", "R_miss", *COMPARED], changes(figures)),
    ]


def _text(setting: Mapping[str, float]) -> str:
    names = {"lambda1": "λ1", "lambda2": "λ2"}
    parts = (f"{names.get(name, name)} {value:g}" for name, value in setting.items())
    return ", ".join(parts).replace("_", " ")


def case_table(results: Mapping[str, Sequence[Result]], method: str) -> list[str]:
    """Count the cases in which a method is ahead of all baselines, by data set."""
    by_set = {
        dataset: [cases(some, method, mode, metric_of(dataset)) for mode in COMPARED]
        for dataset, some in results.items()
    }
    totals = [sum(of_mode, Cases()) for of_mode in zip(*by_set.values(), strict=True)]
    rows = [[dataset, *counts] for dataset, counts in by_set.items()]
    return markdown_table([f"{method} on", *COMPARED], [*rows, ["all", *totals]])


def judged_cases(results: Mapping[str, Sequence[Result]], method: str) -> Cases:
    """Count the cases of P1 on all data sets: `assisted` and `collaborative` together."""
    each = (
        cases(some, method, mode, metric_of(dataset))
        for dataset, some in results.items()
        for mode in ("assisted", "collaborative")
    )
    return sum(each, Cases())


def changes(figures: Figures) -> list[list[str]]:
    """Return what the search of λ changes, by data set and missing rate."""
    rows = []
    for dataset, of_set in figures.items():
        results = results_of(dataset, of_set["runs"])
        for rate in sorted({each.config.rate for each in results}):
            gaps = [
                difference(results, (PAPER, mode), (UNTUNED, mode), rate, metric_of(dataset))
                for mode in COMPARED
            ]
            cells = [f"{100 * g.mean:+.2f} ± {100 * g.error:.2f}, {g.verdict}" for g in gaps]
            rows.append([dataset, f"{rate:g}", *cells])
    return rows
