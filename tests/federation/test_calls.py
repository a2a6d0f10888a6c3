"""Parties of one shape in one call compute what each computes alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.federation.split_helpers import HOLDINGS, method_of
from tests.problems import MIXED, NUMBERS, make_problem
from xvfl.nets import completer, joined
from xvfl.nets.joined import JoinedLinear, join
from xvfl.primitives.layout import Feature, Layout


def gradients(name: str, k: int, weight: float) -> dict[str, Tensor]:
    """Give the loss's terms and every gradient of a step."""
    made = make_problem([NUMBERS] * k, [each[:k] for each in HOLDINGS])
    method, federation = method_of(made, name), made.federation(weight)
    terms = method.loss(federation, made.rows)
    federation.backward(sum(terms.values()))
    heads = {key: each.grad for key, each in method.heads.named_parameters()}
    return {**terms, **made.gradients(), **{key: g for key, g in heads.items() if g is not None}}


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", ["xvfl", "xvfl+", "vanilla", "standalone", "laser", "laser+mask"])
def test_joined_nets_compute_what_each_computes(
    name: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = 0.7 if name == "xvfl+" else 0.0
    together = gradients(name, k, weight)
    monkeypatch.setattr(joined, "MOST_WEIGHTS", 0)
    for key, each in gradients(name, k, weight).items():
        torch.testing.assert_close(together[key], each, rtol=1e-12, atol=1e-12)


def small(width: int = 3, dropout: float | None = None) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 2))
    return net if dropout is None else net.append(nn.Dropout(dropout))


def test_a_joined_net_has_no_weights_of_its_own_and_follows_each_partys() -> None:
    nets = [small(), small(), small()]
    one = join(nets)
    assert one is not None and not list(one.parameters())
    assert sum(isinstance(each, JoinedLinear) for each in one.modules()) == 2
    x = torch.randn(3, 5, 3)
    for _ in range(2):
        expected = torch.stack([net(rows) for net, rows in zip(nets, x, strict=True)])
        torch.testing.assert_close(one(x.flatten(0, 1)).view(3, 5, 2), expected)
        with torch.no_grad():
            nets[1][0].weight.mul_(2)


def watched(layer: nn.Module) -> nn.Module:
    layer.register_forward_pre_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    "nets",
    [
        [small()],
        [small(), small(4)],
        [small(dropout=0.1), small(dropout=0.1)],
        [small(), small().double()],
        [nn.Sequential(nn.Linear(400, 400)), nn.Sequential(nn.Linear(400, 400))],
        [nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3)],
        [nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)],
        [small(), nn.Sequential(*map(watched, small()))],
    ],
    ids=["one", "shapes", "dropout", "precisions", "large", "images", "no bias", "hooks"],
)
def test_nets_that_cannot_be_joined_or_are_too_large_stay_apart(nets: list[nn.Module]) -> None:
    assert join(nets) is None


def test_completers_of_equal_widths_and_different_kinds_stay_apart() -> None:
    kinds = [(Feature("a", "category", 2), Feature("b", "numeric", 1))]
    kinds += [(Feature("a", "numeric", 1), Feature("b", "category", 2))]
    made = [completer(Layout(features), 4, 6) for features in kinds]
    assert join(made) is None and join([made[0], copy.deepcopy(made[0])]) is not None


def test_parties_of_different_layouts_stay_apart() -> None:
    made = make_problem([NUMBERS, MIXED], ["FF"])
    assert join([net.bottom for net in made.parties]) is None


def test_the_self_view_alone_is_what_it_is_beside_others() -> None:
    made = make_problem([NUMBERS] * 2, [each[:2] for each in HOLDINGS])
    federation = made.federation(1.0)
    federation.train(False)
    plain, own = federation.embed(made.rows, ["plain", "self"]).unbind(2)
    assert torch.equal(federation.embed(made.rows, ["self"])[:, :, 0], own)
    assert not torch.equal(own, plain)
