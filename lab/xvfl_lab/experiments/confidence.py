"""Effect of cross completion on one image (the paper's fig. GradCAM, P9), and on all test images.

One party misses its whole half of every image. Three predictions, E of the present party:
`single` h(E), `single-xcom` h((E + Ẽ)/2) with Ẽ completed from E, `both` h of the mean of both
parties' embeddings. Torch and numpy alone.
Shapes: N images, C classes; pictures are both halves side by worker.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from xvfl.nets import ResidualBottom
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.metrics import all_metrics
from xvfl_lab.datasets.image_sets import half_resolution
from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.dispatch import Load, subset
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.figures import FULL, SMALL, Budget, Job, make_jobs
from xvfl_lab.experiments.gradcam import grad_cam
from xvfl_lab.experiments.stacked_runs import StackedRuns, isolated
from xvfl_lab.task import Task

NAME = "confidence"
METHODS = ("xvfl", "xvfl+")
QUICK_METHODS = ("xvfl",)
"""`xvfl+` learns nothing within the budget of `--quick`."""
RATE = 1.0
QUICK = Budget(800, 250, 10, 1, (RATE,), 25, 3e-3, SMALL)
"""Budget of `--quick`, at 16 × 16 pixels; fewer epochs learn nothing."""
BATCH = 500
PAPER = {"single": 0.728, "single-xcom": 0.977, "both": 0.962}
"""The paper's confidences for its one image."""
CHOICE = "the test image whose three confidences are nearest (Euclidean) to the paper's"
CLASSES = {
    "cifar10": [
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ],
    "tinyimagenet5": ["Egyptian cat", "reel", "volleyball", "rocking chair", "lemon"],
}
NEAR = 0.05
"""Largest difference of each confidence for an image to count as like the paper's."""


Cases = dict[str, Callable[[Tensor, Tensor], Tensor]]
"""Predictions by name, from the images of the present half and of the absent one."""


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Train with one half absent in non-aligned rows, and measure the three cases."""
    dataset, budget = ("tinyimagenet5", QUICK) if quick else ("cifar10", FULL["cifar10"])
    todo = make_jobs(dataset, budget, rates=(RATE,), methods=QUICK_METHODS if quick else METHODS)
    jobs = [asdict(job) for job in todo]
    config = {"jobs": jobs, "half_resolution": quick, "like": [CHOICE, NEAR]}

    def compute() -> FigureData:
        task = subset(load(dataset, 2), budget.train_rows, budget.test_rows)
        return look_at_all(out, half_resolution(task) if quick else task, todo, device, progress)

    return cached_figure(out, NAME, config, device, compute)


def look_at_all(
    out: Path, task: Task, todo: Sequence[Job], device: torch.device, progress: Progress
) -> FigureData:
    """Train every job and measure its test images; the example is of each method's first seed."""
    figures: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for method in dict.fromkeys(job.config.name for job in todo):
        looks = []
        for job in [job for job in todo if job.config.name == method]:
            progress(f"{method} on {job.dataset}, seed {job.config.seed}")
            config = {"figure": NAME, "job": asdict(job), "image": task.layouts["left"].image}
            looks.append(cached_part(out, config, device, partial(look, task, job, device)))
        arrays |= {f"{method}/{key}": value for key, value in looks[0].arrays.items()}
        figures[method] = {
            "example": looks[0].figures["example"],
            "absent": {
                party: average([each.figures["absent"][party] for each in looks])
                for party in task.layouts
            },
        }
    return FigureData({"paper": PAPER, "choice": CHOICE, "methods": figures}, arrays)


def look(task: Task, job: Job, device: torch.device) -> FigureData:
    """Train one job, measure all test images by the absent party, and choose one."""
    with isolated(task, device):
        stack = StackedRuns(task, [job.config], device)
        stack.train()
        by_absent = [three_cases(stack, absent) for absent in range(2)]
        at = nearest(*by_absent[0])
        shown = picture(stack, at)
    measures = {party: measure(*each) for party, each in zip(task.layouts, by_absent, strict=True)}
    example = describe(*by_absent[0], at, job.dataset)
    return FigureData({"absent": measures, "example": example}, dict(shown))


def cases_of(stack: StackedRuns, absent: int) -> Cases:
    """Return the three predictions of a trained run, one of two parties absent."""
    stack.federation.train(False)
    head = stack.method.heads.eval()
    here, gone = (stack.federation.workers[party].net for party in (1 - absent, absent))

    def single(x: Tensor, _missing: Tensor) -> Tensor:
        return cast(Tensor, head(here.embed(x, _all(x))))

    def completed(x: Tensor, missing: Tensor) -> Tensor:
        E = here.embed(x, _all(x))
        E_, _ = gone.complete(torch.zeros_like(missing), ~_all(missing), E)
        return cast(Tensor, head((E + E_) / 2))

    def both(x: Tensor, missing: Tensor) -> Tensor:
        return cast(Tensor, head((here.embed(x, _all(x)) + gone.embed(missing, _all(x))) / 2))

    return {"single": single, "single-xcom": completed, "both": both}


