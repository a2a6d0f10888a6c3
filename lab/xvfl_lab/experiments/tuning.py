"""The paper's method and its baselines with tuned settings, on tables; λ of `xvfl` on CIFAR-10 too.

Validation rows choose the settings: λ1, then λ2 of `xvfl` from the paper's ranges; learning rate
and weight decay of a baseline. The chosen settings are tested at every missing rate; `xvfl` and
`xvfl+` with the settings of the other figures are tested for comparison. Torch and numpy alone, but
for the digits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.claims import BASELINES, LAMBDA_RANGES, PAPER, PAPER_RANGES
from xvfl_lab.experiments.dispatch import Group, Load, groups, task_of
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.figure_tables import COMPARED, metric_of
from xvfl_lab.experiments.figures import FULL, IMAGES, OURS, QUICK, Budget, Job, make_jobs
from xvfl_lab.experiments.runner import Result, run_many
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.experiments.tuning_tables import NAME, UNTUNED, best_setting, tables
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

TABLES = ("bank", "avazu", "physionet2012")
IMAGE = "cifar10"
SEARCH_RATE = 0.5
"""R_miss at which the settings are chosen."""
GRID: tuple[dict[str, float], ...] = tuple(
    {"learning_rate": rate, "weight_decay": decay}
    for rate, decay in product((1e-3, 2e-3, 4e-3, 8e-3), (0.01, 0.1))
)
"""The settings of a baseline."""

Setting = Mapping[str, float]
"""Values of options, by name."""
Compute = Callable[[Task, Sequence[RunConfig]], dict[str, Any]]
"""Computes numbers of runs that are trained at once."""


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Choose and test the settings on every data set; images on a GPU only."""
    names = ("digits",) if quick else (*TABLES, *((IMAGE,) if device.type == "cuda" else ()))
    search = Search(out, _load_digits if quick else load, device)

    def compute() -> FigureData:
        figures: dict[str, Any] = {}
        for dataset in names:
            trials, runs = {}, []
            for method in tuned_methods(dataset):
                progress(f"{dataset}, {method}")
                trials[method] = search.run_trials(dataset, method)
                setting = best_setting(trials[method])
                for rate in rates_of(dataset):
                    runs += search.test_setting(dataset, method, setting, rate)
            for method, rate in product(untuned_methods(dataset), rates_of(dataset)):
                runs += search.test_setting(dataset, method, {}, rate)
            figures[dataset] = {"trials": trials, "runs": runs}
        return FigureData(figures, {})

    record = cached_figure(out, NAME, figure_config(names), device, compute)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def _load_digits(name: str, parties: int) -> Task:
    return digits()


def figure_config(datasets: Sequence[str]) -> dict[str, Any]:
    """Return what the figure depends on: settings that are tried, and a run of every method."""
    return {
        dataset: {
            "settings": {"lambda": lambda_ranges(dataset), "grid": GRID},
            "seeds": (search_seeds(dataset), budget_of(dataset).seeds),
            "rates": (SEARCH_RATE, *rates_of(dataset)),
            "jobs": [
                asdict(jobs_of(dataset, method, budget_of(dataset), SEARCH_RATE)[0])
                for method in (*tuned_methods(dataset), *untuned_methods(dataset))
            ],
        }
        for dataset in datasets
    }


def budget_of(dataset: str) -> Budget:
    """Return the budget of the figure over missing rates."""
    if dataset == "digits":
        return replace(QUICK["bank"], train_rows=0, test_rows=0, rates=(SEARCH_RATE,))
    budget = FULL[dataset]
    return replace(budget, seeds=budget.seeds + budget.more_seeds)


def search_seeds(dataset: str) -> int:
    """Return the number of seeds with which a setting is scored."""
    return 1 if dataset in IMAGES else 2


def rates_of(dataset: str) -> tuple[float, ...]:
    """Return the missing rates of the tests."""
    return (0.5, 0.9) if dataset in IMAGES else budget_of(dataset).rates


def tuned_methods(dataset: str) -> tuple[str, ...]:
    """Return the methods that are tuned: on images `xvfl` alone."""
    return (PAPER,) if dataset in IMAGES else (PAPER, *BASELINES)


def untuned_methods(dataset: str) -> tuple[str, ...]:
    """Return the methods tested for comparison, with the settings of the other figures."""
    return (UNTUNED,) if dataset in IMAGES else (UNTUNED, OURS)


