"""Losses of numbers: equal to the slow twin, in one process and across the wire."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests import twin
from tests.federation.split_helpers import (
    begin_run,
    make_endpoints,
    make_federation,
    make_small_method,
    settings_json,
)
from tests.federation.test_split import TOLERANCE, assert_equal, fused_gradients, split_gradients
from tests.methods.branch_helpers import (
    assert_matches_twin,
    embed_rows,
    weighted_mean,
)
from tests.options import resolved
from tests.problems import MIXED, NUMBERS, SEED, D, make_problem, smooth_net, with_numbers
from tests.test_maths import EVERYTHING, LAMBDAS, agree, every_kind_of_row
from tests.wire.transport_helpers import TRANSPORTS, open_transports
from xvfl import maths
from xvfl.config import LossConfig
from xvfl.errors import ConfigError
from xvfl.methods import METHODS
from xvfl.methods.build import build_method
from xvfl.methods.laser import Laser
from xvfl.methods.members import Members
from xvfl.methods.noisy_labels import NoisyLabels
from xvfl.methods.pooling import decision_weights
from xvfl.methods.standalone import Standalone
from xvfl.methods.vanilla import Vanilla
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.nets import ConcatHead
from xvfl.primitives.task import Regression
from xvfl.training.calibration import calibrate, choose_weights
from xvfl.training.predict import logits, mode_party_pairs, predictable_rows

NUMBER_METHODS = [name for name, spec in METHODS.items() if spec.regression]
TASK = Regression()


def heads(count: int, blocks: int = 1) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return [smooth_net(blocks * D, 1).double() for _ in range(count)]


@pytest.mark.parametrize("k", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        LAMBDAS,
        EVERYTHING,
        replace(EVERYTHING, guidance=0.6),
        replace(EVERYTHING, guidance=0.6, cross_completion=False),
        replace(EVERYTHING, stop_gradient=True, detach_cue=True, joint_masks=False),
    ],
)
def test_loss_and_gradients_of_numbers_equal_the_twin(k: int, options: twin.Options) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    agree(with_numbers(problem), options)


@pytest.mark.parametrize("k", [2, 3])
def test_unlabeled_rows_of_numbers_equal_the_twin(k: int) -> None:
    problem = make_problem([NUMBERS] * k, every_kind_of_row(k), seed=k)
    agree(with_numbers(problem, unlabeled=[0, 2, 7]), replace(EVERYTHING, guidance=0.5))


def test_squared_error_of_any_shape_equals_the_twin() -> None:
    rng = torch.Generator().manual_seed(0)
    out = torch.randn(5, 3, 2, 1, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.randn(5, generator=rng, dtype=torch.float64)
    y[2] = torch.nan
    found = maths.squared_error(out, y)
    assert found.shape == (5, 3, 2)
    for b in range(5):
        for i in range(3):
            for j in range(2):
                expected = twin.label_loss(out[b, i, j], y[b].item())
                torch.testing.assert_close(found[b, i, j], expected)
    (gradient,) = torch.autograd.grad(found.sum(), out)
    assert gradient.isfinite().all() and not gradient[2].any()


def test_baselines_equal_slow_ones() -> None:
    k, rows = 3, ["FFFF", "GFFF", "FPFF", "F-FF", "PPPP", "FFFF"]
    problem = with_numbers(make_problem([NUMBERS] * k, [row[:k] for row in rows], seed=4))
    own, (joint,) = heads(k), heads(1, k)

    def by_row() -> list[tuple[twin.Row, list[Tensor]]]:
        return list(zip(problem.twin_rows(), embed_rows(problem), strict=True))

    alone = [
        [twin.label_loss(own[i](E[i]), row.y) for i in range(k) if row.full[i]]
        for row, E in by_row()
    ]
    expected = {"own": weighted_mean(problem, alone)}
    assert_matches_twin(problem, Standalone(nn.ModuleList(own), TASK), expected)
    together = [
        [twin.label_loss(joint(torch.cat(E)), row.y)] if all(row.full) else []
        for row, E in by_row()
    ]
    expected = {"joint": weighted_mean(problem, together)}
    assert_matches_twin(problem, Vanilla(ConcatHead(joint, k), TASK), expected)


def test_laser_predicts_the_mean_of_numbers() -> None:
    problem = with_numbers(make_problem([NUMBERS] * 4, ["FP-F"], seed=2))
    own = heads(4)
    method = Laser(nn.ModuleList(own), False, [0], TASK)
    for net in problem.parties:
        net.eval()
    E = problem.federation().embed(problem.rows, ["plain"])[0, :, 0]
    mean = (E[0] + E[1] + E[3]) / 3
    expected = (own[0](mean) + own[1](mean) + own[3](mean)) / 3
    found = method.logits(problem.federation(), problem.rows, "collaborative", 0)
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("name", NUMBER_METHODS)
def test_gradients_across_the_wire_are_the_fused_ones(
    name: str, kind: str, authority: Path
) -> None:
    made = with_numbers(make_federation(3, torch.float64, dropout=0.3))
    weight = 0.7 if name == "xvfl+" else 0.0
    method = make_small_method(made, name)
    expected = fused_gradients(made, method, weight)
    with open_transports(kind, made.names, make_endpoints(made, weight), authority) as found:
        split = begin_run(found, made.names, settings_json())
        assert_equal(split_gradients(made, method, split), expected, TOLERANCE[torch.float64])


def test_every_mode_across_the_wire_predicts_as_one_process(authority: Path) -> None:
    made = with_numbers(make_federation(3, torch.float64))
    method = make_small_method(made, "xvfl+")
    decision_weights(method).update(
        {"local/p0": [0.25, 0.75], "assisted/p1": [0.5, 0.5], "collaborative": [0.25, 0.75, 0.5]}
    )
    with open_transports("memory", made.names, make_endpoints(made), authority) as found:
        split = begin_run(found, made.names, settings_json())
        for mode, party in mode_party_pairs(method, split):
            rows = made.rows.take(predictable_rows(made.rows, mode, party).nonzero().flatten())
            expected = logits(method, made.federation(), rows, mode, party)
            torch.testing.assert_close(logits(method, split, rows, mode, party), expected)


def test_decisions_are_pooled_as_a_weighted_mean() -> None:
    rng = torch.Generator().manual_seed(0)
    decisions = torch.randn(4, 3, 1, generator=rng, dtype=torch.float64)
    found = TASK.pool(decisions, [0.25, 0.75, 0.5])
    for row, value in zip(decisions[:, :, 0].tolist(), found[:, 0].tolist(), strict=True):
        assert value == pytest.approx((0.25 * row[0] + 0.75 * row[1] + 0.5 * row[2]) / 1.5)
    seen = torch.tensor([[True, False, True]] * 4)
    mean = TASK.pool_parties(decisions, seen)
    torch.testing.assert_close(mean, (decisions[:, 0] + decisions[:, 2]) / 2)


def test_calibration_is_a_least_squares_fit() -> None:
    rng = torch.Generator().manual_seed(0)
    out = torch.randn(2, 200, 1, generator=rng, dtype=torch.float64)
    y = 1.7 * out[..., 0] + 0.1 * torch.randn(2, 200, generator=rng, dtype=torch.float64)
    y[:, :20] = torch.nan
    weight = (~y.isnan()).double()
    for run, scale in enumerate(TASK.fit_scale(out, y, weight).tolist()):
        steps = torch.linspace(1, 2.5, 3001, dtype=torch.float64)
        errors = [(TASK.loss(s * out[run], y[run]) * weight[run]).sum().item() for s in steps]
        assert scale == pytest.approx(steps[errors.index(min(errors))].item(), abs=1e-3)


def test_the_better_decision_gets_the_weight() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(1, 400, generator=rng, dtype=torch.float64)
    noise = torch.randn(1, 400, 2, 1, generator=rng, dtype=torch.float64)
    decisions = y.view(1, 400, 1, 1) + noise * torch.tensor([0.1, 3.0]).view(1, 1, 2, 1)
    candidates = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    counted = torch.ones(1, 400, dtype=torch.bool)
    found = choose_weights(decisions, y, counted, candidates, TASK)
    assert found.tolist() == [[1.0, 0.0]]


def test_calibration_of_a_federation_is_that_of_one_process(authority: Path) -> None:
    holdings = ["FFF", "FGF", "FPF", "-FP", "PPF", "FFF", "EFP", "PFF"] * 12
    made = with_numbers(make_problem([NUMBERS, MIXED, NUMBERS], holdings))
    method, found = make_small_method(made, "xvfl+"), []
    with open_transports("memory", made.names, make_endpoints(made), authority) as lines:
        for federation in (made.federation(), begin_run(lines, made.names, settings_json())):
            temperatures = calibrate(method, federation, made.rows, TASK)
            found.append((temperatures, dict(decision_weights(method))))
    assert found[0][1] == found[1][1] and len(found[0][0]) == 10
    assert found[0][0] == pytest.approx(found[1][0])


def test_members_predict_the_mean_of_their_numbers() -> None:
    problem = with_numbers(make_problem([NUMBERS] * 2, ["FF", "FP", "PF"]))
    inner = XVFL(problem.head, XVFLWeights(0.1, 0.1, 1.0), task=TASK)

    class TwoNumbers:
        heads, modes = inner.heads, inner.modes

        def logits(self, federation, rows, mode, party):  # type: ignore[no-untyped-def]
            return torch.arange(len(rows), dtype=torch.float64).unsqueeze(1)

    found = Members(TwoNumbers(), 2, TASK).logits(  # type: ignore[arg-type]
        problem.federation(), problem.rows, "collaborative", 0
    )
    assert found[:, 0].tolist() == [1.5, 2.5, 3.5]


def test_noise_on_numbers_has_the_given_deviation() -> None:
    problem = with_numbers(make_problem([NUMBERS] * 2, ["FF"] * 4000), unlabeled=[3])
    method = NoisyLabels(XVFL(problem.head, XVFLWeights(0.1, 0.1), task=TASK), 2.0, 1, [5])
    noisy = method.noisy_labels(problem.rows)
    noise = (noisy - problem.rows.y)[~problem.rows.y.isnan()]
    assert noisy.shape == problem.rows.y.shape and noisy[3].isnan()
    assert noise.mean().item() == pytest.approx(0, abs=0.15)
    assert noise.std().item() == pytest.approx(2, abs=0.1)
    torch.testing.assert_close(noisy, method.noisy_labels(problem.rows), equal_nan=True)


def test_a_method_for_classes_rejects_numbers(two_encoders: str) -> None:
    options = resolved(loss=LossConfig(method=two_encoders))
    with pytest.raises(ConfigError, match="predicts classes only; for regression choose"):
        build_method(2, TASK, False, options.net, options.loss, [0])
