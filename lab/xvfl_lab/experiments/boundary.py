"""Effect of DSAlign (the paper's fig. decision_boundry): own against joint decisions.

The paper's loss on scanned digits, two parties, with λ1 = λ2 = 0 and above, same seeds. Numbers are
of test rows that are full at both parties. The picture shows nets with embeddings of width 2, whose
decision regions are exact in the plane; wider embeddings would show a slice. The digits come with
scikit-learn; otherwise torch and numpy alone.
Shapes: R seeds, N rows of a seed, k parties, d embedding width, C classes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from xvfl import maths
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure
from xvfl_lab.experiments.figures import ONE_MEMBER
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.task import Task

NAME = "boundary"
WEIGHTS = (0.0, 0.1, 10.0)
"""λ1 = λ2: off, the default, a hundred times the default."""
RATE = 0.5
TRAIN = TrainConfig(
    40,
    128,
    "adamw",
    learning_rate=5e-3,
    patience=0,
    completion_interval=1,
    image_shift=0.0,
    device="cpu",
)
DRAWN = replace(ONE_MEMBER, embedding_dim=2)
GRID = 240
"""Grid points along a side of the picture."""
MARGIN = 0.08


@dataclass(frozen=True)
class Embedded:
    """Embeddings of the whole test rows, run after run."""

    E: Tensor
    """(R·N, k, d)"""
    E_: Tensor
    """Of rows completed from the other party. (R·N, k, d)"""
    y: Tensor
    """(R·N,)"""
    runs: int = 1


@dataclass(frozen=True)
class Plane:
    """The plane of the two largest principal axes of some points."""

    center: Tensor
    axes: Tensor
    """(2, d), orthonormal rows."""
    explained: float
    """Fraction of the points' variance in the plane."""

    @classmethod
    def of(cls, points: Tensor) -> "Plane":
        """Fit the plane to points (N, d)."""
        center = points.mean(0)
        _, sizes, axes = torch.linalg.svd(points - center, full_matrices=False)
        power = sizes.square()
        return cls(center, axes[:2], float(power[:2].sum() / power.sum()))

    def project(self, points: Tensor) -> Tensor:
        """Return the coordinates of points (…, d) in the plane. (…, 2)"""
        return (points - self.center) @ self.axes.T

    def lift(self, flat: Tensor) -> Tensor:
        """Return the points of the plane at coordinates (…, 2). (…, d)"""
        return flat @ self.axes + self.center


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Train with every weight over the same seeds, and once more for the picture."""
    seeds = range(2 if quick else 5)
    train = replace(TRAIN, epochs=10) if quick else TRAIN
    wide = {w: [run_config(w, seed, ONE_MEMBER, train) for seed in seeds] for w in WEIGHTS}
    flat = {w: [run_config(w, 0, DRAWN, train)] for w in WEIGHTS}
    config = {
        "data": "digits",
        "grid": [GRID, MARGIN],
        "runs": [asdict(s) for group in (wide, flat) for some in group.values() for s in some],
    }
    return cached_figure(out, NAME, config, device, lambda: compute(wide, flat, device, progress))


def run_config(weight: float, seed: int, net: NetConfig, train: TrainConfig) -> RunConfig:
    """Configure a run of the paper's loss with λ1 = λ2 = weight."""
    loss = LossConfig(method="xvfl", lambda1=weight, lambda2=weight, joint_masks=False)
    train = replace(train, random_state=seed)
    run = RunConfig("xvfl", RATE, seed, net=net, loss=loss, train=train, weights="last")
    return replace(run, loss=run.resolve(image=False, parties=2).loss)


def compute(
    wide: dict[float, list[RunConfig]],
    flat: dict[float, list[RunConfig]],
    device: torch.device,
    progress: Progress,
) -> FigureData:
    """Measure every weight over all seeds, and project the nets of width 2 to the plane."""
    task = digits()
    by_seed, flat_figures = {}, {}
    arrays: dict[str, NDArray[Any]] = {}
    for weight in wide:
        progress(f"λ = {weight:g}, {len(wide[weight])} seeds")
        with isolated(task, device):
            by_seed[weight] = measure(*trained(task, wide[weight], device))
            head, embedded = trained(task, flat[weight], device)
            flat_figures[f"{weight:g}"] = measure(head, embedded)[0]
            arrays |= {f"{weight:g}/{key}": v for key, v in picture(head, embedded).items()}
    figures = {f"{w:g}": summary(each, by_seed[WEIGHTS[0]]) for w, each in by_seed.items()}
    return FigureData({"weights": figures, "drawn": flat_figures}, arrays)


