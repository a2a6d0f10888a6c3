"""Label protection by noise: heads learn from the true labels, parties from noisy ones."""

from dataclasses import replace

import torch
from torch import Tensor

from tests.problems import CLASSES, NUMBERS, Problem, make_problem
from xvfl.methods.noisy_labels import NoisyLabels
from xvfl.methods.xvfl import XVFL, XVFLWeights

KINDS = ["FF", "FP", "PF", "F-", "-F", "FF", "PP", "FF"]


def gradients(problem: Problem, method: XVFL | NoisyLabels, y: Tensor) -> dict[str, Tensor]:
    federation = problem.federation()
    federation.train(True)
    terms = method.loss(federation, replace(problem.rows, y=y))
    federation.backward(torch.stack(list(terms.values())).sum())
    return problem.gradients()


def test_heads_get_the_gradients_of_true_labels_parties_those_of_noisy_ones() -> None:
    problem = make_problem([NUMBERS] * 2, KINDS, seed=3)
    plain = XVFL(problem.head, XVFLWeights(0.3, 0.2))
    noisy = NoisyLabels(plain, 2.0, CLASSES, [5])
    true_gradients = gradients(problem, plain, problem.rows.y)
    labels = noisy.noisy_labels(problem.rows)
    noisy_gradients = gradients(problem, plain, labels)
    ours = gradients(problem, noisy, problem.rows.y)
    for name, value in ours.items():
        expected = true_gradients if name.startswith("head") else noisy_gradients
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)
    some = next(name for name in ours if not name.startswith("head"))
    assert not torch.allclose(true_gradients[some], noisy_gradients[some])


def test_the_reported_loss_is_that_of_true_labels() -> None:
    problem = make_problem([NUMBERS] * 2, KINDS, seed=3)
    plain = XVFL(problem.head, XVFLWeights(0.3, 0.2))
    federation = problem.federation()
    federation.train(True)
    expected = plain.loss(federation, problem.rows)
    terms = NoisyLabels(plain, 2.0, CLASSES, [5]).loss(federation, problem.rows)
    for name, term in expected.items():
        torch.testing.assert_close(terms[name], term)


def test_a_row_has_the_same_noise_in_every_batch_and_step() -> None:
    problem = make_problem([NUMBERS] * 2, KINDS, seed=3)
    method = NoisyLabels(XVFL(problem.head, XVFLWeights(0.0, 0.0)), 1.0, CLASSES, [5])
    rows = problem.rows
    all_labels = method.noisy_labels(rows)
    order = torch.tensor([4, 1, 6])
    assert torch.equal(method.noisy_labels(rows.take(order, step=99)), all_labels[order])
    torch.testing.assert_close(all_labels.sum(1), torch.ones(len(rows), dtype=all_labels.dtype))


def test_the_noise_has_the_given_standard_deviation() -> None:
    problem = make_problem([NUMBERS] * 2, KINDS, seed=3)
    method = NoisyLabels(XVFL(problem.head, XVFLWeights(0.0, 0.0)), 2.0, CLASSES, [5])
    n = 20_000
    handles = torch.arange(n).unsqueeze(1).expand(n, 2)
    y = torch.zeros(n, dtype=torch.long)
    mask = torch.ones(n, 2, dtype=torch.bool)
    rows = replace(problem.rows, handles=handles, y=y, full=mask, seen=mask, weight=torch.ones(n))
    noise = method.noisy_labels(rows) - torch.nn.functional.one_hot(y, CLASSES)
    centered = 2.0 * (1 - 1 / CLASSES) ** 0.5
    assert abs(float(noise.std()) - centered) < 0.05 and abs(float(noise.mean())) < 0.05
