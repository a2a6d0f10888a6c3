"""The paper's method and its baselines after equal tuning, on tables; λ of `xvfl` on CIFAR-10 too.

Validation rows choose the settings: λ1, then λ2 of `xvfl` from the paper's ranges; learning rate
and weight decay of a baseline. The chosen settings are tested at every missing rate, and beside
them `xvfl` and `xvfl+` with the settings of the other figures. Torch and numpy alone, but for the
digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch

from xvfl.config import LAMBDA_RANGES
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.claims import BASELINES, PAPER, PAPER_RANGES, Cases, cases
from xvfl_lab.experiments.compare import difference
from xvfl_lab.experiments.dispatch import Load, task_of
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.figure_tables import COMPARED, markdown_table, metric_of
from xvfl_lab.experiments.figures import FULL, IMAGES, OURS, QUICK, Budget, Job, make_jobs
from xvfl_lab.experiments.runner import Result, run_many
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

NAME = "tuning"
TABLES = ("bank", "avazu", "physionet2012")
IMAGE = "cifar10"
DEFAULT = "xvfl, λ 0.1"
"""Name of `xvfl` with the λ of the other figures."""
SEARCH_RATE = 0.5
"""R_miss at which the settings are chosen."""
GRID: tuple[dict[str, float], ...] = tuple(
    {"learning_rate": rate, "weight_decay": decay}
    for rate, decay in product((1e-3, 2e-3, 4e-3, 8e-3), (0.01, 0.1))
)
"""The settings of a baseline."""

Setting = Mapping[str, float]
"""Values of options, by name."""


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Choose and test the settings on every data set; images on a GPU only."""
    names = ("digits",) if quick else (*TABLES, *((IMAGE,) if device.type == "cuda" else ()))
    config = {name: asdict(budget_of(name)) for name in names}
    if quick:
        load = _load_digits

    def compute() -> FigureData:
        figures: dict[str, Any] = {}
        for dataset in names:
            trials, runs = {}, []
            for method in methods_of(dataset):
                progress(f"{dataset}, {method}")
                trials[method] = search(out, load, dataset, method, device)
                for rate in rates_of(dataset):
                    setting = best(trials[method])
                    runs += tested(out, load, dataset, method, setting, rate, device)
            for method, rate in product(untuned_methods(dataset), rates_of(dataset)):
                runs += tested(out, load, dataset, method, {}, rate, device)
            figures[dataset] = {"trials": trials, "runs": runs}
        return FigureData(figures, {})

    record = cached_figure(out, NAME, config, device, compute)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def _load_digits(name: str, parties: int) -> Task:
    return digits()


def budget_of(dataset: str) -> Budget:
    """Return the budget of the figure over missing rates."""
    if dataset == "digits":
        return replace(QUICK["bank"], train_rows=0, test_rows=0, rates=(SEARCH_RATE,))
    budget = FULL[dataset]
    return replace(budget, seeds=budget.seeds + budget.more_seeds)


def methods_of(dataset: str) -> tuple[str, ...]:
    """Return the methods that are tuned: on images `xvfl` alone."""
    return (PAPER,) if dataset in IMAGES else (PAPER, *BASELINES)


def untuned_methods(dataset: str) -> tuple[str, ...]:
    """Return the methods that are tested beside with the settings of the other figures."""
    return (DEFAULT,) if dataset in IMAGES else (DEFAULT, OURS)


def rates_of(dataset: str) -> tuple[float, ...]:
    """Return the missing rates of the tests."""
    return (0.5, 0.9) if dataset in IMAGES else budget_of(dataset).rates