def halves(stack: StackedRuns, absent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the whole test images: the present half, the absent half, and the class."""
    rows = stack.rows("whole")
    left, right = (
        worker.table.take(rows.handles[:, i]).values
        for i, worker in enumerate(stack.federation.workers)
    )
    return (right, left, rows.y) if absent == 0 else (left, right, rows.y)


@torch.no_grad()
def three_cases(stack: StackedRuns, absent: int) -> tuple[dict[str, NDArray[np.float64]], Tensor]:
    """Return the probabilities of all test images in each case, (N, C), and the classes."""
    here, gone, y = halves(stack, absent)
    batches = list(zip(torch.split(here, BATCH), torch.split(gone, BATCH), strict=True))
    by_case = {}
    for name, case in cases_of(stack, absent).items():
        out = torch.cat([case(*batch) for batch in batches])
        by_case[name] = torch.softmax(out.double(), -1).cpu().numpy()
    return by_case, y.cpu()


def measure(p: dict[str, NDArray[np.float64]], y: Tensor) -> dict[str, Any]:
    """Measure all test images: each case, changes between cases, share like the paper's."""
    true = _true(p, y)
    cases = {
        name: {"confidence": float(true[name].mean()), **all_metrics(each, y.numpy())}
        for name, each in p.items()
    }
    changes = {f"{b} - {a}": Difference.of(true[b] - true[a]) for a, b in pairwise(true)}
    like = np.all([abs(true[name] - PAPER[name]) <= NEAR for name in PAPER], axis=0)
    lifted, over = (true["single-xcom"] > true[name] for name in ("single", "both"))
    return {
        "images": len(y),
        "cases": cases,
        "changes": {
            name: {"mean": gap.mean, "error": gap.error, "verdict": gap.verdict}
            for name, gap in changes.items()
        },
        "share lifted by XCom": float(lifted.mean()),
        "share lifted above both": float((lifted & over).mean()),
        "share like the paper's": float(like.mean()),
    }


def average(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the cases over seeds; include each seed."""

    def over_seeds(case: str, metric: str) -> dict[str, float]:
        of_seed = np.array([seed["cases"][case][metric] for seed in seeds])
        deviation = of_seed.std(ddof=1) if len(seeds) > 1 else 0.0
        return {"mean": float(of_seed.mean()), "deviation": float(deviation)}

    cases = {
        case: {metric: over_seeds(case, metric) for metric in metrics}
        for case, metrics in seeds[0]["cases"].items()
    }
    return {"cases": cases, "seeds": list(seeds)}


def nearest(p: dict[str, NDArray[np.float64]], y: Tensor) -> int:
    """Find the image whose confidences are nearest to the paper's."""
    true = _true(p, y)
    return int(np.argmin(sum((true[name] - PAPER[name]) ** 2 for name in PAPER)))


def describe(p: dict[str, NDArray[np.float64]], y: Tensor, at: int, dataset: str) -> dict[str, Any]:
    """Describe the example."""
    names, y_at = CLASSES[dataset], int(y[at])
    return {
        "image": at,
        "class": names[y_at],
        "confidence": {name: float(each[at, y_at]) for name, each in p.items()},
        "decided": {name: names[int(each[at].argmax())] for name, each in p.items()},
    }


def picture(stack: StackedRuns, at: int) -> dict[str, NDArray[np.float32]]:
    """Return a test image, its left half completed, and the Grad-CAM of each case; NaN = none.

    The left half is absent; the maximum of a map is 1.
    """
    gone, here = (worker.net for worker in stack.federation.workers)
    x, missing, y = (part[at : at + 1] for part in halves(stack, 0))
    blocks, cases = [_blocks(gone), _blocks(here)], cases_of(stack, 0)
    shown = {"image": torch.cat([missing, x], -1)[0]}
    with torch.no_grad():
        inputs = gone.completer_inputs(missing, ~_all(missing), here.embed(x, _all(x)))
        completed = gone.completer(*inputs)
        shown["completed"] = torch.cat([completed, x], -1)[0]
    for name, case in cases.items():
        maps = grad_cam(blocks, lambda case=case: case(x, missing)[:, int(y)])  # type: ignore[misc]
        joined = torch.cat([_sized(maps[0], missing), _sized(maps[1], x)], -1)[0, 0]
        shown[f"{name}/cam"] = joined / joined.nan_to_num().max().clamp(min=1e-12)
    return {name: each.float().cpu().numpy() for name, each in shown.items()}


def _true(p: dict[str, NDArray[np.float64]], y: Tensor) -> dict[str, NDArray[np.float64]]:
    return {name: each[np.arange(len(y)), y.numpy()] for name, each in p.items()}


def _sized(cam: Tensor | None, half: Tensor) -> Tensor:
    if cam is None:
        return torch.full_like(half[:, :1], torch.nan)
    return F.interpolate(cam.unsqueeze(1), size=half.shape[-2:], mode="bilinear")


def _blocks(net: PartyNet) -> nn.Module:
    if not isinstance(net.bottom, ResidualBottom):
        raise TypeError(f"expected a residual bottom, got {type(net.bottom).__name__}")
    return net.bottom.blocks


def _all(x: Tensor) -> Tensor:
    """Return a mask of observed pixels: all. (B, h·w)"""
    return torch.ones(len(x), x.shape[-2] * x.shape[-1], dtype=torch.bool, device=x.device)
