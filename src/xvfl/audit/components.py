"""Linear components of embeddings, and rank correlations. Needs torch only.

A. Hyvärinen, Fast and robust fixed-point algorithms for independent component analysis, 1999.
Shapes: n rows, d embedding width, m components, q columns.
"""

import torch
from torch import Tensor

RELATIVE_RANK = 1e-6
"""Variance, relative to the largest, up to which a direction counts as rounding error."""
ITERATIONS, TOLERANCE = 100, 1e-4
MAX_POLAR_STEPS, POLAR_TOLERANCE = 30, 1e-2
MIN_ROWS = 20
"""Smallest number of observed rows of a column that is scored."""


def principal_directions(x: Tensor, limit: int) -> Tensor:
    """Return whitening directions: `(x − mean) @ directions` is uncorrelated, variance 1. (d, m)

    The largest `limit` principal components, without those that are rounding error.
    """
    centered = (x - x.mean(0)).double()
    variance, vectors = torch.linalg.eigh(centered.T @ centered / len(x))
    kept = (variance > RELATIVE_RANK * variance[-1].clamp(min=1e-12)).nonzero().flatten()[-limit:]
    directions: Tensor = vectors[:, kept] / variance[kept].sqrt()
    return directions.flip(1).to(x.dtype)


def independent_directions(x: Tensor, limit: int, rng: torch.Generator) -> Tensor:
    """Return the directions of independent components, by symmetric FastICA with tanh. (d, m)"""
    whitening = principal_directions(x, limit)
    z = (x - x.mean(0)) @ whitening
    m = z.shape[1]
    W = _orthogonal(torch.randn(m, m, generator=rng).to(z))
    for _ in range(ITERATIONS):
        g = torch.tanh(z @ W.T)
        new = _orthogonal(g.T @ z / len(z) - (1 - g.square()).mean(0).unsqueeze(1) * W)
        change = (1 - (new * W).sum(1).abs()).abs().max()
        W = new
        if float(change) < TOLERANCE:
            break
    return whitening @ W.T


def _orthogonal(W: Tensor) -> Tensor:
    """Return an orthogonal matrix near W with rows of length 1, by Newton and Schulz's iteration.

    Matrix products alone: on a GPU they take less time than an eigendecomposition.
    """
    W = torch.nn.functional.normalize(W, dim=1)
    # The largest sum of a row of W Wᵀ is at least its largest eigenvalue.
    W = W / (W @ W.T).abs().sum(1).amax().sqrt()
    identity = torch.eye(len(W), dtype=W.dtype, device=W.device)
    for _ in range(MAX_POLAR_STEPS):
        gram = W @ W.T
        W = 1.5 * W - 0.5 * gram @ W
        if float((gram - identity).abs().amax()) < POLAR_TOLERANCE:
            break
    return W


def ranks(x: Tensor) -> Tensor:
    """Return the rank of each number in its column, from 0 to below 1; ties share their mean."""
    n = len(x)
    ordered, order = x.sort(0)
    new = torch.ones_like(ordered, dtype=torch.long)
    new[1:] = (ordered[1:] != ordered[:-1]).long()
    group = new.cumsum(0) - 1
    position = torch.arange(n, dtype=torch.float64, device=x.device).unsqueeze(1).expand_as(x)
    total = torch.zeros_like(x, dtype=torch.float64).scatter_add_(0, group, position)
    count = torch.zeros_like(total).scatter_add_(0, group, torch.ones_like(total))
    mean = (total / count.clamp(min=1)).gather(0, group)
    return torch.empty_like(mean).scatter_(0, order, mean) / n


def rank_correlations(ranked: Tensor, columns: Tensor, observed: Tensor) -> Tensor:
    """Return Spearman's ρ of each component and column over the column's observed rows. (m, q)

    `ranked` are the `ranks` (n, m) of components over all rows; columns are ranked over their
    observed rows. ρ of a column that is constant or hardly observed is NaN.
    """
    a = ranked - 0.5
    # Missing values are ranked last; they have weight 0.
    b = ranks(torch.where(observed, columns.double(), torch.inf))
    return _correlations(a, b, observed)


def paired_rank_correlations(guess: Tensor, columns: Tensor, observed: Tensor) -> Tensor:
    """Return Spearman's ρ of each guessed column and its column. (q,)"""
    a = ranks(torch.where(observed, guess.double(), torch.inf))
    b = ranks(torch.where(observed, columns.double(), torch.inf))
    weight = observed.double()
    count = weight.sum(0)
    a, b = ((x - (x * weight).sum(0) / count.clamp(min=1)) * weight for x in (a, b))
    scale = (a.square().sum(0) * b.square().sum(0)).sqrt()
    rho = (a * b).sum(0) / scale
    rho = torch.where(scale > 0, rho, 0.0)
    scored = (count >= MIN_ROWS) & (b.square().sum(0) > 0)
    return torch.where(scored, rho, torch.nan)


def _correlations(a: Tensor, b: Tensor, observed: Tensor) -> Tensor:
    """Return Pearson's r of each column of a (n, m) and of b (n, q) over observed rows. (m, q)"""
    weight = observed.double()
    b = b * weight
    count = weight.sum(0).clamp(min=1)
    mean_a, mean_b = a.T @ weight / count, b.sum(0) / count
    covariance = a.T @ b / count - mean_a * mean_b
    variance_a = a.square().T @ weight / count - mean_a.square()
    variance_b = b.square().sum(0) / count - mean_b.square()
    r = covariance / (variance_a * variance_b).clamp(min=1e-18).sqrt()
    scored = (weight.sum(0) >= MIN_ROWS) & (variance_b > 1e-9)
    return torch.where(scored, r, torch.nan)
