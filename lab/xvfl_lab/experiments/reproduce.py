"""`xvfl reproduce`: make a figure's runs, then its numbers, tables and picture.

A folder holds the runs of every data set (`runs/NAME.jsonl`) and, for each figure and data set,
the numbers (`.json`), the tables (`.md`) and the picture (`.png`).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from matplotlib import pyplot as plt

from xvfl.errors import ConfigError, InputError, RunError, unknown
from xvfl.model.run_dir import RunDir
from xvfl_lab.experiments import boundary, confidence, plots, rounds, summary
from xvfl_lab.experiments import plot_boundary as draw_boundary
from xvfl_lab.experiments import plot_confidence as draw_confidence
from xvfl_lab.experiments import plot_rounds as draw_rounds
from xvfl_lab.experiments.dispatch import task_of
from xvfl_lab.experiments.execute import Done, choose_dispatch, execute
from xvfl_lab.experiments.jobs import FIGURES, Budget, Job, budget_of
from xvfl_lab.experiments.run_store import Store, key
from xvfl_lab.experiments.runner import Result
from xvfl_lab.task import Task


@dataclass(frozen=True)
class Request:
    """A figure of a data set, and how to make it."""

    figure: str
    dataset: str
    quick: bool
    out: Path
    device: str = "auto"
    workers: int = 0
    ray: str | None = None
    """Address of a Ray cluster that makes the runs."""

    @property
    def command(self) -> str:
        """The command that makes it again."""
        quick = " --quick" if self.quick else ""
        return f"xvfl reproduce {self.figure} --dataset {self.dataset}{quick}"

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.figure}/{self.dataset}{'-quick' if self.quick else ''}"

    @property
    def budget(self) -> Budget:
        """What its runs may cost."""
        return budget_of(self.dataset, self.quick)

    def jobs(self) -> list[Job]:
        """List its runs."""
        if self.figure not in FIGURES:
            raise ConfigError(unknown("figure", self.figure, [*FIGURES, *SPECIAL, "report"]))
        return FIGURES[self.figure](self.dataset, self.budget)

    def store(self) -> Store:
        """Open the results of its data set."""
        return Store(self.out / "runs" / f"{self.dataset}.jsonl")


def usable(out: Path) -> None:
    """Refuse a folder that nothing can be written into, before any work is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise RunError(
            f"{out}: cannot be written into ({error.strerror}); name another folder with --out"
        ) from error


@cache
def prepared(name: str, parties: int) -> Task:
    """Read a data set, prepared or from where it is."""
    from xvfl_lab.datasets import prepare

    return prepare(name, parties)


def reproduce(request: Request, done: Done) -> list[Path]:
    """Make what is missing of a figure, and write its files."""
    jobs, store = request.jobs(), request.store()
    device = request.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    todo = store.missing(jobs)
    with suppress(InputError):  # what is whole can be drawn without the data
        todo = store.missing(jobs, task_of(prepared, jobs[0]).digest())
    done(len(jobs) - len(todo), len(jobs), "found")
    if todo:
        found = len(jobs) - len(todo)

        def report(count: int, total: int, what: str) -> None:
            done(found + count, len(jobs), what)

        dispatch = choose_dispatch(device, request.workers, request.ray)
        execute(todo, store, prepared, device, dispatch, report)
    return write(request)


def write(request: Request) -> list[Path]:
    """Write the files of a figure from the runs that are there."""
    jobs, store = request.jobs(), request.store()
    results = store.get(jobs)
    if not results:
        raise ConfigError(f"{request.name}: no runs are there yet; {request.command} makes them")
    axis = summary.AXES[request.figure]
    facts = about(request, results, jobs, store)
    metric = summary.metric_of(request.dataset)
    stands = summary.compared(results, axis, metric)
    folder = RunDir(request.out)
    target = request.out / request.name
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = draw(request, results, metric)
    picture.savefig(target.with_suffix(".png"), dpi=130)
    plt.close(picture)
    numbers = {
        **facts,
        "judged": {"metric": metric, "rates": summary.judged(results)},
        "standing": [{"at": at, **asdict(each)} for at, of in stands.items() for each in of],
        "numbers": summary.numbers(results, axis),
    }
    folder.write_text(f"{request.name}.json", json.dumps(numbers, indent=1) + "\n")
    folder.write_text(f"{request.name}.md", "\n".join(page(request, results, facts)) + "\n")
    return [target.with_suffix(ending) for ending in (".png", ".json", ".md")]


