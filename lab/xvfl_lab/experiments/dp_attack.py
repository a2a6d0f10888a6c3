"""A lower bound on ε: distinguish the releases of two neighboring tables.

The tables differ in one row. A party's real worker releases that row's embedding many times, each
with independent noise. The best linear test separates the two distributions; the confidence bounds
of its error rates (C. Clopper, E. Pearson 1934) bound ε from below (M. Jagielski et al. 2020).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from xvfl.federation.privacy_accounting import PrivacyStatement
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.nets import NoCompleter
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.rows import PartyTable

CONFIDENCE = 0.95
N_BOUNDS = 4
"""Two error rates in two directions; each bound has an equal share of the error probability."""
WIDTH = 16
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbors:
    """A party's net, and two versions of one of its rows."""

    net: PartyNet
    first: PartyTable
    second: PartyTable


def opposite_rows() -> Neighbors:
    """Return the hardest case: a net that maps two rows to opposite embeddings."""
    layout = Layout((Feature("x", "numeric", 1),))
    bottom = nn.Linear(2, WIDTH)
    with torch.no_grad():
        bottom.weight.copy_(torch.ones(WIDTH, 2) * torch.tensor([1.0, 0.0]))
        bottom.bias.zero_()
    low, high = (
        PartyTable(
            layout,
            torch.tensor([[value]]),
            torch.zeros(1, 0, dtype=torch.long),
            torch.ones(1, 1, dtype=torch.bool),
        )
        for value in (0.0, 1.0)
    )
    return Neighbors(PartyNet(layout, bottom, NoCompleter()), low, high)


def most_distant_rows(net: PartyNet, table: PartyTable) -> Neighbors:
    """Return the two rows of a table whose embeddings point in the most different directions."""
    handles = torch.arange(len(table), device=table.device)
    E = PrivateWorker("party", net, table, [0], 0.0).embed(handles, ["plain"], 0)[:, 0]
    at = int((E @ E.T).argmin())
    pair = (at // len(E), at % len(E))
    first, second = (table.take(torch.tensor([i])) for i in pair)
    return Neighbors(net, first, second)


def release_often(
    neighbors: Neighbors, privacy: PrivacyStatement, count: int, secret: int
) -> tuple[Floats, Floats]:
    """Release each version of the row `count` times. (count, d)

    Rows with other handles and equal content have independent noise.
    """
    return tuple(  # type: ignore[return-value]
        _release(neighbors.net, _repeat(row, count), privacy, secret + number)
        for number, row in enumerate((neighbors.first, neighbors.second))
    )


def _release(net: PartyNet, table: PartyTable, privacy: PrivacyStatement, secret: int) -> Floats:
    worker = PrivateWorker("party", net, table, [secret], privacy.noise_std)
    handles = torch.arange(len(table), device=table.device)
    released: Floats = worker.embed(handles, ["plain"], 0)[:, 0].double().cpu().numpy()
    return released


def _repeat(row: PartyTable, count: int) -> PartyTable:
    def repeat(part: Tensor) -> Tensor:
        return part.repeat(count, *[1] * (part.dim() - 1))

    return replace(
        row, values=repeat(row.values), codes=repeat(row.codes), observed=repeat(row.observed)
    )


def lower_bound(neighbors: Neighbors, privacy: PrivacyStatement, count: int, secret: int) -> float:
    """Return the lower bound on ε that the attack finds; 0 if it finds none.

    The first half of the releases chooses the test and its threshold, the second half measures it.
    """
    first, second = release_often(neighbors, privacy, count, secret)
    half = count // 2
    direction = second[:half].mean(0) - first[:half].mean(0)
    scores = [each @ direction for each in (first, second)]
    bounds = [0.0]
    for positive, negative in ((scores[1], scores[0]), (-scores[0], -scores[1])):
        both = np.concatenate([positive[:half], negative[:half]])
        candidates = np.quantile(both, np.linspace(0.0005, 0.9995, 400))
        chosen = [_bound(positive[:half], negative[:half], t, privacy.delta) for t in candidates]
        threshold = float(candidates[int(np.argmax(chosen))])
        bounds.append(_bound(positive[half:], negative[half:], threshold, privacy.delta))
    return max(bounds)


def _bound(positive: Floats, negative: Floats, threshold: float, delta: float) -> float:
    """Bound ε by the confidence bounds of both rates at a threshold."""
    low, _ = clopper_pearson(int((positive > threshold).sum()), len(positive))
    _, high = clopper_pearson(int((negative > threshold).sum()), len(negative))
    return float(np.log(max(low - delta, 1e-300) / high))


def clopper_pearson(successes: int, trials: int) -> tuple[float, float]:
    """Return one-sided confidence bounds of a rate, below and above."""
    from scipy.stats import beta

    error = (1 - CONFIDENCE) / N_BOUNDS
    low = beta.ppf(error, successes, trials - successes + 1) if successes else 0.0
    high = beta.ppf(1 - error, successes + 1, trials - successes) if successes < trials else 1.0
    return float(low), float(high)
