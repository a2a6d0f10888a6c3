import pytest
import torch
from torch.nn import functional as F

from tests.options import resolved
from xvfl.config import NetConfig, TrainConfig
from xvfl.methods.build import build_parties
from xvfl.nets.norm import GroupNorm, channels_last
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Layout
from xvfl.training.precision import configure_precision

STRIP = Layout((), (3, 16, 8))


@pytest.fixture
def net() -> PartyNet:
    small = resolved(NetConfig(embedding_dim=16, n_blocks=2, base_channels=8), image=True)
    return build_parties({"left": STRIP}, small.net, small.loss, [0])["left"]


def test_normalisation_with_channels_last_equals_torchs() -> None:
    x = torch.randn(3, 16, 5, 7, dtype=torch.float64).to(memory_format=torch.channels_last)
    weight, bias = torch.rand(16, dtype=torch.float64), torch.rand(16, dtype=torch.float64)
    ours = channels_last(x, 4, weight, bias, 1e-5)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours, F.group_norm(x, 4, weight, bias, 1e-5), atol=1e-6, rtol=0)


def test_normalisation_keeps_the_precision_of_its_input() -> None:
    norm, x = GroupNorm(4, 16), torch.randn(3, 16, 5, 7)
    torch.testing.assert_close(norm(x), F.group_norm(x, 4, norm.weight, norm.bias))
    out = norm(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), norm(x), atol=0.05, rtol=0)


def test_a_net_that_was_quick_on_a_gpu_computes_in_float32_on_a_cpu(net: PartyNet) -> None:
    x, cue = torch.rand(4, *STRIP.image or ()), torch.randn(4, 16)
    observed = torch.rand(4, STRIP.raw) < 0.5
    exact, completed = net.complete(x, observed, cue)
    compiled: list[str] = []
    for part in (net.bottom, net.completer):
        part.compile(backend=lambda graph, inputs: compiled.append("") or graph.forward)
    net.bf16 = True
    for mode in (True, False):
        also, too = net.train(mode).complete(x, observed, cue)
        assert torch.equal(also, exact) and torch.equal(too, completed)
    assert not compiled


def test_on_a_cpu_nothing_changes(net: PartyNet) -> None:
    configure_precision(net, TrainConfig(precision="bf16"))
    assert not net.bf16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_quick_net_is_close_to_the_plain_one(net: PartyNet) -> None:
    net.to("cuda").train()
    x, given = torch.rand(64, *STRIP.image or (), device="cuda"), torch.ones(64, STRIP.raw).cuda()
    exact = net.embed(x, given.bool())
    configure_precision(net, TrainConfig(precision="bf16"))
    assert net.bf16
    torch.testing.assert_close(net.embed(x, given.bool()), exact, atol=0.03, rtol=0.05)
