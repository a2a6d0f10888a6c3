"""Trees against `xvfl+` and `laser+mask` on the tables: the same rows, masks and seeds.

Trees are computed here, on one core. Runs of the methods are read from the folder of results, where
they exist. Tuning: LightGBM's default settings; the validation rows of a run choose the number of
trees and between training with and without masks (two trials). The number of masked copies was
chosen among 1, 3 and 6 on validation rows of Bank and PhysioNet 2012 (seed 100).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from xvfl.errors import ConfigError, InputError
from xvfl.model.trees import require_lightgbm
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure
from xvfl_lab.experiments.figure_tables import (
    JUDGED,
    RATE,
    Standing,
    by_position,
    markdown_table,
    mean_text,
    metric_of,
    numbers,
    position_text,
    standing,
    standing_table,
    table,
)
from xvfl_lab.experiments.figures import OURS, Job, budget_for, make_jobs
from xvfl_lab.experiments.run_store import RunStore, key_of
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.tree_runs import (
    EXAMPLE,
    SUFFIXES,
    TREES,
    TREES_POOLED,
    TreeJob,
    execute_trees,
    tree_jobs_beside,
)
from xvfl_lab.files import write_text

NAME = "trees"
DATASETS = ("bank", "avazu", "physionet2012")
RATES = (0.0, 0.5, 0.9)
METHODS = (OURS, "laser+mask")
"""The methods that trees are compared with."""
MODES = ("local", "collaborative")


def tree_store(out: Path, dataset: str) -> RunStore:
    """Open the results of trees in a folder of results."""
    return RunStore(out / "runs" / "trees" / f"{dataset}.jsonl", EXAMPLE)


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Compute the missing runs of trees, and compare them with the stored runs of the methods."""
    try:
        require_lightgbm()
    except ModuleNotFoundError as error:
        raise ConfigError("trees: need LightGBM: pip install 'xvfl-lab[trees]'") from error
    for dataset in DATASETS:
        jobs = tree_jobs_beside(method_jobs(dataset, quick))
        compute(jobs, tree_store(out.parent, dataset), load, progress)
    return write(out, quick)


def write(out: Path, quick: bool) -> dict[str, Any]:
    """Write numbers and tables from the stored runs, on the rates and seeds that trees have."""
    results = {dataset: stored(out.parent, dataset, quick) for dataset in DATASETS}

    def summarize() -> FigureData:
        trees = (each for some in results.values() for each in some if _is_tree(each))
        seconds = sum(each.seconds for each in trees)
        return FigureData({d: summary(d, some) for d, some in results.items()}, {}, seconds)

    config = {"runs": {dataset: _digest(some) for dataset, some in results.items()}}
    record = cached_figure(out, NAME, config, torch.device("cpu"), summarize)
    lines = [line for d, some in results.items() for line in tables(d, some)]
    write_text(out / f"{NAME}.md", "\n".join(lines) + "\n")
    return record


def stored(out: Path, dataset: str, quick: bool) -> list[Result]:
    """Return the stored runs of trees, and of the methods on the same rates and seeds."""
    jobs = method_jobs(dataset, quick)
    trees = tree_store(out, dataset).get(tree_jobs_beside(jobs))
    places = {(each.config.rate, each.config.seed) for each in trees}
    methods = RunStore(out / "runs" / f"{dataset}.jsonl").get(jobs)
    same = [each for each in methods if (each.config.rate, each.config.seed) in places]
    return [*same, *trees]


def _is_tree(result: Result) -> bool:
    return result.config.name in (TREES, TREES_POOLED)


def method_jobs(dataset: str, quick: bool) -> list[Job]:
    """List the runs of the methods that trees are compared with."""
    budget = budget_for(dataset, quick)
    budget = replace(budget, seeds=budget.seeds + budget.more_seeds)
    return make_jobs(dataset, budget, rates=RATES, methods=METHODS)


def compute(jobs: Sequence[TreeJob], store: RunStore, load: Load, progress: Progress) -> None:
    """Compute the runs that are not stored."""
    todo = store.missing(jobs)
    try:
        todo = store.missing(jobs, jobs[0].task(load).digest())
    except InputError:
        if todo:  # a complete figure is written without the data
            raise
    for count, job in enumerate(todo, 1):
        run = job.config
        where = f"R_miss {run.rate:g}, seed {run.seed}"
        progress(f"{job.dataset}: {run.name}, {where} ({count} of {len(todo)})")
        execute_trees(job, store, load)


def _digest(results: Sequence[Result]) -> str:
    """Hash the results, so that the figure is made again when one changes."""
    runs = [[c.name, c.rate, c.seed, each.metrics] for each in results for c in [each.config]]
    return key_of({"runs": runs})


def summary(dataset: str, results: Sequence[Result]) -> dict[str, Any]:
    """Summarize the runs of a data set: means, differences and seconds."""
    ways = {*MODES, *(mode + suffix for mode in MODES for suffix in SUFFIXES.values())}
    kept = [
        replace(each, metrics={way: of for way, of in each.metrics.items() if way in ways})
        for each in results
    ]
    return {
        "runs": len(results),
        "numbers": numbers(kept, RATE),
        "standings": [
            {**asdict(each), "gap": vars(each.gap)} for each in _standings(dataset, results)
        ],
        "cpu_seconds": {
            name: round(_mean(each.seconds for each in results if each.config.name == name), 2)
            for name in (TREES, TREES_POOLED)
        },
    }


def _standings(dataset: str, results: Sequence[Result]) -> list[Standing]:
    every = standing(results, metric_of(dataset), JUDGED)
    return [each for each in every if each.mode in MODES]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def tables(dataset: str, results: Sequence[Result]) -> list[str]:
    """Lay out the runs of a data set in Markdown."""
    metric = metric_of(dataset)
    seeds = len({each.config.seed for each in results})
    lines = [
        f"## {dataset}",
        "",
        f"AUROC in %, {seeds} seeds, test rows non-aligned.",
        "",
    ]
    names = {"local": "trees: of the party alone", "collaborative": "trees: mean of the logits"}
    for mode in MODES:
        lines += [f"**{mode}** ({names[mode]}):", "", *table(results, RATE, mode, metric)]
    lines += ["Trees that always train with, or without random masks:", ""]
    lines += _variants(results, metric)
    compared = _standings(dataset, results)
    if compared:
        lines += ["Paired differences in points, mean of R_miss 0.5 and 0.9, ± standard error:", ""]
        lines += standing_table(compared)
    seconds = summary(dataset, results)["cpu_seconds"]
    lines += [
        f"CPU seconds of a run, both trials, one core: {TREES} (all parties) {seconds[TREES]:.1f}, "
        f"{TREES_POOLED} {seconds[TREES_POOLED]:.1f}.",
        "",
    ]
    return lines


def _variants(results: Sequence[Result], metric: str) -> list[str]:
    ways = ((TREES, "local"), (TREES, "collaborative"), (TREES_POOLED, "collaborative"))
    positions = by_position([each for each in results if _is_tree(each)], RATE)
    rows = [
        [
            f"{name}, {mode}{suffix}",
            *(mean_text(some, (name, mode + suffix), metric) for some in positions.values()),
        ]
        for name, mode in ways
        for suffix in SUFFIXES.values()
    ]
    return markdown_table([RATE.label, *map(position_text, positions)], rows)
