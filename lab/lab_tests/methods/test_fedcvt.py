"""FedCVT: loss, estimates and memory against slow ones; two parties and no more."""

import math
from collections.abc import Sequence
from dataclasses import replace

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
from tests.options import resolved
from tests.problems import CLASSES, MIXED, NUMBERS, D, Problem
from xvfl.config import LossConfig
from xvfl.errors import ConfigError
from xvfl.methods.build import build_method
from xvfl.primitives.layout import any_image
from xvfl.primitives.task import Classification
from xvfl_lab.methods.fedcvt import FedCVT, FedCVTConfig, ReferenceMemory

SETTINGS = FedCVTConfig(common=0.3, orthogonal=0.2, representation=0.7, sharpening=0.6)
ROWS = ["FF", "PF", "FF", "F-", "GF", "PP", "-P", "FE", "FF"]
Pair = Sequence[Tensor]


def make(size: int = 6) -> FedCVT:
    return FedCVT(
        make_head(4, 1), make_heads(2, blocks=2), ReferenceMemory(2 * D, size).double(), SETTINGS
    )


def attention(query: Tensor, keys: Pair, values: Pair) -> Tensor:
    """Softmax of the scaled products, sharpened by p^(1/T) and made to sum to 1 again."""
    p = torch.softmax(torch.stack([query @ key / math.sqrt(D) for key in keys]), 0)
    sharp = p ** (1 / SETTINGS.sharpening)
    return twin.total([w * v for w, v in zip(sharp / sharp.sum(), values, strict=True)])


def estimated(own: Tensor, i: int, reference: Sequence[Pair]) -> Tensor:
    """Estimate party i's [u; c] from its peer's: [attention over peer's u; over i's c]."""
    j = 1 - i
    unique = attention(own[:D], [r[j][:D] for r in reference], [r[i][:D] for r in reference])
    common = attention(own[D:], [r[i][D:] for r in reference], [r[i][D:] for r in reference])
    return torch.cat([unique, common])


def slow(problem: Problem, method: FedCVT) -> dict[str, Tensor]:
    """Write the loss out, row by row."""
    E, rows = embed_rows(problem), problem.twin_rows()
    aligned = [b for b, row in enumerate(rows) if all(row.full)]
    terms: dict[str, list[list[Tensor]]] = {}
    for b, (row, R) in enumerate(zip(rows, E, strict=True)):
        reference = [E[r] for r in aligned if r != b]
        guess = [estimated(R[1 - i], i, reference) for i in (0, 1)] if reference else None
        of_row: dict[str, list[Tensor]] = {"joint": [], "own": [], "common": []}
        of_row["representation"] = []
        for i in (0, 1):
            if row.full[i]:
                out = method.heads["own"][i](R[i])
                of_row["own"].append(twin.cross_entropy(out, row.y))
        if any(row.full) and (guess or all(row.full)):
            used = [R[i] if row.full[i] else (guess or R)[i] for i in (0, 1)]
            out = method.heads["joint"](torch.cat(used))
            of_row["joint"].append(twin.cross_entropy(out, row.y))
        if all(row.full):
            of_row["common"].append(SETTINGS.common * twin.mse(R[0][D:], R[1][D:]))
            for i in (0, 1) if guess else ():
                error = twin.mse((guess or R)[i], R[i])
                of_row["representation"].append(SETTINGS.representation * error)
        for name, found in of_row.items():
            terms.setdefault(name, []).append(found)
    across = []
    for i in (0, 1):
        held = [b for b, row in enumerate(rows) if row.full[i]]
        products = [(E[a][i][:D] @ E[b][i][D:]) ** 2 for a in held for b in held]
        if held:
            across.append(SETTINGS.orthogonal * twin.total(products).sqrt() / len(held))
    expected = {name: weighted_mean(problem, found) for name, found in terms.items()}
    return expected | {"orthogonal": twin.total(across)}