def about(
    request: Request, results: Sequence[Result], jobs: Sequence[Job], store: Store
) -> dict[str, Any]:
    """Say what the runs were: rows, epochs, seeds, time, hardware."""
    records = [store.results[key(job)] for job in jobs if key(job) in store.results]
    hardware: dict[str, float] = {}
    for each in records:
        hardware[each["hardware"]] = hardware.get(each["hardware"], 0.0) + each["seconds"]
    return {
        "command": request.command,
        "conditions": conditions(jobs),
        "budget": {
            "train_rows": jobs[0].train_rows,
            "test_rows": jobs[0].test_rows,
            "net": asdict(jobs[0].setting.net),
            "train": asdict(jobs[0].setting.train),
        },
        "runs": len(results),
        "of": len(jobs),
        "seeds": len({job.setting.seed for job in jobs}),
        "seconds": round(sum(each.seconds for each in results), 1),
        "hardware": hardware,
        "majority": results[0].majority,
    }


def conditions(jobs: Sequence[Job]) -> list[str]:
    """Say under what conditions all runs of a figure were made, in words."""
    settings = [job.setting for job in jobs]
    said: dict[str, set[Any]] = {
        "{} parties": {job.parties for job in jobs},
        "R_miss {:g}": {each.rate for each in settings},
        "overlap {:g}": {each.overlap for each in settings},
        "imbalance {:g}": {each.imbalance for each in settings},
        "λ1 {:g}": {each.loss.lambda1 for each in settings},
        "λ2 {:g}": {each.loss.lambda2 for each in settings},
    }
    return [
        words.format(*each) for words, each in said.items() if len(each) == 1 and each != {None}
    ]


def draw(request: Request, results: Sequence[Result], metric: str) -> Any:
    """Draw a figure: lines over numbers, points elsewhere."""
    axis = summary.AXES[request.figure]
    title = f"{request.figure.replace('-', ' ')}: {request.dataset}"
    several = len(summary.by_place(results, axis)) > 1 and axis.name in ("rate", "overlap")
    picture: Callable[..., Any] = plots.lines if several else plots.points
    if request.figure == "ablations":
        picture = plots.points
    return picture(results, axis, metric, title)


def page(request: Request, results: Sequence[Result], facts: dict[str, Any]) -> list[str]:
    """Lay out a figure's tables."""
    axis, metric = summary.AXES[request.figure], summary.metric_of(request.dataset)
    budget, name = facts["budget"], Path(request.name).name
    train, test = (
        f"at most {budget[each]:,}" if budget[each] else "all"
        for each in ("train_rows", "test_rows")
    )
    rows = f"{train} training and {test} test rows"
    took = ", ".join(f"{spent:.0f} s on {name}" for name, spent in facts["hardware"].items())
    epochs = budget["train"]["epochs"]
    lines = [
        f"`{request.command}`: {facts['runs']} runs of {facts['of']}; {rows}, {epochs} "
        f"epochs, {facts['seeds']} seeds; {took}. {', '.join(facts['conditions'])}. Test rows "
        f"non-aligned; majority class {100 * facts['majority']:.1f} %.",
        "",
        f"![{request.figure} on {request.dataset}]({name}.png)",
        "",
    ]
    by_party = [way for way in results[0].metrics if way.startswith("local/")]
    for mode in (*summary.MODES, *(by_party if request.figure == "imbalance" else ())):
        if not any(mode in each.metrics for each in results):
            continue
        for each in dict.fromkeys((metric, "accuracy")):
            lines += [f"**{mode}**, {each} in %:", ""]
            lines += [*summary.table(results, axis, mode, each), ""]
    for at, found in summary.compared(results, axis, metric).items():
        if found:
            lines += [f"Paired differences in {metric} points at {at}, ± standard error:", ""]
            lines += [*summary.standing_table(found), ""]
    if request.figure == "missing-rates":
        rates = summary.judged(results)
        where = " and ".join(map(summary.place_text, rates))
        lines += [
            f"Besides, the mean of R_miss {where}, {metric} in % unless a column says otherwise; "
            "mixed rows are aligned as often as in training, whole rows miss nothing:",
            "",
            *summary.besides(results, metric, rates),
            "",
        ]
    return lines


SPECIAL: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[Path], Path], str]] = {
    "confidence": (
        confidence.make,
        draw_confidence.draw,
        "One image with a half absent: alone, with XCom, both; Grad-CAM; and all images (P9).",
    ),
    "boundary": (
        boundary.make,
        draw_boundary.draw,
        "Decision regions with and without DSAlign, on scanned digits.",
    ),
    "rounds": (
        rounds.make,
        draw_rounds.draw,
        "PAGE against SGD in rounds of communication (P10).",
    ),
}
"""The figures that are not grids of runs: how they are made and drawn, and what they show."""


def reproduce_special(
    name: str, quick: bool, out: Path, device: str, tell: Callable[[str], None]
) -> list[Path]:
    """Make and draw a figure of its own kind."""
    chosen = device
    if device == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
    make, draw_it, _ = SPECIAL[name]
    folder = out / f"{name}{'-quick' if quick else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    make(folder, quick, torch.device(chosen), prepared, tell)
    picture = draw_it(folder)
    return [picture, folder / f"{name}.json"]
