"""X-VFL's loss and its gradients: against the slow twin, and against the paper's two clients."""

import ast
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import twin
from tests.problems import (
    ABSENT,
    CLASSES,
    EMPTY,
    FULL,
    GAPPY,
    IMAGE,
    MIXED,
    NUMBERS,
    PARTIAL,
    STEP,
    D,
    Problem,
    make_problem,
    sampled_mask,
    smooth_net,
)
from xvfl import maths
from xvfl.methods import ablation_maths
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.nets import ConcatHead
from xvfl.primitives.layout import Layout
from xvfl.primitives.task import CLASSIFICATION, Regression

LAMBDAS = twin.Options(lambda1=0.7, lambda2=1.3)
EVERYTHING = replace(LAMBDAS, self_completion=0.8, reconstruction=0.3)
TWO = ["FF", "GF", "FP", "PF", "F-", "EF"]
TERMS = ("decision", "dsalign1", "dsalign2", "self", "objectives")


def every_kind_of_row(k: int) -> list[str]:
    """List holdings: aligned, with gaps, partial, absent, D2, and seen by one party alone."""
    rest = k - 1
    return [
        FULL * k,
        FULL + GAPPY * rest,
        FULL * rest + PARTIAL,
        PARTIAL + FULL * rest,
        GAPPY + ABSENT + FULL * (k - 2),
        FULL + EMPTY * rest,
        ABSENT * rest + FULL,
        FULL + PARTIAL * rest,
        PARTIAL * k,
        PARTIAL * 2 + ABSENT * (k - 2),
        ABSENT * rest + PARTIAL,
        EMPTY * rest + GAPPY,
    ]


def fast(problem: Problem, options: twin.Options) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run the package: terms of the loss, and gradients of their sum."""
    weights = XVFLWeights(
        options.lambda1,
        options.lambda2,
        options.self_completion,
        options.stop_gradient,
        options.detach_cue,
        options.cross_completion,
        "concat" if options.concat else "mean",
        guidance=options.guidance,
        joint_masks=options.joint_masks,
    )
    federation = problem.federation(options.reconstruction)
    task = Regression() if problem.rows.y.is_floating_point() else CLASSIFICATION
    terms = XVFL(problem.head, weights, task=task).loss(federation, problem.rows)
    federation.backward(torch.stack(list(terms.values())).sum())
    own = [worker.objective for worker in federation.workers if worker.objective is not None]
    zero = torch.zeros((), dtype=torch.float64)
    terms = {
        "self": zero,
        "dsalign1": zero,
        **terms,
        "objectives": torch.stack([zero, *own]).detach().sum(),
    }
    return terms, problem.gradients()


def slow(problem: Problem, options: twin.Options) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run the twin on the same nets, rows and drawn masks."""
    terms = twin.loss(
        problem.twin_parties(), problem.head, problem.twin_rows(), options, drawn_masks(problem)
    )
    terms.total().backward()
    values = (terms.decision, terms.dsalign1, terms.dsalign2, terms.self_completion)
    named = dict(zip(TERMS, (*values, twin.total(terms.reconstruction)), strict=True))
    return named, problem.gradients()


def drawn_masks(problem: Problem) -> list[list[list[list[bool]]]]:
    """Draw again what each party masked of each row in the step. [row][party][copy][feature]"""
    masks = []
    for i, table in enumerate(problem.tables):
        observed = table.take(problem.rows.handles[:, i]).observed
        copies = [sampled_mask(observed, f"p{i}", STEP, which).tolist() for which in range(2)]
        masks.append([list(row) for row in zip(*copies, strict=True)])
    return [list(row) for row in zip(*masks, strict=True)]


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare to 1e-12, name by name."""
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        torch.testing.assert_close(
            value, expected[name], rtol=1e-12, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
        )


def agree(problem: Problem, options: twin.Options) -> None:
    """Compare the package with its twin: every term, and the gradient of every parameter."""
    for actual, expected in zip(fast(problem, options), slow(problem, options), strict=True):
        same(actual, expected)


NUMBERS_OF_PARTIES = [2, 3, pytest.param(5, marks=pytest.mark.slow)]
"""The property test below has up to five parties in every run of the tests."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_loss_and_gradients_equal_the_twin(k: int, seed: int) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed)
    agree(problem, LAMBDAS)


