"""LASER-VFL: its sampled loss is the sum over all subsets, on average; learning; refusals."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests import twin
from tests.problems import CLASSES, NUMBERS, D, Problem, make_problem, sampled_mask, smooth_net
from xvfl import XVFLClassifier
from xvfl.errors import ModeError
from xvfl.methods.laser import Laser, nested_subsets, subset_weights
from xvfl.primitives.random import CounterRNG

METHODS = ["laser", "laser+mask"]


def subsets_with(party: int, observed: list[int]) -> list[tuple[int, ...]]:
    """List every subset of the observed parties that holds the party."""
    return [
        chosen
        for size in range(1, len(observed) + 1)
        for chosen in itertools.combinations(observed, size)
        if party in chosen
    ]


def four_heads() -> nn.ModuleList:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.ModuleList([smooth_net(D, CLASSES).double() for _ in range(4)])


def all_subsets(problem: Problem, heads: nn.ModuleList, masks: list[list[list[bool]]]) -> Tensor:
    """Average over the rows Σ_i Σ_{J ∋ i} ℓ(g_i(mean of E over J), y) / |J|, J within the observed.

    Each of the C(|O|−1, s−1) subsets of size s is drawn with the inverse of that probability.
    """
    terms = []
    for row, mask in zip(problem.twin_rows(), masks, strict=True):
        observed = [i for i, o in enumerate(row.o) if any(o)]
        parties = problem.twin_parties()
        E = [twin.embed(p, x, o) for p, x, o in zip(parties, row.x, mask, strict=True)]
        for i in observed:
            for J in subsets_with(i, observed):
                decided = heads[i](twin.mean([E[j] for j in J]))
                terms.append(row.weight * twin.cross_entropy(decided, row.y) / len(J))
    return twin.total(terms) / len(problem.rows)


def test_subset_weights_by_hand() -> None:
    seen = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]]).bool()
    expected = [[1, 3 / 2, 3 / 3, 1 / 4], [1, 2 / 2, 1 / 3, 0], [1, 1 / 2, 0, 0], [1, 0, 0, 0]]
    torch.testing.assert_close(subset_weights(seen), torch.tensor(expected, dtype=torch.float64))


def numbers(seed: int, rows: int, parties: int) -> Tensor:
    drawn = CounterRNG([seed], "subsets").uniform(0, rows, parties**2, torch.device("cpu"))
    return drawn.view(rows, parties, parties)


SEEN = st.lists(st.booleans(), min_size=2, max_size=5).filter(any)


@given(SEEN, st.data(), st.integers(0, 2**20))
def test_subsets_are_nested_and_hold_the_party(
    seen: list[bool], data: st.DataObject, seed: int
) -> None:
    observed = [i for i, on in enumerate(seen) if on]
    party = data.draw(st.sampled_from(observed))
    drawn = nested_subsets(torch.tensor([seen] * 8), numbers(seed, 8, len(seen)))[:, party]
    for of_row in drawn.tolist():
        members = [{i for i, on in enumerate(mask) if on} for mask in of_row]
        assert [len(each) for each in members] == [
            min(size, len(observed)) for size in range(1, len(seen) + 1)
        ]
        assert members[0] == {party} and members[-1] == set(observed)
        assert all(a <= b for a, b in itertools.pairwise(members))


@pytest.mark.parametrize("seen", [[True] * 4, [True, True, False, True, True]])
@pytest.mark.parametrize("party", [0, 3])
def test_subsets_of_each_size_are_uniform(seen: list[bool], party: int) -> None:
    draws = 3000
    drawn = nested_subsets(torch.tensor([seen] * draws), numbers(3, draws, len(seen)))[:, party]
    observed = [i for i, on in enumerate(seen) if on]
    for size in range(1, len(observed) + 1):
        counts = Counter(tuple(mask.nonzero().flatten().tolist()) for mask in drawn[:, size - 1])
        possible = [J for J in subsets_with(party, observed) if len(J) == size]
        assert sorted(counts) == possible
        p = 1 / math.comb(len(observed) - 1, size - 1)
        spread = math.sqrt(draws * p * (1 - p))
        assert all(abs(count - draws * p) <= 5 * spread for count in counts.values())


@pytest.mark.parametrize("holding", ["FFFF", "FPF-", "-P-G", "-E-P"])
def test_the_expected_loss_is_the_sum_over_all_subsets(holding: str) -> None:
    draws = 1024
    problem = make_problem([NUMBERS] * 4, [holding], seed=3)
    heads = four_heads()
    expected = all_subsets(problem, heads, [problem.twin_rows()[0].o]).item()
    many = problem.rows.take(torch.zeros(draws, dtype=torch.long))
    method = Laser(heads, mask_inputs=False, seeds=[0])
    sums = torch.stack(
        [
            method.loss(problem.federation(), replace(many, step=step))["subsets"]
            for step in range(8)
        ]
    ).detach()
    error = sums.std().item() / math.sqrt(len(sums))
    assert abs(sums.mean().item() - expected) < max(6 * error, 1e-6 * expected)
    assert error < 0.01 * expected


@pytest.mark.parametrize("masks", [False, True])
def test_two_parties_are_summed_exactly(masks: bool) -> None:
    """With two parties there is one subset of each size, so nothing is left to chance."""
    problem = make_problem([NUMBERS] * 2, ["FF", "FP", "P-", "-F", "PE", "GP"], seed=1)
    heads = four_heads()[:2]
    given_ = [row.o for row in problem.twin_rows()]
    if masks:
        drawn = []
        for i, table in enumerate(problem.tables):
            observed = table.take(problem.rows.handles[:, i]).observed
            drawn.append(sampled_mask(observed, f"p{i}", problem.rows.step).tolist())
        given_ = [list(row) for row in zip(*drawn, strict=True)]
    expected = all_subsets(problem, heads, given_)
    found = Laser(heads, masks, seeds=[0]).loss(problem.federation(), problem.rows)["subsets"]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found.backward()
    gradients = problem.gradients()
    expected.backward()
    torch.testing.assert_close(gradients, problem.gradients(), rtol=1e-12, atol=1e-12)


def test_prediction_uses_the_observed_parties_and_their_heads() -> None:
    problem = make_problem([NUMBERS] * 4, ["FP-F"], seed=2)
    heads = four_heads()
    method = Laser(heads, mask_inputs=False, seeds=[0])
    for net in problem.parties:
        net.eval()
    E = problem.federation().embed(problem.rows, ["plain"])[0, :, 0]
    local = method.logits(problem.federation(), problem.rows, "local", 1)
    torch.testing.assert_close(local[0], heads[1](E[1]))
    mean = (E[0] + E[1] + E[3]) / 3
    expected = sum(heads[i](mean).softmax(-1) for i in (0, 1, 3)) / 3
    joint = method.logits(problem.federation(), problem.rows, "collaborative", 0)
    torch.testing.assert_close(joint[0].softmax(-1), expected)


def parties(k: int) -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Draw parties that each know the label."""
    rng = np.random.default_rng(0)
    index = pd.Index([f"r{i}" for i in range(80)], name="id")
    y = pd.Series([0, 1] * 40, index=index)
    signs = [1, -1, 1]
    sources = {
        f"p{i}": pd.DataFrame({"a": signs[i] * y + 0.1 * rng.random(80), "b": rng.random(80)})
        for i in range(k)
    }
    return {name: table.set_index(index) for name, table in sources.items()}, y


