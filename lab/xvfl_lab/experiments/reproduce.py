"""`xvfl-lab reproduce`: compute a figure's runs, then write its numbers, tables and picture.

A folder holds the runs of every data set (`runs/NAME.jsonl`) and, for each figure and data set,
the numbers (`.json`), the tables (`.md`) and the picture (`.png`).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from matplotlib.figure import Figure

from xvfl.errors import ConfigError, InputError, RunError, unknown
from xvfl_lab.experiments import (
    boundary,
    confidence,
    dp,
    label_protection,
    party_worth,
    plot_boundary,
    plot_confidence,
    plot_dp,
    plot_label_protection,
    plot_party_worth,
    plot_rounds,
    plot_trees,
    plot_tuning,
    plot_unlabeled,
    plot_upload,
    plots,
    rounds,
    trees,
    tuning,
    unlabeled,
    upload,
)
from xvfl_lab.experiments import figure_tables as tables
from xvfl_lab.experiments.dispatch import task_of
from xvfl_lab.experiments.execute import OnProgress, choose_dispatch, execute
from xvfl_lab.experiments.figure_plot import Plot, draw_once, save_picture
from xvfl_lab.experiments.figures import FIGURES, Job, budget_for
from xvfl_lab.experiments.run_store import RunStore, run_key
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.tree_runs import TREES, tree_jobs_beside
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

TREES_NOTE = (
    "`trees` is LightGBM: one model a party in `local`, the mean of their logits in "
    "`collaborative`, which needs labels at every party. `trees pooled` has all columns in one "
    "place, without privacy. Computed by `xvfl-lab reproduce trees`."
)


@dataclass(frozen=True)
class Request:
    """A figure of a data set, and how to compute it."""

    figure: str
    dataset: str
    quick: bool
    out: Path
    device: str = "cpu"
    workers: int = 0
    ray: str | None = None
    """Address of a Ray cluster that computes the runs."""

    @property
    def command(self) -> str:
        """The command that reproduces it."""
        quick = " --quick" if self.quick else ""
        return f"xvfl-lab reproduce {self.figure} --dataset {self.dataset}{quick}"

    @property
    def name(self) -> str:
        """Path of its files, without ending."""
        return f"{self.figure}/{self.dataset}{'-quick' if self.quick else ''}"

    def jobs(self) -> list[Job]:
        """List its runs."""
        if self.figure not in FIGURES:
            raise ConfigError(unknown("figure", self.figure, [*FIGURES, *SPECIAL, "report"]))
        return FIGURES[self.figure](self.dataset, budget_for(self.dataset, self.quick))

    def store(self) -> RunStore:
        """Open the results of its data set."""
        return RunStore(self.out / "runs" / f"{self.dataset}.jsonl")


def require_writable(out: Path) -> None:
    """Reject a folder that cannot be written, before any work is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise RunError(
            f"{out}: cannot be written ({error.strerror}); choose another folder with --out"
        ) from error


@cache
def prepared(name: str, parties: int) -> Task:
    """Load a data set."""
    from xvfl_lab.datasets import prepare

    return prepare(name, parties)


def reproduce(request: Request, on_progress: OnProgress) -> list[Path]:
    """Compute the missing runs of a figure and write its files."""
    jobs, store = request.jobs(), request.store()
    todo = store.missing(jobs)
    with suppress(InputError):  # a complete figure is written without the data
        todo = store.missing(jobs, task_of(prepared, jobs[0]).digest())
    cached = len(jobs) - len(todo)
    on_progress(cached, len(jobs), "cached")
    if todo:
        dispatch = choose_dispatch(request.device, request.workers, request.ray)

        def count_all(count: int, _total: int, name: str) -> None:
            on_progress(cached + count, len(jobs), name)

        execute(todo, store, prepared, request.device, dispatch, count_all)
    return write(request)


