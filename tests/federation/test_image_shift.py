"""Images are shifted in training only, by the party's own random numbers."""

import pytest
import torch

from tests.options import resolved
from xvfl.config import LossConfig, NetConfig
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.build import build_parties
from xvfl.primitives.augment import shift_images
from xvfl.primitives.layout import Layout
from xvfl.primitives.random import CounterRNG
from xvfl.primitives.rows import PartyTable

LAYOUT = Layout(image=(1, 16, 8))
SHARE = 0.25


@pytest.fixture
def table() -> PartyTable:
    values = torch.rand(6, 1, 16, 8, generator=torch.Generator().manual_seed(0))
    return PartyTable(
        LAYOUT, values, torch.zeros(6, 0, dtype=torch.long), torch.ones(6, 128, dtype=torch.bool)
    )


def worker(table: PartyTable, share: float) -> PartyWorker:
    """Build a party of images with the same weights each time."""
    net = NetConfig(embedding_dim=4, hidden_dim=8, n_blocks=1, base_channels=8)
    options = resolved(net, LossConfig(method="laser"), image=True)
    nets = build_parties({"camera": LAYOUT}, options.net, options.loss, [3])
    return PartyWorker("camera", nets["camera"], table, [3], image_shift=share)


def test_training_embeds_shifted_images(table: PartyTable) -> None:
    handles = torch.arange(6)
    trained = worker(table, SHARE).embed(handles, ["plain"], 7)
    uniform = CounterRNG([3], "camera", "shift").uniform(7, 6, 2, table.device)
    by_hand = worker(shift_images(table, uniform, SHARE), 0.0).embed(handles, ["plain"], 7)
    torch.testing.assert_close(trained, by_hand)
    other_step = worker(table, SHARE).embed(handles, ["plain"], 8)
    assert not torch.allclose(trained, other_step)


def test_prediction_embeds_images_as_they_are(table: PartyTable) -> None:
    handles = torch.arange(6)
    shifted, plain = worker(table, SHARE), worker(table, 0.0)
    for each in (shifted, plain):
        each.net.eval()
    outputs = [each.embed(handles, ["plain"], 7) for each in (shifted, plain)]
    torch.testing.assert_close(*outputs)
