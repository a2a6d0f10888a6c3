"""Small federations whose parties have several bottoms, in double precision."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from tests import twin
from tests.problems import CLASSES, D, Problem, make_problem, smooth_net
from xvfl.methods import Method
from xvfl.nets import NoCompleter, ParallelBottoms
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout


def make_head(blocks: int, seed: int) -> nn.Module:
    """Sample a head over `blocks` embeddings of width d."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return smooth_net(blocks * D, CLASSES).double()


def make_heads(count: int, blocks: int = 1, seed: int = 50) -> nn.ModuleList:
    """Sample several heads."""
    return nn.ModuleList([make_head(blocks, seed + i) for i in range(count)])


def make_two_branch_problem(
    layouts: Sequence[Layout], holdings: Sequence[str], seed: int = 0
) -> Problem:
    """Sample a problem whose parties have two bottoms and no completer."""
    problem = make_problem(layouts, holdings, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parties = [
            PartyNet(
                layout,
                ParallelBottoms([smooth_net(layout.encoded + layout.raw, D) for _ in range(2)]),
                NoCompleter(),
            ).double()
            for layout in layouts
        ]
    return replace(problem, parties=parties)


def embed_rows(problem: Problem) -> list[list[Tensor]]:
    """Embed each row at each party, one at a time; indexed [row][party]."""
    parties = problem.twin_parties()
    return [
        [twin.embed(party, row.x[i], row.o[i]) for i, party in enumerate(parties)]
        for row in problem.twin_rows()
    ]


def assert_matches_twin(problem: Problem, method: Method, expected: dict[str, Tensor]) -> None:
    """Compare a method's loss terms and gradients with the expected, slow ones."""
    problem = replace(problem, head=method.heads)
    terms = method.loss(problem.federation(), problem.rows)
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], rtol=1e-12, atol=1e-12)
    torch.stack(list(terms.values())).sum().backward()
    fast = problem.gradients()
    twin.total(list(expected.values())).backward()
    for name, slow in problem.gradients().items():
        torch.testing.assert_close(fast[name], slow, rtol=1e-10, atol=1e-12)
    assert all(gradient.isfinite().all() for gradient in fast.values())


def weighted_mean(problem: Problem, of_row: Sequence[Sequence[Tensor]]) -> Tensor:
    """Sum each row's terms and return the weighted mean over rows."""
    rows = zip(problem.twin_rows(), of_row, strict=True)
    return twin.total([row.weight * twin.total(terms) for row, terms in rows]) / len(problem.rows)
