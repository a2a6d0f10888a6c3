"""Standalone: every party by itself, on the rows it holds in full."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests import twin
from tests.problems import CLASSES, MIXED, NUMBERS, D, make_problem, smooth_net
from xvfl import XVFLClassifier
from xvfl.errors import ModeError
from xvfl.methods.standalone import Standalone


def two_heads() -> nn.ModuleList:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.ModuleList([smooth_net(D, CLASSES).double() for _ in range(2)])


def test_the_loss_counts_each_partys_full_rows() -> None:
    problem = make_problem([NUMBERS, MIXED], ["FF", "FP", "PF", "G-", "EF", "PP"], seed=1)
    heads = two_heads()
    terms = []
    for row in problem.twin_rows():
        for i, party in enumerate(problem.twin_parties()):
            if row.full[i]:
                out = heads[i](twin.embed(party, row.x[i], row.o[i]))
                terms.append(row.weight * twin.cross_entropy(out, row.y))
    expected = twin.total(terms) / 6
    found = Standalone(heads).loss(problem.federation(), problem.rows)
    assert list(found) == ["own"]
    torch.testing.assert_close(found["own"], expected, rtol=1e-12, atol=1e-12)
    found["own"].backward()
    fast = problem.gradients()
    expected.backward()
    torch.testing.assert_close(fast, problem.gradients(), rtol=1e-12, atol=1e-12)


def test_no_party_learns_from_another() -> None:
    problem = make_problem([NUMBERS, NUMBERS], ["F-", "FP", "FE"], seed=1)
    heads = two_heads()
    Standalone(heads).loss(problem.federation(), problem.rows)["own"].backward()
    moved = {name.split(".")[0] for name, gradient in problem.gradients().items() if gradient.any()}
    assert moved == {"p0"}
    assert all(p.grad is not None and not p.grad.any() for p in heads[1].parameters())


def test_gaps_are_zero_filled_at_prediction() -> None:
    problem = make_problem([NUMBERS, NUMBERS], ["PF", "FP", "-F"], seed=1)
    heads = two_heads()
    out = Standalone(heads).logits(problem.federation(), problem.rows, "local", 0)
    for b, row in enumerate(problem.twin_rows()):
        alone = heads[0](twin.embed(problem.twin_parties()[0], row.x[0], row.o[0]))
        torch.testing.assert_close(out[b], alone, rtol=1e-12, atol=1e-12)


def fitted() -> tuple[XVFLClassifier, dict[str, pd.DataFrame], pd.Series]:
    """Train on two parties that each know the label."""
    rng = np.random.default_rng(0)
    index = pd.Index([f"r{i}" for i in range(80)], name="id")
    y = pd.Series([0, 1] * 40, index=index)
    noise = rng.random((80, 2))
    bank = pd.DataFrame({"a": y + 0.1 * noise[:, 0], "b": noise[:, 1]}, index=index)
    shop = pd.DataFrame({"c": noise[:, 0], "d": 0.1 * noise[:, 1] - y}, index=index)
    classifier = XVFLClassifier(
        members=1,
        method="standalone",
        epochs=1,
        batch_size=16,
        embedding_dim=8,
        hidden_dim=16,
        learning_rate=1e-2,
        device="cpu",
        verbose=False,
    )
    sources = {"bank": bank, "shop": shop}
    return classifier.fit(sources, y), sources, y


@pytest.mark.parametrize("mode", ["collaborative", "assisted"])
def test_whatever_needs_others_is_refused(mode: str) -> None:
    classifier, sources, _ = fitted()
    with pytest.raises(ModeError, match=f"cannot predict in mode '{mode}'; supported: local$"):
        classifier.predict(sources, mode=mode, party="bank")


def test_all_tables_without_a_party_are_refused() -> None:
    classifier, sources, _ = fitted()
    with pytest.raises(ModeError):
        classifier.predict(sources)


@pytest.mark.parametrize(("party", "at"), [("bank", 0), ("shop", 1)])
def test_every_party_predicts_with_its_own_head(party: str, at: int) -> None:
    classifier, sources, _ = fitted()
    model = classifier.model_
    said = model.predict(sources, "local", party)
    encoded = model.encoders[party].encode(sources[party])
    values, observed = torch.from_numpy(encoded.values), torch.from_numpy(encoded.observed)
    out = model.method.heads[at](model.parties[party].embed(values, observed)).double()
    expected = torch.softmax(out / model.temperatures.get(f"local/{party}", 1.0), 1)
    np.testing.assert_allclose(said.values, expected.detach().numpy(), atol=1e-6)
