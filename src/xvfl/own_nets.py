"""A user's own nets in place of the defaults, and whether they fit."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xvfl.errors import InputError, unknown
from xvfl.federation.party import PartyNet
from xvfl.nets import Build


@dataclass(frozen=True)
class OwnNets:
    """A user's own nets, in place of the defaults."""

    bottoms: Mapping[str, Build] | None = None
    completers: Mapping[str, Build] | None = None
    head: nn.Module | None = None

    def any(self) -> bool:
        """Say whether there is one."""
        return bool(self.bottoms or self.completers or self.head)


def check_own_nets(
    parties: Mapping[str, PartyNet], heads: nn.Module, classes: int, own: OwnNets
) -> None:
    """Try a user's own nets on two rows, to say early and plainly what does not fit."""
    if not own.any():
        return
    for name in (*(own.bottoms or {}), *(own.completers or {})):
        if name not in parties:
            raise InputError(f"own nets: {unknown('party', name, parties)}")
    embedded = {name: _try_party(name, net) for name, net in parties.items()}
    width = {name: each.shape[1] for name, each in embedded.items()}
    if len(set(width.values())) > 1:
        raise InputError(f"every bottom must give the same width d, got {width}")
    each_head = heads if isinstance(heads, nn.ModuleList) else [heads]
    for head in each_head:
        _try_head(head, next(iter(embedded.values())), classes)


@torch.no_grad()
def _try_party(name: str, net: PartyNet) -> Tensor:
    layout = net.layout
    shape = layout.image or (layout.encoded,)
    given = torch.ones(2, layout.raw, dtype=torch.bool)
    try:
        embedded = net.eval().embed(torch.zeros(2, *shape), given)
        completed = net.completer(embedded)
    except RuntimeError as error:
        raise InputError(
            f"party {name!r}: its own net does not fit: a bottom takes the {layout.encoded} "
            f"encoded columns and {layout.raw} flags (images: one more channel) and gives "
            f"(rows, d), a completer takes (rows, d) and gives the encoded columns; {error}"
        ) from error
    if completed.shape[1:] != torch.Size(shape):
        raise InputError(
            f"party {name!r}: its completer gives {tuple(completed.shape[1:])} a row, "
            f"expected {shape}"
        )
    return embedded


@torch.no_grad()
def _try_head(head: nn.Module, embedded: Tensor, classes: int) -> None:
    wanted = f"a head takes (rows, …, {embedded.shape[1]}) and gives {classes} logits"
    try:
        out = head.eval()(embedded.unsqueeze(1))
    except RuntimeError as error:
        raise InputError(f"the head does not fit: {wanted}; {error}") from error
    if out.shape[-1] != classes:
        raise InputError(f"the head does not fit: {wanted}, not {out.shape[-1]}")
