"""Pretraining: the parties' nets learn first, without labels, if rows have no label."""

import math
from dataclasses import replace

import pytest
import torch

from tests.options import resolved
from tests.problems import NUMBERS, make_problem
from xvfl.config import TrainConfig
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.primitives.mixed_order import labeled_share
from xvfl.primitives.rows import Rows
from xvfl.training.loop import Trainer, choose_batch_size, pretraining_epochs

pytestmark = pytest.mark.usefixtures("limited_threads")
LOSS = resolved().loss


def few_labels(pretraining: int, epochs: int = 4, patience: int = 0) -> tuple[Trainer, Rows]:
    problem = make_problem([NUMBERS] * 2, ["FF", "FP", "PF", "FF"] * 8, seed=0)
    y = problem.rows.y.clone()
    y[::2] = -1
    rows = replace(problem.rows, y=y)
    method = XVFL(problem.head, XVFLWeights(0.1, 0.1, 1.0, guidance=0.5))
    config = TrainConfig(
        epochs=epochs, batch_size=8, patience=patience, device="cpu", weight_decay=0.0
    )
    federation = problem.federation(reconstruction=0.3)
    config = resolved(train=config).train
    return Trainer(federation, method, rows, config, pretraining=pretraining), rows


def test_heads_are_not_trained_before_the_parties_are() -> None:
    trainer, _ = few_labels(pretraining=2)
    heads = [each.detach().clone() for each in trainer.method.heads.parameters()]
    net = trainer.federation.workers[0].net  # type: ignore[attr-defined]
    bottom = [each.detach().clone() for each in net.parameters()]
    scored = []
    for record in trainer.run(lambda: scored.append(0) or 1.0):  # type: ignore[func-returns-value]
        if record.kind != "epoch":
            continue
        now = list(trainer.method.heads.parameters())
        moved = any(not torch.equal(a, b) for a, b in zip(heads, now, strict=True))
        assert moved == (record.progress.epoch > 2)
        assert math.isnan(record.values["score"]) == (record.progress.epoch <= 2)
        assert any(not torch.equal(a, b) for a, b in zip(bottom, net.parameters(), strict=True))
    assert len(scored) == 2 and trainer.progress.best_epoch == 2


def test_patience_counts_from_the_end_of_pretraining() -> None:
    trainer, _ = few_labels(pretraining=3, epochs=12, patience=2)
    scores = iter([0.5, 0.4, 0.3, 0.2])
    for _ in trainer.run(lambda: next(scores)):
        pass
    assert trainer.progress.epoch == 6 and trainer.progress.best_epoch == 3


@pytest.mark.parametrize(("pretraining", "epochs", "best"), [(0, 9, 0), (0, 20, 3), (3, 23, 6)])
def test_no_epoch_of_the_first_tenth_is_chosen_over_a_later_one(
    pretraining: int, epochs: int, best: int
) -> None:
    trainer, _ = few_labels(pretraining, epochs)
    scores = iter([0.9, 0.8, 0.2, 0.5, *[0.4] * epochs])
    chosen = [
        record.progress.best_epoch
        for record in trainer.run(lambda: next(scores))
        if record.kind == "epoch"
    ]
    assert trainer.progress.best_epoch == chosen[-1] == best
    first = (epochs - pretraining) // 10
    assert chosen[pretraining : pretraining + first] == [pretraining + i for i in range(first)]


def test_a_diverging_training_keeps_an_early_epoch() -> None:
    trainer, _ = few_labels(0, epochs=20)
    scores = iter([0.9, *[math.nan] * 20])
    for _ in trainer.run(lambda: next(scores)):
        pass
    assert trainer.progress.best_epoch == 0


def test_the_more_rows_have_no_label_the_longer_is_pretraining() -> None:
    _, rows = few_labels(0)
    config = TrainConfig(epochs=60)
    assert rows.unlabeled_share == 0.5
    assert pretraining_epochs(rows, LOSS, config) == 15
    assert pretraining_epochs(replace(rows, y=rows.y.clamp(min=0)), LOSS, config) == 0
    assert pretraining_epochs(rows, replace(LOSS, reconstruction=0.0), config) == 0
    assert pretraining_epochs(rows, replace(LOSS, method="laser"), config) == 0
    assert pretraining_epochs(rows, LOSS, config, image=True) == 0


@pytest.mark.parametrize(
    ("labeled", "epochs", "expected"),
    [(170, 60, 64), (425, 60, 128), (850, 60, 256), (850, 30, 128), (170, 600, 256)],
)
def test_a_batch_of_unlabeled_images_leaves_enough_steps(
    labeled: int, epochs: int, expected: int
) -> None:
    rows = make_problem([NUMBERS] * 2, ["FF"], seed=0).rows
    y = torch.tensor([0] * labeled + [-1] * 10_000)
    rows = replace(rows.take(torch.zeros(len(y), dtype=torch.long)), y=y)
    assert choose_batch_size(rows, TrainConfig(epochs=epochs), image=True) == expected


def test_a_batch_of_unlabeled_images_has_a_largest_size() -> None:
    rows = make_problem([NUMBERS] * 2, ["FF"], seed=0).rows
    y = torch.tensor([0] * 40_000 + [-1] * 400_000)
    rows = replace(rows.take(torch.zeros(len(y), dtype=torch.long)), y=y)
    assert choose_batch_size(rows, TrainConfig(epochs=60), image=True) == 1024


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "table", "image"),
    [
        (850, 0, 64, 64),
        (850, 42_000, 64, 256),
        (3_000, 6_000, 64, 192),
        (6_800, 6_800, 128, 128),
        (30_000, 10_000, 512, 341),
    ],
)
def test_a_batch_of_images_has_as_many_labeled_rows_as_without_unlabeled_ones(
    labeled: int, unlabeled: int, table: int, image: int
) -> None:
    rows = make_problem([NUMBERS] * 2, ["FF"], seed=0).rows
    y = torch.tensor([0] * labeled + [-1] * unlabeled)
    rows = replace(rows.take(torch.zeros(len(y), dtype=torch.long)), y=y)
    config = TrainConfig(epochs=60)
    assert choose_batch_size(rows, config) == table
    assert choose_batch_size(rows, config, image=True) == image
    assert int(config.batch_size_for(labeled) / labeled_share(labeled, unlabeled)) == image
    assert choose_batch_size(rows, TrainConfig(batch_size=32), image=True) == 32