def classifier(method: str, epochs: int = 1) -> XVFLClassifier:
    return XVFLClassifier(
        members=1,
        method=method,
        epochs=epochs,
        batch_size=16,
        embedding_dim=8,
        hidden_dim=16,
        learning_rate=1e-2,
        device="cpu",
        verbose=False,
    )


@pytest.mark.parametrize("method", METHODS)
def test_assistance_is_refused(method: str) -> None:
    sources, y = parties(2)
    fitted = classifier(method).fit(sources, y)
    with pytest.raises(
        ModeError, match="cannot predict in mode 'assisted'; supported: local, coll"
    ):
        fitted.predict(sources, mode="assisted", party="p0")
    for mode, party in (("local", "p0"), ("collaborative", None)):
        assert len(fitted.predict(sources, mode=mode, party=party)) == 80


def test_every_party_predicts_alone_with_its_own_head() -> None:
    sources, y = parties(2)
    model = classifier("laser").fit(sources, y).model_
    said = model.predict({"p1": sources["p1"]}, "local", "p1")
    encoded = model.encoders["p1"].encode(sources["p1"])
    values, observed = torch.from_numpy(encoded.values), torch.from_numpy(encoded.observed)
    out = model.method.heads[1](model.parties["p1"].embed(values, observed)).double()
    expected = torch.softmax(out / model.temperatures.get("local/p1", 1.0), 1)
    np.testing.assert_allclose(said.values, expected.detach().numpy(), atol=1e-6)


def test_two_of_three_parties_predict_together() -> None:
    sources, y = parties(3)
    fitted = classifier("laser", epochs=10).fit(sources, y)
    two = {name: sources[name] for name in ("p1", "p2")}
    assert fitted.score(two, y, mode="collaborative") == 1.0
