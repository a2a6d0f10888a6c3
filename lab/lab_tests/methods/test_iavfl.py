"""IAVFL: teacher and students against slow ones, and who learns from whom."""

import pytest
import torch
from torch import Tensor

from tests import twin
from tests.methods.branch_helpers import (
    assert_matches_twin,
    embed_rows,
    make_head,
    make_heads,
    make_two_branch_problem,
    weighted_mean,
)
from tests.problems import MIXED, NUMBERS, D
from xvfl.nets import ConcatHead
from xvfl_lab.methods.iavfl import IAVFL

ROWS = ["FFFF", "GFFF", "FPFF", "F-FF", "PPPP", "FFFF", "EFFF"]


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T² Σ_c p_c log(p_c / q_c) of one row."""
    p = torch.exp(teacher / temperature) / torch.exp(teacher / temperature).sum()
    q = torch.exp(student / temperature) / torch.exp(student / temperature).sum()
    return temperature**2 * (p * torch.log(p / q)).sum()


@pytest.mark.parametrize(("share", "temperature"), [(0.5, 2.0), (0.3, 1.0), (1.0, 3.0), (0, 2)])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_loss_equals_the_slow_one(k: int, share: float, temperature: float) -> None:
    problem = make_two_branch_problem(
        [MIXED, *[NUMBERS] * (k - 1)], [row[:k] for row in ROWS], seed=k
    )
    joint, own = make_head(k, seed=1), make_heads(k)
    taught, alone = [], []
    for row, E in zip(problem.twin_rows(), embed_rows(problem), strict=True):
        teacher = joint(torch.cat([each[:D] for each in E]))
        taught.append([twin.cross_entropy(teacher, row.y)] if all(row.full) else [])
        terms = []
        for i in range(k):
            student = own[i](E[i][D:])
            wrong = twin.cross_entropy(student, row.y)
            if all(row.full):
                told = divergence(teacher.detach(), student, temperature)
                terms.append((1 - share) * wrong + share * told)
            elif row.full[i]:
                terms.append(wrong)
        alone.append(terms)
    expected = {
        "teacher": weighted_mean(problem, taught),
        "students": weighted_mean(problem, alone),
    }
    assert_matches_twin(problem, IAVFL(ConcatHead(joint, k), own, share, temperature), expected)


def test_students_send_their_teacher_nothing() -> None:
    problem = make_two_branch_problem([NUMBERS] * 2, ["FF", "FP"], seed=1)
    method = IAVFL(ConcatHead(make_head(2, 1), 2), make_heads(2), alpha=1.0, temperature=2.0)
    method.loss(problem.federation(), problem.rows)["students"].backward()
    moved = {name for name, gradient in problem.gradients().items() if gradient.any()}
    assert moved and all(".bottoms.1." in name for name in moved)
    assert all(p.grad is None for p in method.heads["teacher"].parameters())


def test_the_teacher_decides_together_and_a_student_alone() -> None:
    problem = make_two_branch_problem([NUMBERS] * 3, ["FPF", "F-P"], seed=1)
    joint, own = make_head(3, seed=1), make_heads(3)
    method = IAVFL(ConcatHead(joint, 3), own, alpha=0.5, temperature=2.0)
    together = method.logits(problem.federation(), problem.rows, "collaborative", 0)
    alone = method.logits(problem.federation(), problem.rows, "local", 2)
    rows, federation = (
        problem.rows.select_parties([0, 2]),
        problem.federation().select_parties([0, 2]),
    )
    fewer = method.select_parties([0, 2]).logits(federation, rows, "collaborative", 0)
    last = method.select_parties([0, 2]).logits(federation, rows, "local", 1)
    nothing = torch.zeros(D, dtype=torch.float64)
    for b, (row, E) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        blocks = [each[:D] if any(o) else nothing for each, o in zip(E, row.o, strict=True)]
        torch.testing.assert_close(together[b], joint(torch.cat(blocks)))
        torch.testing.assert_close(fewer[b], joint(torch.cat([blocks[0], nothing, blocks[2]])))
        for found in (alone, last):
            torch.testing.assert_close(found[b], own[2](E[2][D:]))