@pytest.mark.parametrize("rows", [ROWS, ["FF", "F-"], ["FF", "FF"]], ids=["all", "one", "two"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_equals_the_slow_one(rows: list[str], seed: int) -> None:
    problem, method = make_two_branch_problem([NUMBERS, MIXED], rows, seed), make()
    assert_matches_twin(problem, method, slow(problem, method))


@pytest.mark.parametrize("rows", [["F-", "-F"], ["PP", "P-"]])
def test_without_aligned_rows_the_loss_and_its_gradients_are_finite(rows: list[str]) -> None:
    problem, method = make_two_branch_problem([NUMBERS] * 2, rows), make()
    found = method.loss(problem.federation(), problem.rows)
    assert not found["joint"] and not found["representation"] and not found["common"]
    torch.stack(list(found.values())).sum().backward()
    assert all(gradient.isfinite().all() for gradient in problem.gradients().values())


def test_rows_without_weight_are_nobodys_reference() -> None:
    problem, method = make_two_branch_problem([NUMBERS] * 2, ROWS), make()
    weight = problem.rows.weight.clone()
    weight[[0, 3]] = 0
    rest = torch.tensor([b for b in range(len(ROWS)) if weight[b] > 0])
    found = method.loss(problem.federation(), replace(problem.rows, weight=weight))
    fewer = method.loss(problem.federation(), problem.rows.take(rest, problem.rows.step))
    for name in ("joint", "own", "common", "representation"):
        torch.testing.assert_close(found[name] * len(ROWS), fewer[name] * len(rest))
    torch.testing.assert_close(found["orthogonal"], fewer["orthogonal"])


def test_the_memory_keeps_the_latest_aligned_rows() -> None:
    memory = ReferenceMemory(2, size=4)
    R = torch.arange(6.0).view(1, 6, 1, 1).expand(-1, -1, 2, 2)
    memory.refresh(R, torch.tensor([[True, False, True, False, False, True]]))
    assert memory.valid.tolist() == [[True, True, True, False]]
    memory.refresh(R + 10, torch.tensor([[False, True, False, False, True, False]]))
    assert memory.rows[0, :, 0, 0].tolist() == [11.0, 14.0, 0.0, 2.0]
    memory.refresh(R + 20, torch.zeros(1, 6, dtype=torch.bool))
    assert memory.rows[0, :, 1, 1].tolist() == [11.0, 14.0, 0.0, 2.0] and memory.valid.all()


def test_the_memory_changes_in_training_alone() -> None:
    problem, method = make_two_branch_problem([NUMBERS] * 2, ROWS), make()
    method.heads.eval()
    method.loss(problem.federation(), problem.rows)
    assert not method.heads["memory"].valid.any()
    method.heads.train()
    method.loss(problem.federation(), problem.rows)
    assert int(method.heads["memory"].valid.sum()) == 4


def test_prediction_takes_what_is_real_and_estimates_the_rest() -> None:
    problem, method = make_two_branch_problem([NUMBERS] * 2, ROWS, seed=3), make()
    method.loss(problem.federation(), problem.rows)
    E, rows = embed_rows(problem), problem.twin_rows()
    reference = [E[b] for b, row in enumerate(rows) if all(row.full)]
    together = method.logits(problem.federation(), problem.rows, "collaborative", 0)
    for b, row in enumerate(rows):
        source = twin.sources(row)
        used = [E[b][i] if i in source else estimated(E[b][1 - i], i, reference) for i in (0, 1)]
        torch.testing.assert_close(together[b], method.heads["joint"](torch.cat(used)))
    for party in (0, 1):
        alone = method.logits(problem.federation(), problem.rows, "local", party)
        for b in range(len(rows)):
            torch.testing.assert_close(alone[b], method.heads["own"][party](E[b][party]))


def test_D7_an_unreachable_party_is_estimated_from_the_memory() -> None:
    problem, method = make_two_branch_problem([NUMBERS] * 2, ROWS, seed=3), make()
    method.loss(problem.federation(), problem.rows)
    E, rows = embed_rows(problem), problem.twin_rows()
    reference = [E[b] for b, row in enumerate(rows) if all(row.full)]
    federation, known = problem.federation().select_parties([1]), problem.rows.select_parties([1])
    found = method.select_parties([1]).logits(federation, known, "collaborative", 0)
    alone = method.select_parties([1]).logits(federation, known, "local", 0)
    for b, row in enumerate(rows):
        if any(row.o[1]):
            used = [estimated(E[b][1], 0, reference), E[b][1]]
            torch.testing.assert_close(found[b], method.heads["joint"](torch.cat(used)))
            torch.testing.assert_close(alone[b], method.heads["own"][1](E[b][1]))


def test_stacked_runs_see_their_own_rows_alone() -> None:
    problem = make_two_branch_problem(
        [NUMBERS] * 2, [*ROWS, "F-", "-F", "PF", "FF", "GF", "F-", "FF"]
    )
    problem = replace(problem, rows=problem.rows.take(torch.arange(16), problem.rows.step))
    halves = [problem.rows.take(at, problem.rows.step) for at in torch.arange(16).chunk(2)]
    solo = [make(), make()]
    both = FedCVT(
        make_head(4, 1), make_heads(2, 2), ReferenceMemory(2 * D, 6, runs=2).double(), SETTINGS
    )
    stacked = replace(problem.rows, runs=2)
    terms = both.loss(problem.federation(), stacked)
    apart = [m.loss(problem.federation(), rows) for m, rows in zip(solo, halves, strict=True)]
    for name, term in terms.items():
        torch.testing.assert_close(term, (apart[0][name] + apart[1][name]) / 2)
    for name in ("rows", "valid"):
        each = [getattr(method.heads["memory"], name) for method in solo]
        torch.testing.assert_close(getattr(both.heads["memory"], name), torch.cat(each))
    said = both.logits(problem.federation(), stacked, "collaborative", 0)
    alone = [
        m.logits(problem.federation(), rows, "collaborative", 0)
        for m, rows in zip(solo, halves, strict=True)
    ]
    torch.testing.assert_close(said, torch.cat(alone))


def test_more_than_two_parties_are_refused() -> None:
    layouts = {"a": NUMBERS, "b": NUMBERS, "c": NUMBERS}
    options = resolved(loss=LossConfig(method="fedcvt"), parties=3)
    with pytest.raises(ConfigError, match="fedcvt: expected two parties, got 3"):
        build_method(
            len(layouts),
            Classification(range(CLASSES)),
            any_image(layouts),
            options.net,
            options.loss,
            [0],
        )
