"""Completers that see what their party observes, but never the cells that they must complete."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.federation.split_helpers import (
    begin_run,
    make_endpoints,
    make_federation,
    make_small_method,
    settings_json,
)
from tests.federation.test_split import (
    TOLERANCE,
    assert_equal,
    fused_gradients,
    split_gradients,
)
from tests.options import resolved
from tests.problems import IMAGE, MIXED, NUMBERS, SEED, D, Problem, make_problem, sampled_mask
from xvfl import nets
from xvfl.config import LossConfig, NetConfig
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.build import build_parties
from xvfl.nets.completers import SeeingCompleter
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout
from xvfl.wire.in_process import InProcessTransport

STEP = 3
RECONSTRUCTION = 0.7


class SmoothFusion(nn.Module):
    """A small net over cue and features without flat regions."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D + layout.encoded + layout.raw, 6), nn.Tanh())
        self.net.append(nn.Linear(6, layout.encoded))

    def forward(self, cue: Tensor, given: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([cue, given], 1))
        return out


def with_seeing_completers(problem: Problem) -> Problem:
    torch.manual_seed(0)
    parties = []
    for old in problem.parties:
        completer = SeeingCompleter(SmoothFusion(old.layout), old.layout).double()
        net = PartyNet(old.layout, old.bottom, completer).double()
        net.vectors.load_state_dict(old.vectors.state_dict())
        parties.append(net)
    return replace(problem, parties=parties)


def one_worker(reconstruction: float = 0.0, unmasked: float = 0.0) -> PartyWorker:
    problem = with_seeing_completers(make_problem([MIXED], ["F"] * 6, seed=2))
    net, table = problem.parties[0], problem.tables[0]
    return PartyWorker("p0", net, table, [SEED], reconstruction, unmasked=unmasked)


def completed(worker: PartyWorker, cue: Tensor, aligned: bool) -> Tensor:
    rows = len(worker.table)
    worker.net.train()
    worker.embed(torch.arange(rows), ["plain", "masked", "self"], STEP)
    return worker.complete(cue, torch.full((rows,), aligned))


def test_unmasked_copies_do_not_change_cross_completion() -> None:
    cue = torch.randn(6, D, dtype=torch.float64)
    torch.testing.assert_close(
        completed(one_worker(unmasked=0.9), cue, True), completed(one_worker(), cue, True)
    )


def test_aligned_rows_are_completed_from_a_drawn_mask_by_hand() -> None:
    worker = one_worker()
    net, table = worker.net, worker.table
    cue = torch.randn(6, D, dtype=torch.float64)
    found = completed(worker, cue, aligned=True)
    kept = sampled_mask(table.observed, "p0", STEP, which=1)
    assert 0 < int(kept.sum()) < kept.numel()
    x = net.encode(table)
    for row in range(6):
        flags, spread = kept[row].double(), kept[row][net.columns].double()
        given = torch.cat([x[row] * spread, flags])[None]
        values = net.completer(cue[row][None], given)[0]
        filled = torch.where(spread.bool(), x[row], values)
        expected = net.bottom(torch.cat([filled, torch.ones_like(flags)])[None])[0]
        torch.testing.assert_close(found[row], expected)


def test_a_hidden_cell_does_not_reach_the_completer() -> None:
    worker = one_worker()
    cue = torch.randn(6, D, dtype=torch.float64)
    before = completed(worker, cue, aligned=True)
    hidden = ~sampled_mask(worker.table.observed, "p0", STEP, which=1)
    columns = hidden[:, worker.net.columns[: worker.net.layout.dense]]
    changed = torch.where(columns, 0.5 * worker.table.values + 0.1, worker.table.values)
    worker.table = replace(worker.table, values=changed)
    torch.testing.assert_close(completed(worker, cue, aligned=True), before)
    assert not torch.allclose(completed(worker, cue, aligned=False), before)


def test_reconstruction_counts_hidden_cells_only() -> None:
    worker = one_worker(reconstruction=1.0)
    completed(worker, torch.randn(6, D, dtype=torch.float64), aligned=False)
    assert worker.objective is not None
    x, observed = worker.net.encode(worker.table), worker.table.observed
    masked = sampled_mask(observed, "p0", STEP, which=0)
    cue = worker.net.embed(x, masked)
    values = worker.net.completer(cue, worker.net.given(x, masked))
    hidden = (observed & ~masked)[:, worker.net.columns]
    expected = (values - x).square()[hidden].mean()
    # Nothing is hidden in the rows that are completed as observed, so they add nothing.
    torch.testing.assert_close(worker.objective, expected)


@pytest.mark.parametrize("reconstruction", [0.0, RECONSTRUCTION])
def test_split_and_fused_agree(reconstruction: float) -> None:
    made = with_seeing_completers(make_federation(2))
    method = make_small_method(made, "xvfl+")
    expected = fused_gradients(made, method, reconstruction)
    ends = make_endpoints(made, reconstruction)
    lines = [InProcessTransport(end.hello, end.handle) for end in ends]
    split = begin_run(lines, made.names, settings_json(reconstruction=reconstruction))
    found = split_gradients(made, method, split)
    assert_equal(found, expected, TOLERANCE[torch.float64])
    own = [value for name, value in expected.items() if "completer" in name]
    assert own and all(bool(value.any()) for value in own)


@pytest.mark.parametrize("image", [(1, 8, 8), (3, 32, 16), (2, 5, 7), (1, 1, 1)])
def test_images_of_any_size_are_completed(image: tuple[int, int, int]) -> None:
    layout = Layout(image=image)
    completer = nets.completer(layout, D, 6, channels=8, sees_features=True)
    channels, height, width = image
    out = completer(torch.randn(2, D), torch.rand(2, channels + 1, height, width))
    assert out.shape == (2, *image) and bool(((out >= 0) & (out <= 1)).all())


def test_only_xvfl_plus_builds_them() -> None:
    layouts = {"a": NUMBERS, "b": IMAGE}
    net = NetConfig(embedding_dim=4, hidden_dim=6, base_channels=8, seeing_completers=True)
    for method, sees in (("xvfl+", True), ("xvfl", False)):
        options = resolved(net, LossConfig(method=method), image=True)
        parties = build_parties(layouts, options.net, options.loss, [0])
        assert [each.completer_sees for each in parties.values()] == [sees, sees]
    options = resolved(NetConfig(4, 6), image=True)
    plain = build_parties(layouts, options.net, options.loss, [0])
    assert [each.completer_sees for each in plain.values()] == [False, True], "only of images"
    options = resolved(net, LossConfig(self_completion=0.0), image=True)
    blind = build_parties(layouts, options.net, options.loss, [0])
    assert not any(each.completer_sees for each in blind.values())