@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_self_completion_and_reconstruction_equal_the_twin(k: int) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    agree(problem, EVERYTHING)
    agree(problem, replace(LAMBDAS, reconstruction=0.3))


@pytest.mark.parametrize("joint_masks", [False, True])
@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_a_step_without_completion_equals_the_twin(k: int, joint_masks: bool) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    options = replace(EVERYTHING, guidance=0.6, joint_masks=joint_masks)
    masked = replace(problem, rows=replace(problem.rows, completing=False))
    terms, gradients = fast(masked, options)
    expected = twin.masked_loss(
        problem.twin_parties(), problem.head, problem.twin_rows(), options, drawn_masks(problem)
    )
    zero = torch.zeros((), dtype=torch.float64)
    same(terms, {"self": expected.detach(), "dsalign1": zero, "objectives": zero})
    expected.backward()
    same(gradients, problem.gradients())


@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_joint_masks_can_be_switched_off(k: int) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    agree(problem, replace(EVERYTHING, guidance=0.6, joint_masks=False))


def test_without_self_completion_every_step_completes() -> None:
    problem = make_problem([NUMBERS] * 2, TWO)
    masked = replace(problem, rows=replace(problem.rows, completing=False))
    for actual, expected in zip(fast(masked, LAMBDAS), fast(problem, LAMBDAS), strict=True):
        same(actual, expected)


@pytest.mark.parametrize("cross_completion", [False, True])
@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_guidance_equals_the_twin(k: int, cross_completion: bool) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    agree(problem, replace(EVERYTHING, guidance=0.6, cross_completion=cross_completion))
    agree(problem, replace(LAMBDAS, guidance=0.6, cross_completion=cross_completion))


@pytest.mark.parametrize("cross_completion", [False, True])
@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_unlabeled_rows_equal_the_twin(k: int, cross_completion: bool) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    y = problem.rows.y.clone()
    y[::2] = -1
    weight = torch.where(y < 0, 1.0, 2.0).double()
    problem = replace(problem, rows=replace(problem.rows, y=y, weight=weight))
    options = replace(EVERYTHING, guidance=0.6, cross_completion=cross_completion)
    agree(problem, options)
    none = replace(problem, rows=replace(problem.rows, y=torch.full_like(y, -1)))
    terms, _ = fast(none, options)
    assert terms["decision"].item() == 0 and terms["dsalign2"].item() > 0
    agree(none, options)


@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize("cross_completion", [False, True])
@pytest.mark.parametrize("k", NUMBERS_OF_PARTIES)
def test_ablations_equal_the_twin(k: int, cross_completion: bool, concat: bool) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    if concat:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            problem = replace(problem, head=ConcatHead(smooth_net(k * D, CLASSES).double(), k))
    switches = {"cross_completion": cross_completion, "concat": concat}
    agree(problem, replace(LAMBDAS, **switches))
    agree(problem, replace(EVERYTHING, **switches))
    agree(problem, replace(EVERYTHING, stop_gradient=True, **switches))


@st.composite
def batches(draw: st.DrawFn) -> Problem:
    k = draw(st.integers(2, 5))
    letters = st.sampled_from([FULL, GAPPY, PARTIAL, EMPTY, ABSENT])
    row = st.lists(letters, min_size=k, max_size=k).map("".join)
    seen = row.filter(lambda holding: bool(set(holding) & {FULL, GAPPY, PARTIAL}))
    holdings = draw(st.lists(seen, min_size=1, max_size=5))
    return make_problem([NUMBERS] * k, holdings, draw(st.integers(0, 2**20)))


@given(batches(), st.floats(0, 5), st.floats(0, 5))
@settings(max_examples=15)
def test_any_batch_equals_the_twin(problem: Problem, lambda1: float, lambda2: float) -> None:
    agree(problem, replace(EVERYTHING, lambda1=lambda1, lambda2=lambda2, guidance=0.5))


@pytest.mark.parametrize(
    ("layouts", "rows"),
    [
        ([MIXED, MIXED, NUMBERS], every_kind_of_row(3)),
        ([IMAGE, IMAGE], ["FF", "FG", "FP", "PF", "-F", "PP"]),
        ([NUMBERS, IMAGE, MIXED], ["FFF", "FPF", "P-F", "PPP", "-GP"]),
    ],
    ids=["categories and hashed", "images", "all together"],
)
def test_every_layout_equals_the_twin(layouts: Sequence[Layout], rows: list[str]) -> None:
    agree(make_problem(layouts, rows, seed=3), EVERYTHING)


