"""A fit on Bank Marketing with the defaults of this version and those of version 0.1.0."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from xvfl import XVFLClassifier
from xvfl.config import NO_PROTECTION, LossConfig, NetConfig, TrainConfig
from xvfl.options import resolve_options
from xvfl.training.threads import limit_threads
from xvfl_lab.bench.outcome import Claim, Line, Outcome
from xvfl_lab.bench.sections import Plan
from xvfl_lab.bench.shapes import steps
from xvfl_lab.bench.timing import take_turns
from xvfl_lab.datasets import data_set, find, prepare
from xvfl_lab.datasets.source import data_folders
from xvfl_lab.datasets.table_sets import Table
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns

CPU = torch.device("cpu")
FIT, STEP = 0.25, 1.0
OLD: dict[str, Any] = {
    "members": 1,
    "embedding_dim": 64,
    "hidden_dim": 128,
    "net": {"number_embedding_dim": 0},
    "loss": {"joint_masks": False, "n_masks": 2},
    "train": {"completion_interval": 1},
    "epochs": 60,
    "learning_rate": 2e-3,
}
"""The defaults of version 0.1.0 for tables."""
OLD_NET = NetConfig(64, 128, members=1, number_embedding_dim=0)


def compare_fits(plan: Plan) -> Outcome:
    """Compare CPU seconds and validation scores."""
    tables, y = _bank(2_000 if plan.quick else None)
    short = {"epochs": 2} if plan.quick else {}
    _fit(tables, y, {"epochs": 1})  # Imports and caches.
    old, now = (_fit(tables, y, {**options, **short}) for options in (OLD, {}))
    lines = tuple(
        Line("fit", f"bank, {len(y)} rows", name, each[0], "CPU s", each[0] / old[0], "0.1.0")
        for name, each in (("0.1.0", old), ("now", now))
    )
    scores = tuple(
        Line("fit", "bank, validation score", name, each[1], "")
        for name, each in (("0.1.0", old), ("now", now))
    )
    claims = (
        Claim("bank: CPU seconds of a fit, now / 0.1.0", now[0] / old[0], FIT, False),
        Claim("bank: validation score, now minus 0.1.0", now[1] - old[1], 0.0, True),
    )
    return Outcome(lines + scores, claims)


def _fit(
    tables: Mapping[str, pd.DataFrame], y: pd.Series, options: Mapping[str, Any]
) -> tuple[float, float]:
    """Return the CPU seconds and the best validation score of a fit."""
    model = XVFLClassifier(device="cpu", **options)
    started = time.process_time()
    model.fit(tables, y)
    return time.process_time() - started, max(epoch["score"] for epoch in model.history_)


def _bank(rows: int | None) -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Read the training rows of Bank Marketing as two tables, and the labels."""
    files = find("bank")
    if files is None:
        raise data_set("bank").not_found(data_folders())
    table = files.format.read(files.paths)
    assert isinstance(table, Table)
    frame = table.frame.assign(label=table.y)[~table.test].reset_index(drop=True)
    frame = frame if rows is None else frame.sample(rows, random_state=0)
    y = frame.pop("label")
    parties = {name: frame[list(columns)] for name, columns in table.parties[2].items()}
    return parties, y


def compare_steps(plan: Plan) -> Outcome:
    """Time steps, four in a turn, of which one completes features."""
    task = prepare("bank")
    train = TrainConfig(epochs=1_000)
    old_train = replace(train, completion_interval=1, learning_rate=2e-3)
    now = resolve_options(
        NetConfig(),
        LossConfig(),
        train,
        NO_PROTECTION,
        federated=False,
        image=False,
        parties=len(task.layouts),
        rows=len(task.y),
    )
    contenders = {
        "now": (now.net, now.loss, now.train),
        "0.1.0": (OLD_NET, LossConfig(n_masks=2, joint_masks=False), old_train),
        "vanilla, nets of 0.1.0": (OLD_NET, LossConfig(method="vanilla"), old_train),
    }
    with limit_threads(False, CPU):
        trainers = {
            name: StackedRuns(task, [RunConfig(loss.method, 0.5, 0, 0.4, net, loss, train)])
            for name, (net, loss, train) in contenders.items()
        }
        times = take_turns(
            {name: steps(each.trainer()) for name, each in trainers.items()}, plan.rounds, 4
        )
    claim = Claim("bank: a step, now / 0.1.0", times.ratio("now", "0.1.0"), STEP, False)
    return Outcome(times.lines("fit", "bank, a step", "0.1.0"), (claim,))
