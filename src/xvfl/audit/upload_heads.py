"""Accuracy of heads that are trained on uploads, as a coordinator trains them.

Needs torch and numpy only. Shapes: n rows of a party, c masked copies, d embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xvfl.config import LossConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.federation.upload.heads import build_heads
from xvfl.options import resolve_options
from xvfl.primitives.metrics import auroc, r2
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Regression, Task
from xvfl.training.loop import Trainer
from xvfl.training.predict import logits, mode_party_pairs, predictable_rows, score


@dataclass(frozen=True)
class LabeledSplit:
    """The coordinator's rows: to train heads on, to choose the epoch, and to score."""

    training: Rows
    validation: Rows
    test: Rows
    """Rows on which accuracy is measured; they may be the validation rows."""
    task: Task
    image: bool = False
    """Whether a party has images."""


@dataclass(frozen=True)
class HeadOptions:
    """How heads are trained."""

    heads: int = 1
    epochs: int = 20
    batch_size: int = 0
    random_state: int = 0


def head_accuracy(
    views: Mapping[str, Tensor], split: LabeledSplit, options: HeadOptions, device: torch.device
) -> dict[str, float]:
    """Train heads on the parties' uploads; return AUROC, or R² of numbers, in each mode.

    Parameters
    ----------
    views : mapping of str to Tensor of shape (n, 1 + c, d)
        The upload of each party by handle; widths may differ.
    split : LabeledSplit
        Rows and labels.
    options : HeadOptions
        How heads are trained.
    device : torch.device
        Device of the training.

    Returns
    -------
    dict
        `local`, the mean over the parties, and `collaborative` of several parties.
    """
    rows, seeds = split.training.to(device), [options.random_state]
    width = max(each.shape[-1] for each in views.values())
    resolved = resolve_options(
        NetConfig(embedding_dim=width, heads=options.heads),
        LossConfig(),
        TrainConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            random_state=options.random_state,
        ),
        PrivacyConfig("no_gradients"),
        federated=True,
        image=split.image,
        parties=len(views),
        rows=len(rows),
    )
    uploads = {name: each.to(device) for name, each in views.items()}
    with torch.random.fork_rng(devices=[]):
        method, federation = build_heads(uploads, resolved, seeds, split.task, split.image)
    method.heads.to(device)
    trainer = Trainer(federation, method, rows, resolved.train)
    validation, test = split.validation.to(device), split.test.to(device)
    for _ in trainer.run(lambda: score(method, federation, validation, split.task)):
        pass
    trainer.load_best()
    found: dict[str, list[float]] = {"local": [], "collaborative": []}
    for mode, party in mode_party_pairs(method, federation):
        if mode not in found or (mode == "collaborative" and len(views) == 1):
            continue
        counted = test.take(predictable_rows(test, mode, party).nonzero().flatten())
        out = logits(method, federation, counted, mode, party)
        found[mode].append(_score(split.task, out, counted.y.cpu()))
    return {mode: float(np.mean(each)) for mode, each in found.items() if each}


def _score(task: Task, out: Tensor, y: Tensor) -> float:
    if isinstance(task, Regression):
        return r2(task.values(out)[:, 0], task.restore(y))
    return auroc(task.values(out), y.numpy())