def lambda_ranges(dataset: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the paper's values of λ1 and λ2; for the digits a part of those of CIFAR-10."""
    if dataset == "digits":
        first, second = LAMBDA_RANGES["cifar10"]
        return first[-2:], second[-2:]
    return LAMBDA_RANGES[PAPER_RANGES.get(dataset, dataset)]


def jobs_of(dataset: str, method: str, budget: Budget, rate: float) -> list[Job]:
    """List the runs of a method with the settings of the other figures, one for each seed."""
    name = PAPER if method == UNTUNED else method
    return make_jobs(dataset, budget, rates=(rate,), methods=(name,), name=method)


def apply_setting(job: Job, setting: Setting) -> Job:
    """Set options of the loss and of the training."""
    config = job.config
    loss = {name: value for name, value in setting.items() if name.startswith("lambda")}
    train = {name: value for name, value in setting.items() if name not in loss}
    config = replace(
        config,
        loss=replace(config.loss, **loss),  # type: ignore[arg-type]
        train=replace(config.train, **train),  # type: ignore[arg-type]
    )
    return replace(job, config=config)


@dataclass(frozen=True)
class Search:
    """Scores and tests settings; each group of runs is stored in a folder."""

    out: Path
    load: Load
    device: torch.device

    def run_trials(self, dataset: str, method: str) -> list[dict[str, float]]:
        """Return the settings that were tried, each with its validation score, the key `score`."""

        def run(settings: Sequence[Setting]) -> list[dict[str, float]]:
            scores = self.validation_scores(dataset, method, settings)
            return [{**each, "score": score} for each, score in zip(settings, scores, strict=True)]

        if method != PAPER:
            return run(GRID)
        first, second = lambda_ranges(dataset)
        middle = second[len(second) // 2]
        trials = run([{"lambda1": each, "lambda2": middle} for each in first])
        chosen = best_setting(trials)["lambda1"]
        others = [each for each in second if each != middle]
        return trials + run([{"lambda1": chosen, "lambda2": each} for each in others])

    def validation_scores(
        self, dataset: str, method: str, settings: Sequence[Setting]
    ) -> list[float]:
        """Score settings on validation rows; return the mean over seeds."""
        budget = replace(budget_of(dataset), seeds=search_seeds(dataset))
        jobs = jobs_of(dataset, method, budget, SEARCH_RATE)
        todo = [apply_setting(job, each) for each in settings for job in jobs]
        scores = [score for group in self._groups(todo) for score in self.score_group(group)]
        return torch.tensor(scores).view(len(settings), -1).mean(1).tolist()

    def score_group(self, jobs: Group) -> list[float]:
        """Train runs at once; return their validation scores. From disk if computed before."""

        def compute(task: Task, configs: Sequence[RunConfig]) -> dict[str, Any]:
            with isolated(task, self.device):
                stack = StackedRuns(task, configs, self.device)
                stack.train()
                return {"scores": stack.score().tolist()}

        scores: list[float] = self._stored("score", jobs, compute)["scores"]
        return scores

    def test_setting(
        self, dataset: str, method: str, setting: Setting, rate: float
    ) -> list[dict[str, Any]]:
        """Test a setting with all seeds at a missing rate. From disk if computed before."""

        def compute(task: Task, configs: Sequence[RunConfig]) -> dict[str, Any]:
            results = run_many(task, configs, self.device)
            return {"runs": [_run_record(each, dataset) for each in results]}

        jobs = jobs_of(dataset, method, budget_of(dataset), rate)
        todo = self._groups([apply_setting(job, setting) for job in jobs])
        return [run for group in todo for run in self._stored("test", group, compute)["runs"]]

    def _groups(self, jobs: Sequence[Job]) -> list[Group]:
        return groups(jobs, self.load, self.device.type)

    def _stored(self, kind: str, jobs: Group, compute: Compute) -> dict[str, Any]:
        task, configs = task_of(self.load, jobs[0]), [job.config for job in jobs]
        runs = [asdict(each) for each in configs]
        about = {"figure": NAME, "kind": kind, "data": task.digest(), "runs": runs}

        def data() -> FigureData:
            return FigureData(compute(task, configs), {})

        return cached_part(self.out, about, self.device, data).figures


def _run_record(result: Result, dataset: str) -> dict[str, Any]:
    metric, config = metric_of(dataset), result.config
    scores = {mode: result.metrics[mode][metric] for mode in COMPARED if mode in result.metrics}
    return {"method": config.name, "rate": config.rate, "seed": config.seed, **scores}
