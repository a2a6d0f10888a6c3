"""Pooled decisions (D9): each mode weighs its decisions; slow formulas, one row at a time."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import twin
from tests.methods.branch_helpers import embed_rows
from tests.methods.test_ablations import alone, both_ways, predicting
from tests.methods.test_members import NET, federation_of
from tests.problems import Problem
from xvfl.config import LossConfig
from xvfl.methods.base import Method, Mode, mode_key
from xvfl.methods.members import Members, member_seeds
from xvfl.methods.pooling import decision_weights, decisions, pooling_method, without_gaps
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.training.predict import logits

NAMES = ("p0", "p1", "p2")
WEIGHTS: dict[str, Any] = {
    "local/p0": [0.25, 0.75],
    "local/p2": [1.0, 0.0],
    "assisted/p1": [0.5, 0.5],
    "collaborative": [0.25, 0.75, 0.5],
}


def log_proba(method: XVFL, parts: dict[int, Tensor], concat: bool) -> Tensor:
    return method.heads(twin.joined(parts, 3, concat)).log_softmax(-1)


def expected_rows(problem: Problem, method: XVFL, mode: Mode, party: int, concat: bool) -> Any:
    """Yield the pooled decision of each row."""
    parties, best = problem.twin_parties(), alone(problem, True)

    def local(i: int, b: int, E: list[Tensor]) -> Tensor:
        share = WEIGHTS.get(f"local/{NAMES[i]}", [0.0, 1.0])
        observed = log_proba(method, {i: E[i]}, concat)
        return share[0] * observed + share[1] * log_proba(method, {i: best[b][i]}, concat)

    for b, (row, E) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        seen = [i for i in range(3) if any(row.o[i])]
        kept = twin.Row(row.x, row.o, [False] * 3, row.y, row.weight) if all(row.full) else row
        made = both_ways(row, best[b], twin.cross_completed(parties, kept, E))
        if mode == "local":
            yield local(party, b, E)
        elif mode == "collaborative":
            w = WEIGHTS["collaborative"]
            out = w[0] * log_proba(method, {i: E[i] for i in seen}, concat)
            out = out + w[1] * log_proba(method, dict(enumerate(made)), concat)
            for i in seen:
                out = out + w[2] * local(i, b, E)
            yield out
        else:
            helpers = row.full if any(row.full) else [any(part) for part in row.o]
            peers = {i: E[i] for i in range(3) if helpers[i] and i != party}
            if row.full[party] or not peers:
                yield local(party, b, E)
                continue
            w = WEIGHTS[f"assisted/{NAMES[party]}"]
            own = {party: E[party]} if party in seen else {}
            out = w[0] * log_proba(method, {**peers, **own}, concat)
            yield out + w[1] * log_proba(method, {**peers, party: made[party]}, concat)


@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize(
    ("mode", "party"), [("local", 0), ("local", 2), ("assisted", 1), ("collaborative", 0)]
)
def test_D9_pooled_decisions_equal_the_slow_ones(mode: Any, party: int, concat: bool) -> None:
    problem, method = predicting(concat, XVFLWeights(0.1, 0.1, 1.0))
    assert problem.names == list(NAMES)
    method.decision_weights.update(WEIGHTS)
    found = method.logits(problem.federation(), problem.rows, mode, party)
    for b, expected in enumerate(expected_rows(problem, method, mode, party, concat)):
        if problem.rows.seen[b, party] or mode != "local":
            torch.testing.assert_close(found[b], expected)


@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative"])
def test_D9_all_weight_on_the_completed_decision_is_the_default(mode: Any) -> None:
    problem, method = predicting(False, XVFLWeights(0.1, 0.1, 1.0))
    default = method.logits(problem.federation(), problem.rows, mode, 1).log_softmax(-1)
    weights = [0.0, 1.0, 0.0] if mode == "collaborative" else [0.0, 1.0]
    key = mode if mode == "collaborative" else f"{mode}/p1"
    method.decision_weights[key] = weights
    found = method.logits(problem.federation(), problem.rows, mode, 1)
    torch.testing.assert_close(found, default)


@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize(("mode", "party"), [("local", 0), ("local", 2), ("collaborative", 0)])
def test_D9_all_weight_on_the_observed_decision_needs_no_completers(
    mode: Any, party: int, concat: bool
) -> None:
    problem, method = predicting(concat, XVFLWeights(0.1, 0.1, 1.0))
    weights = [1.0, 0.0, 0.0] if mode == "collaborative" else [1.0, 0.0]
    method.decision_weights[mode_key(mode, NAMES[party])] = weights
    federation = problem.federation()
    expected = method.task.pool(
        method.decisions(federation, problem.rows, mode, party), torch.tensor(weights)
    )
    for worker in federation.workers:
        for weight in worker.net.completer.parameters():
            weight.detach().fill_(torch.nan)
    found = method.logits(federation, problem.rows, mode, party)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("own", [0.0, 0.5])
@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize(
    ("mode", "party"), [("local", 0), ("local", 2), ("assisted", 1), ("collaborative", 0)]
)
def test_full_rows_are_predicted_as_with_completion(
    mode: Any, party: int, concat: bool, own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xvfl.training.predict.BATCH", 2)
    problem, method = predicting(concat, XVFLWeights(0.1, 0.1, 1.0))
    method.decision_weights.update(WEIGHTS | {"collaborative": [0.25, 0.75, own]})
    full = problem.rows.full.all(1) if mode == "collaborative" else problem.rows.full[:, party]
    assert full.any() and not full.all() and without_gaps(method) is not None
    found = logits(method, problem.federation(), problem.rows, mode, party)
    expected = method.logits(problem.federation(), problem.rows, mode, party)
    torch.testing.assert_close(found.log_softmax(-1), expected.float().log_softmax(-1))


@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative"])
def test_D9_any_subset_of_parties_pools_its_own_decisions(mode: Any) -> None:
    problem, method = predicting(False, XVFLWeights(0.1, 0.1, 1.0))
    method.decision_weights.update(WEIGHTS)
    subset = method.select_parties([0, 2])
    federation = problem.federation().select_parties([0, 2])
    out = subset.logits(federation, problem.rows.select_parties([0, 2]), mode, 1)
    assert out.isfinite().all() and subset.decision_weights is method.decision_weights


def test_D9_the_papers_method_and_others_do_not_pool() -> None:
    _, paper = predicting(False, XVFLWeights(0.1, 0.1))
    assert pooling_method(paper) is None and decision_weights(paper) == {}
    observed = XVFL(paper.heads, XVFLWeights(0.1, 0.1, 1.0), completing=False)
    assert pooling_method(observed) is None
    laser, federation, rows = federation_of(LossConfig(method="laser"), NET, [5])
    assert decision_weights(laser) == {}
    with pytest.raises(TypeError, match="expected a method that pools decisions, got Laser"):
        decisions(laser, federation, rows, "local", 0)


@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative"])
def test_D9_each_stacked_run_has_its_own_weights_also_with_members(mode: Any) -> None:
    """Two runs of two members each, against single runs, by the mean over members."""
    net = replace(NET, members=2)
    method, federation, rows = federation_of(LossConfig(), net, [5, 6])
    weights = torch.tensor([[0.25, 0.75, 0.5], [1.0, 0.0, 0.25]], dtype=torch.float64)
    weights = weights if mode == "collaborative" else weights[:, :2]
    key = mode if mode == "collaborative" else f"{mode}/p1"
    decision_weights(method)[key] = weights
    both = replace(rows.take(torch.arange(16), rows.step), runs=2)
    federation.train(False)
    found = method.logits(federation, both, mode, 1).softmax(-1)
    pooled = (
        (
            decisions(method, federation, both, mode, 1).view(2, 8, -1, 3).double()
            * weights.view(2, 1, -1, 1)
        )
        .sum(2)
        .flatten(0, 1)
        .softmax(-1)
    )
    torch.testing.assert_close(found, pooled)
    for run, seed in enumerate([5, 6]):
        some = rows.take(torch.arange(8 * run, 8 * run + 8), rows.step)
        members: list[Tensor] = []
        for each in member_seeds([seed], 2):
            one, parties, _ = federation_of(LossConfig(), NET, [each])
            parties.train(False)
            members.append(_pooled(one, parties, some, mode, weights[run]))
        expected = torch.stack(members).mean(0).softmax(-1)
        torch.testing.assert_close(found[8 * run : 8 * run + 8], expected)


def _pooled(method: Method, federation: Any, rows: Any, mode: Any, weights: Tensor) -> Tensor:
    assert not isinstance(method, Members)
    out = decisions(method, federation, rows, mode, 1)
    return (out * weights.view(1, -1, 1)).sum(1)