def search(
    out: Path, load: Load, dataset: str, method: str, device: torch.device
) -> list[dict[str, float]]:
    """Return the settings that were tried, each with its validation score, the key `score`."""

    def tried(settings: Sequence[Setting]) -> list[dict[str, float]]:
        scores = validation_scores(out, load, dataset, method, settings, device)
        return [{**each, "score": score} for each, score in zip(settings, scores, strict=True)]

    if method != PAPER:
        return tried(GRID)
    first, second = lambda_ranges(dataset)
    middle = second[len(second) // 2]
    trials = tried([{"lambda1": each, "lambda2": middle} for each in first])
    chosen = best(trials)["lambda1"]
    others = [each for each in second if each != middle]
    return trials + tried([{"lambda1": chosen, "lambda2": each} for each in others])


def lambda_ranges(dataset: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the paper's values of λ1 and λ2; for the digits a part of those of CIFAR-10."""
    if dataset == "digits":
        first, second = LAMBDA_RANGES["cifar10"]
        return first[-2:], second[-2:]
    return LAMBDA_RANGES[PAPER_RANGES.get(dataset, dataset)]


def best(trials: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the setting with the highest score."""
    chosen = max(trials, key=lambda each: each["score"])
    return {name: value for name, value in chosen.items() if name != "score"}


def validation_scores(
    out: Path,
    load: Load,
    dataset: str,
    method: str,
    settings: Sequence[Setting],
    device: torch.device,
) -> list[float]:
    """Score settings on the validation rows of two seeds, of images one; runs are stacked."""
    budget = replace(budget_of(dataset), seeds=1 if dataset in IMAGES else 2)
    jobs = jobs_of(dataset, method, budget, SEARCH_RATE)
    configs = [configured(job.config, each) for each in settings for job in jobs]
    task, scores = task_of(load, jobs[0]), []
    for stack in stacks(dataset, configs):
        scores += scored(out, task, stack, device)
    return torch.tensor(scores).view(len(settings), -1).mean(1).tolist()


def jobs_of(dataset: str, method: str, budget: Budget, rate: float) -> list[Job]:
    """List the runs of a method with the settings of the other figures, one for each seed."""
    name = PAPER if method == DEFAULT else method
    return make_jobs(dataset, budget, rates=(rate,), methods=(name,), name=method)


def configured(config: RunConfig, setting: Setting) -> RunConfig:
    """Set options of the loss and of the training."""
    loss = {name: value for name, value in setting.items() if name.startswith("lambda")}
    train = {name: value for name, value in setting.items() if name not in loss}
    return replace(
        config,
        loss=replace(config.loss, **loss),  # type: ignore[arg-type]
        train=replace(config.train, **train),  # type: ignore[arg-type]
    )


def stacks(dataset: str, configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Group runs of one shape; the nets of images fill a GPU, so each run is a group."""
    if dataset in IMAGES:
        return [[each] for each in configs]
    return [list(some) for _, some in groupby(configs, lambda each: each.shape)]


def scored(
    out: Path, task: Task, configs: Sequence[RunConfig], device: torch.device
) -> list[float]:
    """Train runs at once; return their validation scores. From disk if computed before."""

    def compute() -> FigureData:
        with isolated(task, device):
            stack = StackedRuns(task, configs, device)
            stack.train()
            return FigureData({"scores": stack.score().tolist()}, {})

    about = {"figure": NAME, "task": task.name, "score": [asdict(each) for each in configs]}
    scores: list[float] = cached_part(out, about, device, compute).figures["scores"]
    return scores


def tested(
    out: Path,
    load: Load,
    dataset: str,
    method: str,
    setting: Setting,
    rate: float,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Test a setting with all seeds at a missing rate. From disk if computed before."""
    jobs = jobs_of(dataset, method, budget_of(dataset), rate)
    task = task_of(load, jobs[0])
    runs = []
    for stack in stacks(dataset, [configured(job.config, setting) for job in jobs]):

        def compute(configs: Sequence[RunConfig] = stack) -> FigureData:
            results = run_many(task, configs, device)
            return FigureData({"runs": [_stored(each, dataset) for each in results]}, {})

        about = {"figure": NAME, "task": task.name, "test": [asdict(each) for each in stack]}
        runs += cached_part(out, about, device, compute).figures["runs"]
    return runs


def _stored(result: Result, dataset: str) -> dict[str, Any]:
    metric, config = metric_of(dataset), result.config
    scores = {mode: result.metrics[mode][metric] for mode in COMPARED if mode in result.metrics}
    return {"method": config.name, "rate": config.rate, "seed": config.seed, **scores}


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


def tables(figures: dict[str, Any]) -> list[str]:
    """Lay out the chosen settings, the cases of P1, and what the search of λ changes."""
    settings = [
        [dataset, method, len(trials), _text(best(trials))]
        for dataset, of_set in figures.items()
        for method, trials in of_set["trials"].items()
    ]
    results = {name: results_of(name, of_set["runs"]) for name, of_set in figures.items()}
    compared = with_baselines(figures)
    return [
        "Settings chosen by the validation rows:",
        "",
        *markdown_table(["data set", "method", "trials", "chosen"], settings),
        "The cases of [P1](claims.md#p1) with these settings; `xvfl+` has its default settings. A "
        "case is a missing rate. *Ahead*: of every tuned baseline; `assisted` is compared with "
        "`local` of the baselines:",
        "",
        *case_table(compared, PAPER),
        *case_table(compared, OURS),
        "What the search of λ changes for `xvfl` on the test rows, against λ1 = λ2 = 0.1; points "
        "of AUROC (tables) or accuracy (images), ± standard error:",
        "",
        *markdown_table(["data set", "R_miss", *COMPARED], changes(results)),
    ]


def with_baselines(figures: dict[str, Any]) -> dict[str, list[Result]]:
    """Return the results on the data sets on which baselines are tuned: all but images."""
    return {
        dataset: results_of(dataset, of_set["runs"])
        for dataset, of_set in figures.items()
        if dataset not in IMAGES
    }


def _text(setting: Setting) -> str:
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


def changes(results: Mapping[str, Sequence[Result]]) -> list[list[str]]:
    """Return what the search of λ changes, by data set and missing rate."""
    rows = []
    for dataset, some in results.items():
        for rate in sorted({each.config.rate for each in some}):
            gaps = [
                difference(some, (PAPER, mode), (DEFAULT, mode), rate, metric_of(dataset))
                for mode in COMPARED
            ]
            cells = [f"{100 * g.mean:+.2f} ± {100 * g.error:.2f}, {g.verdict}" for g in gaps]
            rows.append([dataset, f"{rate:g}", *cells])
    return rows
