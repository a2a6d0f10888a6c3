"""Only the pairs a term looks at are computed, and nothing else changes."""

import pytest
import torch
from torch import Tensor, nn

from tests.federation.split_helpers import make_federation, make_small_method
from tests.problems import IMAGE, METHODS, MIXED, NUMBERS, SEED, Problem
from xvfl import nets
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.nets.row_wise import apply_to_rows, row_wise
from xvfl.primitives.layout import Layout

CASES: list[tuple[str, int, dict[str, object]]] = [
    (name, k, {}) for name in METHODS for k in (2, 3, 4)
]
CASES += [
    ("xvfl+", 3, {"cross_completion": False}),
    ("xvfl+", 3, {"aggregation": "concat"}),
    ("xvfl", 3, {"cross_completion": False, "aggregation": "concat"}),
]


def learned(
    made: Problem, name: str, weight: float, picks: bool, **more: object
) -> tuple[dict[str, Tensor], int]:
    """Give every gradient of a step, and how many rows went through the bottoms."""
    method, rows = make_small_method(made, name, **more), []
    for net in made.parties:
        if picks:
            net.bottom = net.bottom[1]
        net.bottom.register_forward_hook(lambda net, given, out: rows.append(len(given[0])))
    each = zip(made.names, made.parties, made.tables, strict=True)
    fused = FusedFederation([PartyWorker(*of_party, [SEED], weight) for of_party in each])
    fused.train(True)
    fused.backward(sum(method.loss(fused, made.rows).values()))
    holders = dict(zip(made.names, made.parties, strict=True)) | {"heads": method.heads}
    found = {
        f"{holder}.{key}".replace("bottom.1.", "bottom."): torch.zeros_like(weight)
        if weight.grad is None
        else weight.grad
        for holder, net in holders.items()
        for key, weight in net.named_parameters()
    }
    return found, sum(rows)


@pytest.mark.parametrize(("name", "k", "more"), CASES)
def test_leaving_out_what_no_term_looks_at_changes_nothing_but_the_work(
    name: str, k: int, more: dict[str, object]
) -> None:
    weight = 0.7 if name == "xvfl+" else 0.0
    everything, all_rows = learned(make_federation(k), name, weight, False, **more)
    picked, some_rows = learned(make_federation(k), name, weight, True, **more)
    assert picked.keys() == everything.keys()
    for key, gradient in everything.items():
        torch.testing.assert_close(picked[key], gradient, rtol=1e-12, atol=1e-12)
    assert some_rows < all_rows


def test_the_paper_shape_computes_no_pair_too_many() -> None:
    made = make_federation(2)
    _, rows = learned(made, "xvfl", 0.0, True)
    full, seen = made.rows.full, made.rows.seen
    aligned = full.all(1)
    plain = torch.where(full.any(1, keepdim=True), full, seen).sum()
    someone_else = torch.where(full.any(1, keepdim=True), full, seen).flip(1)
    completed = 2 * aligned.sum() + (~full & someone_else)[~aligned].sum()
    assert rows == int(plain + completed)


def test_rows_that_are_not_wanted_are_zeros_without_gradients() -> None:
    net, x = nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    wanted = torch.tensor([[True, False], [False, True]])
    out = apply_to_rows(net, wanted, x)
    assert torch.equal(out[[0, 3]], net(x[[0, 3]])) and not out[[1, 2]].any()
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient[[0, 3]].any(1).all() and not gradient[[1, 2]].any()
    assert torch.equal(apply_to_rows(net, None, x), net(x))
    assert torch.equal(apply_to_rows(net, torch.ones(4, dtype=torch.bool), x), net(x))
    assert apply_to_rows(net, torch.zeros(4, dtype=torch.bool), x).shape == (4, 2)


@pytest.mark.parametrize("layout", [NUMBERS, MIXED, IMAGE])
def test_the_default_nets_work_row_by_row(layout: Layout) -> None:
    assert row_wise(nets.bottom(layout, 8, 8, 2)) and row_wise(nets.completer(layout, 8, 8))
    assert row_wise(nets.head(8, 8, 2, image=layout.image is not None))


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(3), nn.Softmax(0)])
def test_nets_whose_rows_bear_on_each_other_see_every_row(layer: nn.Module) -> None:
    assert row_wise(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    assert not row_wise(nn.Sequential(nn.Linear(3, 3), layer))