@pytest.mark.parametrize("rows", [*([each] for each in TWO), TWO])
@pytest.mark.parametrize("layouts", [[NUMBERS, NUMBERS], [MIXED, NUMBERS]])
def test_two_parties_equal_the_paper(layouts: Sequence[Layout], rows: list[str]) -> None:
    problem = make_problem(layouts, rows, seed=5)
    a, b = problem.twin_parties()
    by_hand: list[list[Tensor]] = [[], [], []]
    for row in problem.twin_rows():
        of_row = twin.two_clients(a, b, problem.head, row, LAMBDAS.lambda1, LAMBDAS.lambda2)
        for terms, term in zip(by_hand, of_row, strict=True):
            terms.append(row.weight * term)
    zero = torch.zeros((), dtype=torch.float64)
    terms = [twin.total(each) / len(rows) for each in by_hand]
    expected = dict(zip(TERMS, (*terms, zero, zero), strict=True))
    twin.total(terms).backward()
    gradients = problem.gradients()
    for actual in (fast(problem, LAMBDAS), slow(problem, LAMBDAS)):
        same(actual[0], expected)
        same(actual[1], gradients)


@pytest.mark.parametrize(
    ("switch", "moved"),
    [
        ({"stop_gradient": True}, ("p0.bottom", "p1.bottom", "p2.bottom", "head")),
        ({"detach_cue": True}, ("p0.bottom", "p1.bottom", "p2.bottom")),
    ],
    ids=["stop_gradient", "detach_cue"],
)
def test_switches_change_gradients_alone(switch: dict[str, bool], moved: tuple[str, ...]) -> None:
    problem = make_problem([NUMBERS] * 3, every_kind_of_row(3), seed=8)
    options = replace(LAMBDAS, **switch)
    agree(problem, options)
    agree(problem, replace(EVERYTHING, **switch))
    plain_terms, plain = fast(problem, LAMBDAS)
    terms, gradients = fast(problem, options)
    same(terms, plain_terms)
    for name, gradient in gradients.items():
        changed = not torch.allclose(gradient, plain[name], rtol=1e-9, atol=1e-9)
        assert changed == name.startswith(moved), name


@pytest.mark.parametrize("detach", [False, True])
def test_no_gradient_of_the_reconstruction_reaches_a_peer(detach: bool) -> None:
    problem = make_problem([NUMBERS] * 2, ["PF"], seed=1)
    federation = problem.federation(reconstruction=1.0)
    XVFL(problem.head, XVFLWeights(0.0, 0.0, detach_cue=detach)).loss(federation, problem.rows)
    objective = federation.workers[0].objective
    assert objective is not None and objective.requires_grad
    peer = list(problem.parties[1].bottom.parameters())
    found = torch.autograd.grad(objective, peer, allow_unused=True, retain_graph=True)
    assert not any(gradient is not None and bool(gradient.any()) for gradient in found)
    own = list(problem.parties[0].completer.parameters())
    assert all(bool(gradient.any()) for gradient in torch.autograd.grad(objective, own[-2:]))


def test_completed_inputs_keep_nothing_of_aligned_rows_and_what_was_observed_of_others() -> None:
    problem = make_problem([NUMBERS] * 2, ["FF", "PF"], seed=2)
    federation = problem.federation()
    method = XVFL(problem.head, XVFLWeights(1.0, 1.0))
    values = problem.tables[0].values.requires_grad_()
    method.loss(federation, problem.rows)
    cues = torch.zeros(2, 2, D, dtype=torch.float64)
    E_ = federation.complete(cues, problem.rows.full.all(1))
    (gradient,) = torch.autograd.grad(E_.sum(), values)
    aligned, partial = problem.rows.handles[:, 0].tolist()
    assert not gradient[aligned].any()
    assert torch.equal(gradient[partial] != 0, problem.tables[0].observed[partial])