def choose_device(device: str) -> str:
    """Resolve `auto` to a GPU if there is one; reject a device that is not there."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device: expected auto, cpu or cuda, got {device!r}")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError("--device: this machine has no CUDA device; use auto or cpu")
    return "cuda" if available and device != "cpu" else "cpu"


def write(request: Request) -> list[Path]:
    """Write the files of a figure from its stored runs."""
    results, about = load(request, request.store())
    picture = request.out / f"{request.name}.png"
    save_picture(draw(request, results, tables.metric_of(request.dataset)), picture)
    shown = [f"![{request.figure} on {request.dataset}]({picture.name})", ""]
    path = request.out / f"{request.name}.md"
    write_text(path, "\n".join([*shown, *full_tables(request, results, about)]) + "\n")
    return [picture, write_numbers(request, results, about), path]


def load(request: Request, store: RunStore) -> tuple[list[Result], dict[str, Any]]:
    """Return the stored results of a figure and of trees beside it, and their description."""
    jobs = request.jobs()
    results = store.get(jobs)
    if not results:
        raise ConfigError(f"{request.name}: has no runs yet; {request.command} computes them")
    about = describe(request, results, jobs, store)
    if request.figure != "ablations":
        beside = tree_jobs_beside(jobs)
        results += trees.tree_store(request.out, request.dataset).get(beside)
    return results, about


def write_numbers(request: Request, results: Sequence[Result], about: dict[str, Any]) -> Path:
    """Write the numbers of a figure as JSON."""
    axis = tables.axis_of(request.figure)
    metric = tables.metric_of(request.dataset)
    standings = tables.standings_of(results, axis, metric)
    numbers = {
        **about,
        "judged": {"metric": metric, "rates": tables.judged(results)},
        "standing": [{"at": at, **asdict(each)} for at, of in standings.items() for each in of],
        "numbers": tables.numbers(results, axis),
    }
    path = request.out / f"{request.name}.json"
    write_text(path, json.dumps(numbers, indent=1) + "\n")
    return path


def describe(
    request: Request, results: Sequence[Result], jobs: Sequence[Job], store: RunStore
) -> dict[str, Any]:
    """Describe the runs: conditions, rows, epochs, seeds, time, hardware."""
    records = [store.results[key] for key in map(run_key, jobs) if key in store.results]
    hardware: defaultdict[str, float] = defaultdict(float)
    for each in records:
        hardware[each["hardware"]] += each["seconds"]
    return {
        "command": request.command,
        "conditions": conditions(jobs),
        "budget": {
            "train_rows": jobs[0].train_rows,
            "test_rows": jobs[0].test_rows,
            "net": asdict(jobs[0].config.net),
            "train": asdict(jobs[0].config.train),
        },
        "runs": len(results),
        "of": len(jobs),
        "seeds": len({job.config.seed for job in jobs}),
        "seconds": round(sum(each.seconds for each in results), 1),
        "hardware": hardware,
        "majority": results[0].majority,
    }


def conditions(jobs: Sequence[Job]) -> list[str]:
    """List the conditions that all runs of a figure share, in words."""
    configs = [job.config for job in jobs]
    by_text: dict[str, set[Any]] = {
        "{} parties": {job.parties for job in jobs},
        "R_miss {:g}": {each.rate for each in configs},
        "overlap {:g}": {each.overlap for each in configs},
        "imbalance {:g}": {each.imbalance for each in configs},
        "λ1 {:g}": {each.loss.lambda1 for each in configs},
        "λ2 {:g}": {each.loss.lambda2 for each in configs},
    }
    return [
        text.format(*each) for text, each in by_text.items() if len(each) == 1 and each != {None}
    ]


def draw(request: Request, results: Sequence[Result], metric: str) -> Figure:
    """Draw a figure: lines over numbers, points elsewhere."""
    axis = tables.axis_of(request.figure)
    title = f"{request.figure.replace('-', ' ')}: {request.dataset}"
    several = len(tables.by_position(results, axis)) > 1 and axis.name in ("rate", "overlap")
    lines = several and request.figure != "ablations"
    return (plots.lines if lines else plots.points)(results, axis, metric, title)


def full_tables(request: Request, results: Sequence[Result], about: dict[str, Any]) -> list[str]:
    """Lay out all tables of a figure on a data set."""
    axis, metric = tables.axis_of(request.figure), tables.metric_of(request.dataset)
    budget = about["budget"]
    train, test = (
        f"at most {budget[each]:,}" if budget[each] else "all"
        for each in ("train_rows", "test_rows")
    )
    rows = f"{train} training and {test} test rows"
    took = ", ".join(f"{spent:.0f} s on {name}" for name, spent in about["hardware"].items())
    epochs = budget["train"]["epochs"]
    lines = [
        f"`{request.command}`: {about['runs']} runs of {about['of']}; {rows}, {epochs} "
        f"epochs, {about['seeds']} seeds; {took}. {', '.join(about['conditions'])}. Test rows "
        f"non-aligned; majority class {100 * about['majority']:.1f} %.",
        "",
    ]
    if TREES in tables.methods_of(results):
        lines += [TREES_NOTE, ""]
    by_party = [way for way in results[0].metrics if way.startswith("local/")]
    for mode in (*tables.MODES, *(by_party if request.figure == "imbalance" else ())):
        if not any(mode in each.metrics for each in results):
            continue
        for each in dict.fromkeys((metric, "accuracy")):
            lines += [f"**{mode}**, {each} in %:", ""]
            lines += tables.table(results, axis, mode, each)
    for at, standings in tables.standings_of(results, axis, metric).items():
        if standings:
            lines += [f"Paired differences in {metric} points at {at}, ± standard error:", ""]
            lines += tables.standing_table(standings)
    if request.figure == "missing-rates":
        rates = tables.judged(results)
        where = " and ".join(map(tables.position_text, rates))
        lines += [
            f"Other rows and metrics, mean of R_miss {where}, {metric} in % unless the column says "
            "otherwise; mixed rows are aligned as often as in training, whole rows miss nothing:",
            "",
            *tables.more_metrics(results, metric, rates),
        ]
    return lines


@dataclass(frozen=True)
class SpecialFigure:
    """A figure that is not a grid of runs."""

    make: Callable[..., dict[str, Any]]
    plot: Plot
    caption: str


SPECIAL: dict[str, SpecialFigure] = {
    "confidence": SpecialFigure(
        confidence.make,
        plot_confidence.plot,
        "One image with an absent half: alone, with XCom, both halves; Grad-CAM; and the mean of "
        "all test images (P9).",
    ),
    "boundary": SpecialFigure(
        boundary.make,
        plot_boundary.plot,
        "Decision regions with and without DSAlign, on scanned digits.",
    ),
    "rounds": SpecialFigure(
        rounds.make, plot_rounds.plot, "PAGE against SGD in rounds of communication (P10)."
    ),
    "label-protection": SpecialFigure(
        label_protection.make,
        plot_label_protection.plot,
        "What parties can infer about labels from the gradients they receive, and the score of "
        "`xvfl+`, by label protection; mean of R_miss 0.5 and 0.9, five seeds.",
    ),
    "unlabeled": SpecialFigure(
        unlabeled.make,
        plot_unlabeled.plot,
        "`xvfl+` with 500 labels: what the rows without a label add; R_miss 0.5, five seeds. On a "
        "GPU also CIFAR-10 with 1,000 labels.",
    ),
    "upload": SpecialFigure(
        upload.make,
        plot_upload.plot,
        "One upload, the default of a federation, against training in one process (four members, "
        "with gradients), interactive training with gradients (images), and the federation of "
        "version 0.3.0 by its own code; five seeds, three for images.",
    ),
    "tuning": SpecialFigure(
        tuning.make,
        plot_tuning.plot,
        "The paper's `xvfl` and its baselines with settings chosen on each table by validation "
        "log-loss (R_miss 0.5, two seeds), tested with ten seeds.",
    ),
    "party-worth": SpecialFigure(
        party_worth.make,
        plot_party_worth.plot,
        "Shapley values of four parties: by predictions of one model of `xvfl+` with subsets of "
        "the parties, as `xvfl explain` computes them, and by models trained on each subset.",
    ),
    "dp": SpecialFigure(
        dp.make,
        plot_dp.plot,
        "Accuracy under differential privacy of each row, and the lower bound on ε that an attack "
        "on a party's releases finds.",
    ),
    "trees": SpecialFigure(
        trees.make,
        plot_trees.plot,
        "Gradient-boosted trees (LightGBM) on the tables: a party alone, the mean of the parties' "
        "logits, and all columns pooled, against `xvfl+` and `laser+mask`.",
    ),
}


def reproduce_special(
    name: str, quick: bool, out: Path, device: str, progress: Callable[[str], None]
) -> list[Path]:
    """Compute and draw a figure that is not a grid of runs."""
    folder = out / f"{name}{'-quick' if quick else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    SPECIAL[name].make(folder, quick, torch.device(device), prepared, progress)
    picture = draw_once(folder, name, SPECIAL[name].plot, folder / f"{name}.png")
    return [picture, folder / f"{name}.json"]
