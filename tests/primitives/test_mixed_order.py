"""Every batch of labeled and unlabeled rows has the same share of both."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xvfl.primitives.mixed_order import epoch_size, labeled_share, mix, row_weights
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import Rows


def rows_with_labels(labeled: int, unlabeled: int, runs: int = 1) -> Rows:
    """Return rows of which every run has its unlabeled rows in between."""
    y = torch.cat([torch.zeros(labeled), torch.full((unlabeled,), -1.0)]).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    y = y[order].repeat(runs)
    some = torch.ones(len(y), 2, dtype=torch.bool)
    handles = torch.arange(len(y)).unsqueeze(1).expand(-1, 2)
    return Rows(handles, some, some, y, torch.ones(len(y)), runs=runs)


@given(labeled=st.integers(1, 60), unlabeled=st.integers(1, 200), batch=st.integers(1, 40))
def test_an_epoch_is_one_pass_over_the_labeled_rows(
    labeled: int, unlabeled: int, batch: int
) -> None:
    rows = rows_with_labels(labeled, unlabeled)
    size, share = rows.epoch_size, labeled_share(labeled, unlabeled)
    order = rows.order([3], 1)
    batches = [order(start, min(start + batch, size)) for start in range(0, size, batch)]
    together = torch.cat(batches)
    assert len(together.unique()) == len(together) == size
    assert int((rows.y[together] >= 0).sum()) == labeled
    for each in batches:
        expected = share * len(each)
        assert abs(int((rows.y[each] >= 0).sum()) - expected) < 1


def test_another_epoch_uses_other_unlabeled_rows() -> None:
    rows = rows_with_labels(10, 1000)
    used = [set(rows.order([0], epoch)(0, rows.epoch_size).tolist()) for epoch in range(50)]
    assert rows.epoch_size == 40 and used[0] != used[1]
    assert len(set.union(*used)) > 700


@pytest.mark.parametrize("runs", [1, 3])
def test_labeled_rows_alone_are_a_plain_permutation(runs: int) -> None:
    rows, seeds = rows_with_labels(50, 0, runs), list(range(runs))
    orders = [
        torch.randperm(50, generator=named_generator("cpu", seed, "order", 4)) + 50 * run
        for run, seed in enumerate(seeds)
    ]
    assert rows.epoch_size == 50
    assert torch.equal(rows.order(seeds, 4)(10, 30), torch.stack(orders)[:, 10:30].flatten())
    assert row_weights(50, 0)[0] == 1


def test_stacked_runs_have_their_own_rows() -> None:
    rows = rows_with_labels(20, 100, runs=2)
    both = rows.order([0, 1], 0)(0, 40).view(2, -1)
    assert rows.epoch_size == 80
    assert bool((both[0] < 120).all()) and bool((both[1] >= 120).all())
    alone = rows_with_labels(20, 100).order([1], 0)(0, 40)
    assert torch.equal(both[1] - 120, alone)


def test_the_loss_of_labeled_rows_is_their_mean() -> None:
    for labeled, unlabeled in ((500, 30_000), (900, 100), (100, 0)):
        weight, _ = row_weights(labeled, unlabeled)
        share = labeled_share(labeled, unlabeled)
        assert weight * share == pytest.approx(1)
        assert epoch_size(labeled, unlabeled) == int(labeled / share)
    numbers = mix(lambda a, b: torch.arange(a, b), lambda a, b: -torch.arange(a, b), Fraction(1, 3))
    assert numbers(0, 7).tolist() == [0, -1, 0, -2, -3, 1, -4]
