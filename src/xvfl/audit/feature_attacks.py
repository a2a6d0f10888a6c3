"""Attacks on features: decoders and inversion of embeddings.

Shapes: m rows, M members, d embedding width of a member, p encoded columns stored as numbers.
Inversion: Z. He, T. Zhang, R. Lee, Model inversion attacks against collaborative inference, 2019.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from xvfl.audit.scoring import FeatureScore, score_features
from xvfl.federation.member_rows import join_members, split_members
from xvfl.nets import mlp
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.rows import PartyTable

RIDGE_PENALTIES = (1e-3, 1e-1, 1e1, 1e3)
DECODER_STEPS, DECODER_WIDTH = 200, 128
INVERSION_RATE = 0.05
DIFFERENCE = 1e-5


def decoder_attack(
    vectors: Tensor, table: PartyTable, n_known: int, seed: int = 0
) -> tuple[FeatureScore, Tensor]:
    """Learn to decode features from vectors of known rows; decode the other rows.

    Returns the score on the other rows, and the decoded values (m, p) of all rows. Of ridge
    regression and a small net, the better for the attacker counts.
    """
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(table), generator=rng)
    known, rest = order[:n_known], order[n_known:]
    x = _standardized(vectors)
    values = fill_missing(table, known)
    tries = [_ridge(x, values, known, penalty) for penalty in RIDGE_PENALTIES]
    tries.append(_small_net(x, values, known, seed))
    scores = [score_features(each[rest], table.take(rest)) for each in tries]
    best = max(range(len(tries)), key=lambda i: scores[i].total)
    return scores[best], tries[best]


def _standardized(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6)


def fill_missing(table: PartyTable, known: Tensor) -> Tensor:
    """Replace missing values by the mean of the known rows."""
    values = table.values.flatten(1).double()
    observed = _observed_columns(table)
    weight = observed[known].double()
    mean = (values[known] * weight).sum(0) / weight.sum(0).clamp(min=1)
    return torch.where(observed, values, mean)


def _observed_columns(table: PartyTable) -> Tensor:
    """Expand the mask of raw features to the columns stored as numbers. (m, p)"""
    if table.layout.image is not None:
        return table.observed.repeat(1, table.layout.image[0])
    at = torch.tensor(table.layout.feature_of_column[: table.layout.dense], dtype=torch.long)
    return table.observed[:, at]


def _ridge(x: Tensor, values: Tensor, known: Tensor, penalty: float) -> Tensor:
    inputs, mean = x[known].double(), values[known].mean(0)
    gram = inputs.T @ inputs + penalty * torch.eye(x.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(gram, inputs.T @ (values[known] - mean))
    decoded: Tensor = x.double() @ weights + mean
    return decoded


def _small_net(x: Tensor, values: Tensor, known: Tensor, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = mlp([x.shape[1], DECODER_WIDTH, values.shape[1]])
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2, fused=True)
    inputs, targets = x[known].float(), values[known].float()
    for _ in range(DECODER_STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        decoded: Tensor = net(x.float()).double()
    return decoded


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the derivative of f at each row of x, by central differences. (m, outputs, inputs)

    `x` (m, inputs) and the results of f are in double precision.
    """
    m, inputs = x.shape
    moves = DIFFERENCE * torch.eye(inputs, dtype=x.dtype)
    above, below = (f((x.unsqueeze(1) + sign * moves).flatten(0, 1)) for sign in (1, -1))
    return ((above - below) / (2 * DIFFERENCE)).view(m, inputs, -1).mT


@torch.no_grad()
def embed_rows(net: PartyNet, rows: PartyTable, members: int) -> Tensor:
    """Embed rows as a party does, with the embeddings of all members side by side. (m, M·d)"""
    net = net.eval()
    repeated = rows.take(torch.arange(len(rows)).repeat(members))
    return join_members(net.embed_own(net.encode(repeated), repeated.observed), members)


def invert(
    net: PartyNet, embeddings: Tensor, observed: Tensor, steps: int, members: int = 1
) -> Tensor:
    """Search inputs whose embeddings by this net are the given ones; return their values (m, p).

    The attacker is assumed to know which features are missing: `observed` (m, raw). The values are
    the same for all members, whose embeddings (m, M·d) are side by side; members that do not share
    inputs have vectors of hashed categories of their own.
    """
    net = copy.deepcopy(net).requires_grad_(False).eval()
    if net.layout.image is not None:
        return _invert_images(net, embeddings.detach(), observed, steps)
    net, target = net.double(), embeddings.detach().double()

    dense, distinct = net.layout.dense, 1 if net.members > 1 else members

    def embed(x: Tensor) -> Tensor:
        given = observed.repeat_interleave(len(x) // len(observed), 0).repeat(members, 1)
        vectors = split_members(x[:, dense:], distinct).repeat(members // distinct, 1)
        by_member = torch.cat([x[:, :dense].repeat(members, 1), vectors], 1)
        return join_members(net.embed_own(by_member, given), members)

    width = dense + distinct * (net.layout.encoded - dense)
    x = torch.full((len(target), width), 0.5, dtype=torch.float64)
    damping = torch.ones(len(x), 1, 1, dtype=torch.float64)
    identity = torch.eye(x.shape[1], dtype=torch.float64)
    error = embed(x) - target
    # Levenberg and Marquardt's method, for each row.
    for _ in range(steps):
        J = jacobian(embed, x)
        step = torch.linalg.solve(J.mT @ J + damping * identity, J.mT @ error.unsqueeze(2))
        tried = x - step.squeeze(2)
        tried[:, :dense] = tried[:, :dense].clamp(-0.1, 1.1)
        new = embed(tried) - target
        better = new.square().sum(1) < error.square().sum(1)
        x = torch.where(better.unsqueeze(1), tried, x)
        error = torch.where(better.unsqueeze(1), new, error)
        damping = (damping * torch.where(better, 0.3, 4.0).view(-1, 1, 1)).clamp(1e-6, 1e6)
        if bool((error.square().sum(1) < 1e-10).all()):
            break
    return x[:, :dense].float()


def _invert_images(net: PartyNet, embeddings: Tensor, observed: Tensor, steps: int) -> Tensor:
    """Search images by gradient descent."""
    assert net.layout.image is not None
    raw = torch.zeros(len(embeddings), *net.layout.image, requires_grad=True)
    optimizer = torch.optim.Adam([raw], INVERSION_RATE)
    for _ in range(10 * steps):
        optimizer.zero_grad()
        error = net.embed(torch.sigmoid(raw), observed) - embeddings
        error.square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.sigmoid(raw.detach()).flatten(1)
