"""An attacker that has stolen a party's encoder inverts stored embeddings. Needs torch only.

Shapes: n rows, d embedding width, p encoded columns.
"""

import copy

import torch
from torch import Tensor

from xvfl.audit.recovery import Columns, Measured, measure, score_guess
from xvfl.audit.upload_attacks import AttackOptions
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.rows import PartyTable

RATE = 0.03
STEPS_AT_ONCE = 10
"""Steps of gradient descent per unit of `AttackOptions.inversion_steps`."""


def stolen_encoder_attack(
    net: PartyNet,
    embeddings: Tensor,
    table: PartyTable,
    columns: Columns,
    places: Tensor,
    options: AttackOptions | None = None,
) -> list[Measured]:
    """Search for the rows that the stolen encoder maps to the stored embeddings.

    Parameters
    ----------
    net : PartyNet
        The party's encoder, and the decoder that trained it.
    embeddings : Tensor of shape (n, d)
        Stored plain embeddings.
    table : PartyTable
        The same rows, of which the attacker is assumed to know which features are missing.
    columns : Columns
        Their true columns at the encoded columns `places` (q,).
    places : Tensor of shape (q,)
        The encoded columns that are scored.
    options : AttackOptions, optional
        Number of rows and steps.
    """
    options = options or AttackOptions()
    order = torch.randperm(len(table), generator=options.generator("inversion"))
    rows = order[: options.inversion_rows].to(table.device)
    steps = options.inversion_steps * STEPS_AT_ONCE
    found = invert(net, embeddings[rows].float(), table.take(rows).observed, steps)
    guess = found[:, places.to(found.device)]
    return measure(
        "stolen encoder",
        lambda true: score_guess(true, guess),
        columns.take(rows),
        options.generator("control"),
    )


def invert(net: PartyNet, embeddings: Tensor, observed: Tensor, steps: int) -> Tensor:
    """Search for inputs with the given embeddings by gradient descent. (n, p)

    The search starts once at the output of the stolen decoder and once in the middle of all values;
    for each row the result with the smaller error counts.
    """
    net = copy.deepcopy(net).requires_grad_(False).eval()
    layout = net.layout
    shape = layout.image or (layout.encoded,)
    dense = layout.encoded if layout.image is not None else layout.dense
    middle = embeddings.new_full((len(embeddings), *shape), 0.5)
    nothing = torch.zeros_like(observed)
    with torch.no_grad():
        decoded = net.completer(
            *net.completer_inputs(torch.zeros_like(middle), nothing, embeddings)
        )
    x = torch.cat([decoded.reshape_as(middle), middle]).requires_grad_()
    target, given = embeddings.repeat(2, 1), observed.repeat(2, 1)
    optimizer = torch.optim.Adam([x], RATE, fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        optimizer.zero_grad()
        error = (net.embed(x, given) - target).square().sum(1)
        error.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            x.flatten(1)[:, :dense].clamp_(0, 1)
    with torch.no_grad():
        first, second = (net.embed(x, given) - target).square().sum(1).chunk(2)
    decoded, middle = x.detach().flatten(1).chunk(2)
    return torch.where((first <= second).unsqueeze(1), decoded, middle)
