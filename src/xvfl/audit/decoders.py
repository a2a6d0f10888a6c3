"""Decoders: learn from known rows to read columns from embeddings. Needs torch only.

Shapes: n rows, k known rows, d inputs, q columns, b decoders.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from xvfl.audit.recovery import Columns

PENALTIES = (1e-4, 1e-2, 1.0, 1e2)
"""Strengths of regularization per input; the one that is best for the attacker counts."""
STEPS, WIDTH, RATE, DECAY = 150, 128, 3e-3, 1e-2


def standardized(x: Tensor) -> Tensor:
    """Scale inputs to mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6)


def ridge_guesses(x: Tensor, columns: Columns, known: Tensor) -> list[Tensor]:
    """Decode all rows by ridge regression, once for each penalty. (n, q) each"""
    inputs, values = x[known].double(), columns.filled(known)[known]
    kernel, across, mean = inputs @ inputs.T, x.double() @ inputs.T, values.mean(0)
    size = torch.eye(len(known), dtype=torch.float64, device=x.device) * x.shape[1]
    weights = [torch.linalg.solve(kernel + p * size, values - mean) for p in PENALTIES]
    return [across @ each + mean for each in weights]


def net_guesses(
    x: Tensor, targets: Sequence[Columns], known: Sequence[Tensor], seed: int
) -> list[list[Tensor]]:
    """Decode all rows by nets with one hidden layer, for all targets and sets of known rows.

    All nets are trained at once. Returns a list for each target, of guesses (n, q) for each set.
    """
    pairs = [(target, rows) for target in targets for rows in known]
    b, most, q = len(pairs), max(map(len, known)), targets[0].values.shape[1]
    inputs, wanted, weight = (
        torch.zeros(b, most, width, device=x.device) for width in (x.shape[1], q, 1)
    )
    for place, (target, rows) in enumerate(pairs):
        inputs[place, : len(rows)] = x[rows].float()
        wanted[place, : len(rows)] = target.filled(rows)[rows].float()
        weight[place, : len(rows)] = 1 / len(rows)
    rng = torch.Generator().manual_seed(seed)

    def layer(a: int, c: int) -> list[Tensor]:
        drawn = (torch.rand(b, a, c, generator=rng) * 2 - 1) / a**0.5
        parts = [drawn.to(x.device), torch.zeros(b, 1, c, device=x.device)]
        return [part.requires_grad_() for part in parts]

    parameters = [*layer(x.shape[1], WIDTH), *layer(WIDTH, q)]
    optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=DECAY, fused=True)

    def decode(x: Tensor) -> Tensor:
        hidden = F.gelu(torch.matmul(x, parameters[0]) + parameters[1])
        return torch.matmul(hidden, parameters[2]) + parameters[3]

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = ((decode(inputs) - wanted).square() * weight).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        guesses = decode(x.float()).double()
    return [list(each) for each in torch.split(guesses, len(known))]


def best_guess(guesses: list[Tensor], columns: Columns, rest: Tensor) -> Tensor:
    """Return the guess (n, q) with the largest mean correlation on the other rows."""
    true, weight = columns.values[rest].double(), columns.observed[rest].double()
    count = weight.sum(0).clamp(min=1)

    def centered(x: Tensor) -> Tensor:
        return (x - (x * weight).sum(0) / count) * weight

    b = centered(true)

    def correlation(guess: Tensor) -> float:
        a = centered(guess[rest])
        scale = (a.square().sum(0) * b.square().sum(0)).sqrt()
        return float(((a * b).sum(0).abs() / scale.clamp(min=1e-12)).mean())

    return max(guesses, key=correlation)
