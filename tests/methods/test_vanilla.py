"""Vanilla VFL: its loss against a slow one, zero fill at prediction, unreachable parties."""

import pytest
import torch

from tests import twin
from tests.methods.branch_helpers import assert_matches_twin, embed_rows, make_head, weighted_mean
from tests.problems import MIXED, NUMBERS, D, make_problem
from xvfl.methods.vanilla import Vanilla
from xvfl.nets import ConcatHead

ROWS = ["FFFF", "GFFF", "FPFF", "F-FF", "PPPP", "FFFF", "EFFF"]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_loss_counts_aligned_rows_alone(k: int) -> None:
    problem = make_problem([MIXED, *[NUMBERS] * (k - 1)], [row[:k] for row in ROWS], seed=k)
    joint = make_head(k, seed=1)
    of_row = [
        [twin.cross_entropy(joint(torch.cat(E)), row.y)] if all(row.full) else []
        for row, E in zip(problem.twin_rows(), embed_rows(problem), strict=True)
    ]
    assert sum(map(len, of_row)) >= 3
    assert_matches_twin(
        problem, Vanilla(ConcatHead(joint, k)), {"joint": weighted_mean(problem, of_row)}
    )


def test_gaps_are_zero_filled_and_absent_parties_give_zeros() -> None:
    problem = make_problem([NUMBERS] * 3, ["FPF", "F-P", "-EP"], seed=1)
    joint = make_head(3, seed=1)
    method = Vanilla(ConcatHead(joint, 3))
    together = method.logits(problem.federation(), problem.rows, "collaborative", 0)
    alone = method.logits(problem.federation(), problem.rows, "local", 2)
    nothing = torch.zeros(D, dtype=torch.float64)
    for b, (row, E) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        saw = [any(o) for o in row.o]
        blocks = [each if there else nothing for each, there in zip(E, saw, strict=True)]
        torch.testing.assert_close(together[b], joint(torch.cat(blocks)))
        torch.testing.assert_close(alone[b], joint(torch.cat([nothing, nothing, E[2]])))


def test_D7_an_unreachable_party_leaves_zeros() -> None:
    problem = make_problem([NUMBERS] * 3, ["FPF", "F-P"], seed=1)
    joint = make_head(3, seed=1)
    method = Vanilla(ConcatHead(joint, 3)).select_parties([0, 2])
    rows, federation = (
        problem.rows.select_parties([0, 2]),
        problem.federation().select_parties([0, 2]),
    )
    found = method.logits(federation, rows, "collaborative", 0)
    alone = method.select_parties([1]).logits(
        federation.select_parties([1]), rows.select_parties([1]), "local", 0
    )
    nothing = torch.zeros(D, dtype=torch.float64)
    for b, E in enumerate(embed_rows(problem)):
        torch.testing.assert_close(found[b], joint(torch.cat([E[0], nothing, E[2]])))
        torch.testing.assert_close(alone[b], joint(torch.cat([nothing, nothing, E[2]])))
