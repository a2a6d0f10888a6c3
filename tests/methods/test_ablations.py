"""X-VFL with a part left out: what it predicts from, and unreachable parties."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import small_tables, twin
from tests.methods.branch_helpers import embed_rows, make_head
from tests.options import resolved
from tests.problems import CLASSES, MIXED, NUMBERS, D, Problem, make_problem
from xvfl import XVFLClassifier
from xvfl.config import LossConfig, NetConfig
from xvfl.methods.build import build_method
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.nets import ConcatHead
from xvfl.primitives.task import Classification

ROWS = ["FFF", "FPF", "F-P", "PP-", "-PE"]


def predicting(concat: bool, weights: XVFLWeights) -> tuple[Problem, XVFL]:
    problem = make_problem([NUMBERS, MIXED, NUMBERS], ROWS, seed=4)
    for net in problem.parties:
        net.eval()
    if not concat:
        return problem, XVFL(problem.head, weights)
    blocks = ConcatHead(make_head(3, seed=1), 3)
    return problem, XVFL(blocks, replace(weights, aggregation="concat"))


def alone(problem: Problem, self_completion: bool) -> list[list[Tensor]]:
    """Embed each row as a party by itself would: completed from its own embedding, or not."""
    parties, made = problem.twin_parties(), embed_rows(problem)
    for row, E in zip(problem.twin_rows(), made, strict=True):
        for i, party in enumerate(parties):
            if self_completion and not row.full[i]:
                E[i] = twin.self_completed(party, row.x[i], row.o[i])[2]
    return made


@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize("own", [0.0, 1.0])
def test_without_cross_completion_who_saw_anything_decides(own: float, concat: bool) -> None:
    weights = XVFLWeights(0.1, 0.1, own, cross_completion=False)
    problem, method = predicting(concat, weights)
    assert method.modes == {"local", "collaborative", "peers"}
    decided = {m: method.logits(problem.federation(), problem.rows, m, 0) for m in method.modes}
    best = alone(problem, own > 0)
    for b, (row, plain) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        members: dict[str, dict[int, Tensor]] = {
            "collaborative": {i: best[b][i] for i in range(3) if any(row.o[i])},
            "local": {0: best[b][0]},
            "peers": {i: plain[i] for i in (1, 2) if row.full[i]},
        }
        for mode, parts in members.items():
            if parts:
                expected = method.heads(twin.joined(parts, 3, concat))
                torch.testing.assert_close(decided[mode][b], expected)


def test_side_by_side_everybody_keeps_its_place() -> None:
    problem, method = predicting(True, XVFLWeights(0.1, 0.1, 1.0))
    together = method.logits(problem.federation(), problem.rows, "collaborative", 0)
    assisted = method.logits(problem.federation(), problem.rows, "assisted", 1)
    parties, best = problem.twin_parties(), alone(problem, True)
    for b, (row, E) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        kept = replace(row, full=[False] * 3) if all(row.full) else row
        E_ = twin.cross_completed(parties, kept, E)
        made = both_ways(row, best[b], E_)
        blocks = twin.joined(dict(enumerate(made)), 3, concat=True)
        torch.testing.assert_close(together[b], method.heads(blocks))
        helpers = row.full if any(row.full) else [any(part) for part in row.o]
        peers = {i: E[i] for i in (0, 2) if helpers[i]}
        one = {1: made[1], **({} if row.full[1] else peers)} if peers else {1: best[b][1]}
        torch.testing.assert_close(assisted[b], method.heads(twin.joined(one, 3, concat=True)))


def both_ways(row: twin.Row, own: list[Tensor], cross: list[Tensor | None]) -> list[Tensor]:
    """Average what a party completes from its peers and from itself, where it has both."""
    made = []
    for full, seen, alone_, helped in zip(row.full, row.o, own, cross, strict=True):
        if full or helped is None:
            made.append(alone_)
        else:
            made.append((alone_ + helped) / 2 if any(seen) else helped)
    return made


def test_assisted_decides_with_the_mean_of_its_completion_and_its_cue() -> None:
    problem, method = predicting(False, XVFLWeights(0.1, 0.1, 1.0))
    assisted = method.logits(problem.federation(), problem.rows, "assisted", 1)
    parties, best = problem.twin_parties(), alone(problem, True)
    for b, (row, E) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        helpers = row.full if any(row.full) else [any(part) for part in row.o]
        peers = [E[i] for i in (0, 2) if helpers[i]]
        expected = best[b][1]
        if peers and not row.full[1]:
            made = both_ways(row, best[b], twin.cross_completed(parties, row, E))
            expected = twin.mean([made[1], *peers])
        torch.testing.assert_close(assisted[b], method.heads(expected))


def test_assisted_without_self_completion_is_the_papers() -> None:
    problem, method = predicting(False, XVFLWeights(0.1, 0.1))
    assisted = method.logits(problem.federation(), problem.rows, "assisted", 1)
    parties = problem.twin_parties()
    for b, (row, E) in enumerate(zip(problem.twin_rows(), embed_rows(problem), strict=True)):
        if not row.full[1] and any(row.full):
            helped = twin.cross_completed(parties, row, E)[1]
            assert helped is not None
            torch.testing.assert_close(assisted[b], method.heads(helped))


@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative", "peers"])
def test_D7_side_by_side_an_unreachable_party_leaves_zeros(mode: Any) -> None:
    problem, method = predicting(True, XVFLWeights(0.1, 0.1, 1.0))
    two = [0, 2]
    pair = XVFL(problem.head, method.weights)
    pair.heads = (
        lambda x: method.heads(  # type: ignore[assignment]
            torch.cat([x[..., :D], torch.zeros_like(x[..., :D]), x[..., D:]], -1)
        )
    )
    rows, federation = problem.rows.select_parties(two), problem.federation().select_parties(two)
    for party in (0, 1):
        found = method.select_parties(two).logits(federation, rows, mode, party)
        torch.testing.assert_close(found, pair.logits(federation, rows, mode, party))


def test_switches_come_from_the_configuration() -> None:
    layouts, net = {"a": NUMBERS, "b": MIXED}, NetConfig(embedding_dim=4, hidden_dim=6)
    loss = LossConfig(
        lambda1=0.0,
        lambda2=0.0,
        cross_completion=False,
        aggregation="concat",
        n_masks=3,
        guidance=0.2,
    )
    options = resolved(net, loss)
    method = build_method(
        len(layouts), Classification(range(CLASSES)), False, options.net, options.loss, [0]
    )
    assert isinstance(method, XVFL) and isinstance(method.heads, ConcatHead)
    assert method.weights == XVFLWeights(0.0, 0.0, 1.0, False, False, False, "concat", 3, 0.2)


def test_answers_say_what_was_completed_and_from_whom() -> None:
    bank, shop, y = small_tables.make_tables()
    both = {"bank": bank, "shop": shop}
    gaps = bank.isna().any(axis=1)
    for own, completed in ((1.0, True), (0.0, False)):
        model = XVFLClassifier(
            loss={"cross_completion": False, "self_completion": own},
            full_threshold=1.0,
            epochs=1,
            embedding_dim=4,
            hidden_dim=6,
        ).fit(both, y)
        alone = model.predict_table({"bank": bank}, mode="local", party="bank")
        assert ((alone["completed"] > 0) == (gaps & completed)).all()
        absent = model.predict_table(both, mode="collaborative").drop(shop.index)
        assert ((absent["completed"] > 0) == (gaps.loc[absent.index] & completed)).all()
        assert model.complete(both, party="bank").notna().all(axis=None), "nets fill no cells"
