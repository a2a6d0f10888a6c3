"""Custom nets of a user in place of the defaults, and checks of their shapes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from xvfl.errors import InputError, unknown
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import Method
from xvfl.nets import NetOrBuilder
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.training.predict import mode_party_pairs


@dataclass(frozen=True)
class CustomNets:
    """Custom nets in place of the defaults: bottoms and completers by party, and the head."""

    bottoms: Mapping[str, NetOrBuilder] | None = None
    completers: Mapping[str, NetOrBuilder] | None = None
    head: nn.Module | None = None

    def any(self) -> bool:
        """Return whether there is a custom net."""
        return bool(self.bottoms or self.completers or self.head)


def check_custom_nets(
    parties: Mapping[str, PartyNet], method: Method, n_outputs: int, custom_nets: CustomNets
) -> None:
    """Apply custom nets to two rows, and raise an error if shapes do not fit."""
    if not custom_nets.any():
        return
    for name in (*(custom_nets.bottoms or {}), *(custom_nets.completers or {})):
        if name not in parties:
            raise InputError(f"custom nets: {unknown('party', name, parties)}")
    dims = {name: _check_party(name, net) for name, net in parties.items()}
    if len(set(dims.values())) > 1:
        raise InputError(f"bottoms must have the same output size d, got {dims}")
    _check_heads(parties, method, n_outputs, next(iter(dims.values())))


@torch.no_grad()
def _check_party(name: str, net: PartyNet) -> int:
    layout = net.layout
    shape = layout.image or (layout.encoded,)
    observed = torch.ones(2, layout.raw, dtype=torch.bool)
    try:
        embedded = net.eval().embed(torch.zeros(2, *shape), observed)
        if not net.completes:
            return embedded.shape[1]
        inputs = net.completer_inputs(torch.zeros(2, *shape), observed, embedded)
        completed = net.completer(*inputs)
    except RuntimeError as error:
        raise InputError(
            f"party {name!r}: custom net does not fit: a bottom maps the {layout.encoded} encoded "
            f"columns and {layout.raw} observed flags (images: one more channel) to (rows, d), a "
            f"completer maps (rows, d), and with `sees_features` the bottom's input, to the "
            f"encoded columns; {error}"
        ) from error
    if completed.shape[1:] != torch.Size(shape):
        raise InputError(
            f"party {name!r}: expected a completer with output shape {shape} per row, got "
            f"{tuple(completed.shape[1:])}"
        )
    return embedded.shape[1]


@torch.no_grad()
def _check_heads(parties: Mapping[str, PartyNet], method: Method, n_outputs: int, dim: int) -> None:
    expected = (
        f"a head maps (rows, …, {dim}) to {n_outputs} {'logits' if n_outputs > 1 else 'number'}"
    )
    tables = {name: _two_rows(net.layout) for name, net in parties.items()}
    federation = FusedFederation([PartyWorker(n, parties[n], tables[n], [0]) for n in parties])
    held = torch.ones(2, len(parties), dtype=torch.bool)
    handles = torch.arange(2).unsqueeze(1).expand(-1, len(parties))
    rows = Rows(handles, held, held, torch.zeros(2, dtype=torch.long), torch.ones(2))
    method.heads.eval()
    for mode, party in mode_party_pairs(method, federation):
        try:
            out = method.logits(federation, rows, mode, party)
        except RuntimeError as error:
            raise InputError(f"the head does not fit: {expected}; {error}") from error
        if out.shape[-1] != n_outputs:
            raise InputError(f"the head does not fit: {expected}, got {out.shape[-1]}")


def _two_rows(layout: Layout) -> PartyTable:
    shape = layout.image or (layout.dense,)
    codes = torch.zeros(2, len(layout.hashed), dtype=torch.long)
    observed = torch.ones(2, layout.raw, dtype=torch.bool)
    return PartyTable(layout, torch.zeros(2, *shape), codes, observed)
