"""Build the nets of a run: one `PartyNet` per party, one method with its heads."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from xvfl import nets
from xvfl.config import COORDINATOR, NO_PROTECTION, LossConfig, NetConfig, PrivacyConfig
from xvfl.errors import InputError
from xvfl.methods import Method, MethodParts, method_spec, require_one_branch, require_task
from xvfl.methods.members import Members, member_seeds
from xvfl.nets import NetOrBuilder
from xvfl.nets.party_net import PartyNet
from xvfl.nets.stacked import stack
from xvfl.nets.whitening import Whitening
from xvfl.options import check_members, require_resolved
from xvfl.primitives.layout import Layout, any_image
from xvfl.primitives.random import seed_modules
from xvfl.primitives.task import Task

CPU = torch.device("cpu")
ADAPTED_WIDTHS = {False: 64, True: 256}
"""Largest width of adapted embeddings, of tables and if a party has images."""


def build_parties(
    layouts: Mapping[str, Layout],
    config: NetConfig,
    loss: LossConfig,
    seeds: Sequence[int],
    bottoms: Mapping[str, NetOrBuilder] | None = None,
    completers: Mapping[str, NetOrBuilder] | None = None,
    privacy: PrivacyConfig = NO_PROTECTION,
    shared_inputs: bool = True,
) -> dict[str, PartyNet]:
    """Build the net of every party; each is initialized from its own random stream.

    Custom `bottoms` and `completers` replace the defaults. With several seeds, each net is a stack
    of the nets of as many runs, with all their members. Unless `shared_inputs` is False, members
    share masks, embeddings of numbers and vectors of hashed categories, so that rows are encoded
    once for all of them. Bounded embeddings are in [-1, 1]. Bottoms that are trained alone use the
    bins of all numbers, others those of numbers with frequent values: with labels, more inputs
    overfit. Others also use differences of correlated numbers. Of `loss`, only the method matters.
    """
    require_resolved(config, privacy)
    check_members(config, any_image(layouts), bool(bottoms or completers))
    d, hidden = config.embedding_dim, config.hidden_dim
    spec = method_spec(loss.method)

    def build_one(name: str, layout: Layout, seed: int) -> PartyNet:
        seed_modules(CPU, seed, name, "init")
        custom = (bottoms or {}).get(name)
        branches = [
            custom_net(custom, layout, d)
            or nets.bottom(
                replace(layout, differences=())
                if privacy.trains_encoders
                else layout.only_bins_with_flags(),
                d,
                hidden,
                config.n_blocks,
                config.base_channels,
                config.number_embedding_dim or 0,
                config.skip_rank or 0,
            )
            for _ in range(spec.branches)
        ]
        bottom = branches[0] if spec.branches == 1 else nets.ParallelBottoms(branches)
        if privacy.bounded:
            whitening = [Whitening(d)] if privacy.trains_encoders else []
            bottom = nn.Sequential(bottom, nn.Tanh(), *whitening)
        if not spec.completes:
            return PartyNet(layout, bottom, nets.NoCompleter())
        completer = custom_net((completers or {}).get(name), layout, d)
        sees = config.seeing_completers
        if sees is None:
            sees = layout.image is not None
        sees = sees and loss.method == "xvfl+"
        default = completer or nets.completer(layout, d, hidden, config.base_channels, sees)
        return PartyNet(layout, bottom, default)

    members = member_seeds(seeds, config.members)
    sharing = config.members if shared_inputs else 1
    stacks = {
        name: cast(PartyNet, stack([build_one(name, layout, seed) for seed in members], sharing))
        for name, layout in layouts.items()
    }
    for net in stacks.values():
        net.runs, net.members = len(members) // sharing, sharing
    return stacks


def shares_inputs(weights: Mapping[str, Tensor]) -> bool:
    """Tell whether the members of a party's stored net share inputs; in version 0.3 none did."""
    inputs = [
        each
        for name, each in weights.items()
        if name.endswith("frequencies") or name.startswith("vectors")
    ]
    return all(len(each) == 1 for each in inputs)


def build_method(
    n_parties: int,
    task: Task,
    image: bool,
    config: NetConfig,
    loss: LossConfig,
    seeds: Sequence[int],
    privacy: PrivacyConfig = NO_PROTECTION,
    widths: Sequence[int] | None = None,
    head: nn.Module | None = None,
) -> Method:
    """Build the method and its heads; with several seeds, heads are stacks for as many runs.

    Heads have one output for each class, or one for a number. `widths` are those of the parties'
    uploads, at most `embedding_dim`, which is the default.
    """
    require_resolved(config, loss, privacy)
    check_members(config, image, head is not None)
    several = config.members * config.heads
    seeds = member_seeds(seeds, several)
    d, hidden = config.embedding_dim, config.hidden_dim
    adapted = min(d, ADAPTED_WIDTHS[image]) if head is None else d
    counter = itertools.count()

    def build_head(number: int, width: int, seed: int) -> nn.Module:
        seed_modules(CPU, seed, COORDINATOR, "init", number)
        if head is None:
            return nets.head(width, hidden, task.n_outputs, image)
        if width not in (d, adapted):
            raise InputError(
                f"custom nets: a custom head takes one embedding, and {loss.method} needs a head "
                "over several concatenated embeddings; remove `head`"
            )
        return copy.deepcopy(head)

    def new_head(width: int) -> nn.Module:
        number = next(counter)
        return stack([build_head(number, width, seed) for seed in seeds])

    def build_adapter(number: int, seed: int, width: int) -> nn.Module:
        seed_modules(CPU, seed, COORDINATOR, "adapter", number)
        return nn.Linear(width, adapted)

    def new_adapter(party: int) -> nn.Module:
        number, width = next(counter), d if widths is None else widths[party]
        return stack([build_adapter(number, seed, width) for seed in seeds])

    require_task(loss.method, task.kind)
    if widths is not None:
        require_one_branch(loss.method)
    # Models of version 0.3 have adapters without uploads.
    adapter = new_adapter if widths is not None or privacy.trains_encoders else None
    parts = MethodParts(new_head, n_parties, d, tuple(seeds), adapter, adapted, task)
    method = method_spec(loss.method).build(loss, parts)
    return method if several == 1 else Members(method, several, task, shared=config.heads > 1)


def custom_net(net: NetOrBuilder | None, *arguments: Any) -> nn.Module | None:
    """Return a copy of a custom module, or the module that a builder function returns."""
    if net is None or isinstance(net, nn.Module):
        return copy.deepcopy(net)
    built = net(*arguments)
    if not isinstance(built, nn.Module):
        raise InputError(
            f"custom nets: expected a builder to return an nn.Module, got {type(built).__name__}"
        )
    return built
