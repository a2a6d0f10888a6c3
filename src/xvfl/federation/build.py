"""Build the nets of a run: one `PartyNet` per party, one method with its heads."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from xvfl import nets
from xvfl.config import LossConfig, NetConfig
from xvfl.errors import InputError
from xvfl.federation.party import PartyNet
from xvfl.layout import Layout
from xvfl.methods import Method, Parts, make_method, recipe
from xvfl.nets import Build
from xvfl.streams import seed_modules

COORDINATOR = "coordinator"
"""Who holds the heads; no party may have this name."""

CPU = torch.device("cpu")


def widths(layouts: Mapping[str, Layout], config: NetConfig) -> tuple[int, int]:
    """Choose embedding and hidden width by data kind where the configuration leaves it open."""
    image = any(layout.image is not None for layout in layouts.values())
    return config.embedding or (256 if image else 64), config.hidden or (256 if image else 128)


def build_parties(
    layouts: Mapping[str, Layout],
    config: NetConfig,
    loss: LossConfig,
    seed: int,
    bottoms: Mapping[str, Build] | None = None,
    completers: Mapping[str, Build] | None = None,
) -> dict[str, PartyNet]:
    """Build every party's net from its own random stream; a user's own nets take precedence."""
    d, hidden = widths(layouts, config)
    needs = recipe(loss.method)
    built = {}
    for name, layout in layouts.items():
        seed_modules(CPU, seed, name, "init")
        own = (bottoms or {}).get(name)
        each = [
            own_net(own, layout, d) or nets.bottom(layout, d, hidden, config.blocks)
            for _ in range(needs.branches)
        ]
        bottom = each[0] if needs.branches == 1 else nets.Branches(each)
        if not needs.completes:
            built[name] = PartyNet(layout, bottom, nets.NoCompleter())
            continue
        completer = own_net((completers or {}).get(name), layout, d)
        built[name] = PartyNet(layout, bottom, completer or nets.completer(layout, d, hidden))
    return built


def build_method(
    layouts: Mapping[str, Layout],
    classes: int,
    config: NetConfig,
    loss: LossConfig,
    seed: int,
    head: nn.Module | None = None,
) -> Method:
    """Build the method and its heads."""
    d, hidden = widths(layouts, config)
    image = any(layout.image is not None for layout in layouts.values())
    seed_modules(CPU, seed, COORDINATOR, "init")

    def fresh(width: int) -> nn.Module:
        if head is None:
            return nets.head(width, hidden, classes, image)
        if width != d:
            raise InputError(
                f"own nets: a head of your own takes one embedding, and {loss.method} needs one "
                "over several side by side; leave `head` out"
            )
        return copy.deepcopy(head)

    return make_method(loss, Parts(fresh, len(layouts), d, seed))


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
