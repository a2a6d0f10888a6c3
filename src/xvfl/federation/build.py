"""Build the nets of a run: one `PartyNet` per party, one method with its heads."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from xvfl import nets
from xvfl.config import COORDINATOR, LossConfig, NetConfig
from xvfl.errors import InputError
from xvfl.methods import Method, MethodParts, make_method, method_spec
from xvfl.nets import Build
from xvfl.nets.party_net import PartyNet
from xvfl.nets.stacked import stack
from xvfl.primitives.layout import Layout
from xvfl.primitives.random import seed_modules

CPU = torch.device("cpu")


def widths(layouts: Mapping[str, Layout], config: NetConfig) -> tuple[int, int]:
    """Choose embedding and hidden width by data kind where the configuration leaves it open."""
    image = any(layout.image is not None for layout in layouts.values())
    return config.embedding_dim or (256 if image else 64), config.hidden_dim or (
        256 if image else 128
    )


def build_parties(
    layouts: Mapping[str, Layout],
    config: NetConfig,
    loss: LossConfig,
    seeds: Sequence[int],
    bottoms: Mapping[str, Build] | None = None,
    completers: Mapping[str, Build] | None = None,
) -> dict[str, PartyNet]:
    """Build every party's net from its own random stream; a user's own nets take precedence.

    Several seeds make one stacked net for as many runs.
    """
    d, hidden = widths(layouts, config)
    needs = method_spec(loss.method)

    def one(name: str, layout: Layout, seed: int) -> PartyNet:
        seed_modules(CPU, seed, name, "init")
        own = (bottoms or {}).get(name)
        each = [
            own_net(own, layout, d)
            or nets.bottom(layout, d, hidden, config.n_blocks, config.base_channels)
            for _ in range(needs.branches)
        ]
        bottom = each[0] if needs.branches == 1 else nets.ParallelBottoms(each)
        if not needs.completes:
            return PartyNet(layout, bottom, nets.NoCompleter())
        completer = own_net((completers or {}).get(name), layout, d)
        made = completer or nets.completer(layout, d, hidden, config.base_channels)
        return PartyNet(layout, bottom, made)

    return {
        name: cast(PartyNet, stack([one(name, layout, seed) for seed in seeds]))
        for name, layout in layouts.items()
    }


def build_method(
    layouts: Mapping[str, Layout],
    classes: int,
    config: NetConfig,
    loss: LossConfig,
    seeds: Sequence[int],
    head: nn.Module | None = None,
) -> Method:
    """Build the method and its heads; several seeds make stacked heads for as many runs."""
    d, hidden = widths(layouts, config)
    image = any(layout.image is not None for layout in layouts.values())
    number = itertools.count()

    def one(at: int, width: int, seed: int) -> nn.Module:
        seed_modules(CPU, seed, COORDINATOR, "init", at)
        if head is None:
            return nets.head(width, hidden, classes, image)
        if width != d:
            raise InputError(
                f"own nets: a head of your own takes one embedding, and {loss.method} needs one "
                "over several side by side; leave `head` out"
            )
        return copy.deepcopy(head)

    def fresh(width: int) -> nn.Module:
        at = next(number)
        return stack([one(at, width, seed) for seed in seeds])

    return make_method(loss, MethodParts(fresh, len(layouts), d, tuple(seeds)))


def own_net(given: Build | None, *arguments: Any) -> nn.Module | None:
    """Take a user's own net: a copy of a module, or what a function builds."""
    if given is None or isinstance(given, nn.Module):
        return copy.deepcopy(given)
    built = given(*arguments)
    if not isinstance(built, nn.Module):
        raise InputError(
            f"own nets: expected a builder to give an nn.Module, got {type(built).__name__}"
        )
    return built