def trained(
    task: Task, configs: Sequence[RunConfig], device: torch.device
) -> tuple[nn.Module, Embedded]:
    """Train runs and embed their whole test rows."""
    stack = StackedRuns(task, configs, device)
    stack.train()
    stack.federation.train(False)
    head = stack.method.heads.eval()
    rows = stack.rows("whole")
    with torch.no_grad():
        E = stack.federation.embed(rows, ["plain"])[:, :, 0]
        cue, _ = maths.cues(E, rows.full)
        E_ = stack.federation.complete(cue, rows.full.all(1))
    return head, Embedded(E, E_, rows.y, rows.runs)


@torch.no_grad()
def measure(head: nn.Module, embedded: Embedded) -> list[dict[str, float]]:
    """Compare own, completed and joint decisions, seed by seed.

    Distances of logits scale with the logits, so they are also reported relative to the joint
    logits, and as total variation of the probabilities.
    """
    inputs = (embedded.E, embedded.E_, embedded.E.mean(1, keepdim=True))
    own, completed, joint = (head(each).chunk(embedded.runs) for each in inputs)
    y = embedded.y.unsqueeze(1).chunk(embedded.runs)
    return [_measures(*of_run) for of_run in zip(own, completed, joint, y, strict=True)]


def _measures(own: Tensor, completed: Tensor, joint: Tensor, y: Tensor) -> dict[str, float]:
    own_p, joint_p = own.softmax(-1), joint.softmax(-1)
    logits = {"own": own, "completed": completed, "joint": joint}
    decided = {name: out.argmax(-1) for name, out in logits.items()}
    size = _rms(joint - joint.mean(-1, keepdim=True))
    measures = {
        "distance": _rms(own - joint),
        "relative distance": _rms(own - joint) / size,
        "total variation": (own_p - joint_p).abs().sum(-1).mean() / 2,
        "agreement": (decided["own"] == decided["joint"]).double().mean(),
        "distance of completed": _rms(completed - own),
        "agreement of completed": (decided["completed"] == decided["own"]).double().mean(),
    }
    measures |= {f"accuracy {name}": (out == y).double().mean() for name, out in decided.items()}
    return {name: float(value) for name, value in measures.items()}


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def summary(
    seeds: Sequence[dict[str, float]], without: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Average over seeds, with the paired difference from the same seeds without DSAlign."""
    summaries = {}
    for name in seeds[0]:
        values = np.array([seed[name] for seed in seeds])
        gaps = values - [seed[name] for seed in without]
        difference = Difference.of(gaps)
        summaries[name] = {
            "mean": float(values.mean()),
            "deviation": float(values.std(ddof=1)),
            "difference": {"mean": difference.mean, "error": difference.error},
        }
    return summaries


@torch.no_grad()
def picture(head: nn.Module, embedded: Embedded) -> dict[str, NDArray[Any]]:
    """Project embeddings to the plane of the joint ones, with the head's decision regions."""
    E = embedded.E
    points = torch.cat([E, E.mean(1, keepdim=True)], 1)
    plane = Plane.of(points[:, -1])
    flat = plane.project(points)
    low, high = flat.flatten(0, 1).aminmax(dim=0)
    room = MARGIN * (high - low)
    across, down = (
        torch.linspace(float(a), float(b), GRID, device=E.device)
        for a, b in zip(low - room, high + room, strict=True)
    )
    grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), -1)
    shown = {
        "points": flat,
        "decided": head(points).argmax(-1),
        "y": embedded.y,
        "regions": head(plane.lift(grid)).argmax(-1),
        "extent": torch.stack([across[0], across[-1], down[0], down[-1]]),
        "explained": torch.tensor(plane.explained),
    }
    return {name: each.cpu().numpy() for name, each in shown.items()}
