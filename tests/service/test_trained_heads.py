"""Heads of a finished run, as the start of another one."""

import torch
from torch import nn

from xvfl.nets import AdaptedHead
from xvfl.service.trained_heads import place_adapters


def adapted_head(seed: int, n_parties: int) -> AdaptedHead:
    torch.manual_seed(seed)
    return AdaptedHead(nn.Linear(2, 2), [nn.Linear(3, 2) for _ in range(n_parties)])


def test_adapters_are_placed_by_the_names_of_the_parties() -> None:
    earlier, heads = adapted_head(0, 2), adapted_head(1, 3)
    first = heads.adapters[1].weight.detach().clone()  # type: ignore[union-attr]
    placed = place_adapters(
        heads, earlier.state_dict(), ["bank", "shop"], ["shop", "clinic", "bank"]
    )
    heads.load_state_dict(placed)
    assert torch.equal(heads.adapters[0].weight, earlier.adapters[1].weight)  # type: ignore[arg-type]
    assert torch.equal(heads.adapters[2].bias, earlier.adapters[0].bias)  # type: ignore[arg-type]
    assert torch.equal(heads.adapters[1].weight, first)  # type: ignore[arg-type]
    assert torch.equal(heads.head.weight, earlier.head.weight)  # type: ignore[arg-type]


def test_other_heads_are_unchanged() -> None:
    saved = nn.Linear(2, 2).state_dict()
    assert place_adapters(nn.Linear(2, 2), saved, ["bank"], ["bank", "shop"]) == saved