def test_small_pieces_by_hand() -> None:
    E = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [5.0, 7.0]]])
    E_ = torch.tensor([[[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]])
    full = torch.tensor([[True, False, True]])
    assert maths.mean_over(E, full).tolist() == [[3.0, 3.5]]
    assert maths.mean_over(E, torch.zeros_like(full)).tolist() == [[0.0, 0.0]]
    assert maths.others(full, 0).tolist() == [[False, False, True]]
    cue, has_cue = maths.cues(E, full)
    assert cue.tolist() == [[[5.0, 7.0], [3.0, 3.5], [1.0, 0.0]]] and has_cue.all()
    alone = torch.tensor([[False, True, False]])
    assert maths.cues(E, alone)[1].tolist() == [[True, False, True]]
    assert (maths.swapped(E, E_)[0] * 3).tolist() == [[10.0, 11.0], [10.0, 11.0], [10.0, 8.0]]
    everyone = torch.ones_like(full)
    assert (maths.filled(E, E_, full, everyone) * 3).tolist() == [[10.0, 11.0]]
    assert (maths.filled(E, E_, ~everyone, alone) * 3).tolist() == [[10.0, 11.0]]
    made = maths.average_completions(E_, E, torch.tensor([[True, True, False]]))
    assert made.tolist() == [[[1.5, 1.0], [3.5, 3.0], [6.0, 6.0]]]
    x, guess = torch.tensor([[1.0, 2.0]]), torch.tensor([[8.0, 9.0]])
    assert maths.merge(x, guess, torch.tensor([[True, False]])).tolist() == [[1.0, 9.0]]


def test_guidance_by_hand() -> None:
    full = torch.tensor([[True, True], [True, False], [False, False]])
    joint, fill = (torch.full((3, 2), value) for value in (1.0, 2.0))
    own = torch.tensor([3.0, 4.0]).view(1, 2, 1).expand(3, 2, 2)
    every = maths.Logits(own, joint, own, own, fill)
    assert maths.joint_logits(every, full)[:, 0].tolist() == [1.0, 2.0, 2.0]
    some = ablation_maths.UncompletedLogits(own, joint, fill)
    for seen, expected in (
        (torch.ones_like(full), [1.0, 2.0, 2.0]),
        (full, [1.0, 3.0, 0.0]),
    ):
        assert ablation_maths.joint_logits_uncompleted(some, full, seen)[:, 0].tolist() == expected
    third = torch.tensor([[0.0, math.log(3)]])
    said = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0], [0.0, 0.0], [9.0, 0.0]]])
    found = maths.guidance_loss(said, third, torch.tensor([[True, False]]))
    half, quarters = math.log(2), -0.25 * math.log(0.75) - 0.75 * math.log(0.25)
    assert found.tolist() == pytest.approx([half + quarters])


def test_cross_entropy_of_any_shape_equals_the_twin() -> None:
    out = torch.randn(4, 3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 4, 2, 2])
    found = maths.cross_entropy(out, y)
    assert found.shape == (4, 3, 2)
    for b in range(4):
        for i in range(3):
            for j in range(2):
                expected = twin.cross_entropy(out[b, i, j], int(y[b]))
                torch.testing.assert_close(found[b, i, j], expected, rtol=1e-12, atol=1e-12)


def test_overall_adds_the_three_losses() -> None:
    problem = make_problem([NUMBERS] * 3, every_kind_of_row(3), seed=4)
    rows, federation = problem.rows, problem.federation()
    E = federation.embed(rows, ["plain"])[:, :, 0]
    cue, has_cue = maths.cues(E, maths.sources(rows.full, rows.seen))
    E_ = federation.complete(cue, rows.full.all(1))
    out = maths.split_logits(problem.head(maths.head_inputs(E, E_, rows.full, has_cue)))
    per_row = sum(maths.overall(out, rows.full, rows.y, 0.7, 1.3).values())
    found = (per_row * rows.weight).mean()
    terms, _ = slow(problem, LAMBDAS)
    torch.testing.assert_close(found, sum(terms.values()), rtol=1e-12, atol=1e-12)


def test_the_twin_stands_alone() -> None:
    tree = ast.parse(Path(twin.__file__).read_text(encoding="utf-8"))
    names = [each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    names += [a.name for each in ast.walk(tree) if isinstance(each, ast.Import) for a in each.names]
    assert not [name for name in names if name and name.startswith("xvfl")]
