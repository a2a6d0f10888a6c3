"""A user's own nets in place of the defaults, and whether they fit."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from xvfl.errors import InputError, unknown
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import ways
from xvfl.methods import Method
from xvfl.nets import Build
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import PartyTable, Rows


@dataclass(frozen=True)
class CustomNets:
    """A user's own nets, in place of the defaults."""

    bottoms: Mapping[str, Build] | None = None
    completers: Mapping[str, Build] | None = None
    head: nn.Module | None = None

    def any(self) -> bool:
        """Say whether there is one."""
        return bool(self.bottoms or self.completers or self.head)


def check_custom_nets(
    parties: Mapping[str, PartyNet], method: Method, classes: int, own: CustomNets
) -> None:
    """Try a user's own nets on two rows, to say early and plainly what does not fit."""
    if not own.any():
        return
    for name in (*(own.bottoms or {}), *(own.completers or {})):
        if name not in parties:
            raise InputError(f"own nets: {unknown('party', name, parties)}")
    width = {name: _try_party(name, net) for name, net in parties.items()}
    if len(set(width.values())) > 1:
        raise InputError(f"every bottom must give the same width d, got {width}")
    _try_heads(parties, method, classes, next(iter(width.values())))


@torch.no_grad()
def _try_party(name: str, net: PartyNet) -> int:
    layout = net.layout
    shape = layout.image or (layout.encoded,)
    given = torch.ones(2, layout.raw, dtype=torch.bool)
    try:
        embedded = net.eval().embed(torch.zeros(2, *shape), given)
        if not net.completes:
            return embedded.shape[1]
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
    return embedded.shape[1]


@torch.no_grad()
def _try_heads(parties: Mapping[str, PartyNet], method: Method, classes: int, width: int) -> None:
    wanted = f"a head takes (rows, …, {width}) and gives {classes} logits"
    tables = {name: _two_rows(net.layout) for name, net in parties.items()}
    federation = FusedFederation([PartyWorker(n, parties[n], tables[n], [0]) for n in parties])
    held = torch.ones(2, len(parties), dtype=torch.bool)
    handles = torch.arange(2).unsqueeze(1).expand(-1, len(parties))
    rows = Rows(handles, held, held, torch.zeros(2, dtype=torch.long), torch.ones(2))
    method.heads.eval()
    for mode, party in ways(method, federation):
        try:
            out = method.logits(federation, rows, mode, party)
        except RuntimeError as error:
            raise InputError(f"the head does not fit: {wanted}; {error}") from error
        if out.shape[-1] != classes:
            raise InputError(f"the head does not fit: {wanted}, not {out.shape[-1]}")


def _two_rows(layout: Layout) -> PartyTable:
    shape = layout.image or (layout.dense,)
    codes = torch.zeros(2, len(layout.hashed), dtype=torch.long)
    observed = torch.ones(2, layout.raw, dtype=torch.bool)
    return PartyTable(layout, torch.zeros(2, *shape), codes, observed)
