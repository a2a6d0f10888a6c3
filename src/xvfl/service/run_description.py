"""What both kinds of a coordinator's run report: `run.json`, progress, evaluation, outcome."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from xvfl.dataset.splits import RowCounts
from xvfl.federation.remote_party import RemoteParty
from xvfl.methods import Method
from xvfl.model.evaluation import Evaluation, evaluate, federation_predictions
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Task
from xvfl.service.config import CoordinatorConfig
from xvfl.training.calibration import Temperatures, calibrate
from xvfl.training.loop import Progress
from xvfl.training.protocols import ReachableFederation


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    step: int
    """The last training step."""
    evaluation: Evaluation | None = None
    """None if the run was stopped before it finished."""
    uninformed: tuple[str, ...] = ()
    """Parties that have not received their release yet."""
    suspicious: Mapping[str, str] = field(default_factory=dict)
    """Parties whose upload is suspicious, was rejected or did not arrive, and why."""


def connected_parties(parties: Iterable[RemoteParty]) -> dict[str, int]:
    """Return for each party 1 if it is connected, otherwise 0."""
    return {each.name: int(each.transport.hello() is not None) for each in parties}


def describe_run(
    config: CoordinatorConfig,
    run: str,
    epochs: int,
    task: Task,
    counts: RowCounts,
    party_rows: Mapping[str, int],
) -> dict[str, Any]:
    """Describe a run for `run.json` and the status page."""
    return {
        "side": "coordinator",
        "run": run,
        "method": config.loss.method,
        "task": config.labels.task,
        "label": config.labels.column,
        "score_name": task.score_name,
        "epochs": epochs,
        "rows": asdict(counts),
        "parties": {name: {"rows": count} for name, count in party_rows.items()},
    }


def progress_status(about: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the progress of a run for its status."""
    best = progress.best_score
    return {
        "run": about["run"],
        "epoch": progress.epoch,
        "epochs": about["epochs"],
        "step": progress.step,
        "best_score": best if math.isfinite(best) else None,
    }


def evaluate_heads(
    method: Method, federation: ReachableFederation, validation: Rows, test: Rows, task: Task
) -> tuple[Temperatures, Evaluation]:
    """Calibrate on the validation rows; evaluate on the test rows, if there are any."""
    temperatures = calibrate(method, federation, validation, task)
    split, rows = ("test", test) if len(test) else ("validation", validation)
    return temperatures, evaluate(
        federation_predictions(method, federation, rows, task), split, task
    )
