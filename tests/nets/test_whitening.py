"""Whitening of embeddings."""

import pytest
import torch

from xvfl.nets.stacked import stack
from xvfl.nets.whitening import SPREAD, Whitening


def embeddings(n: int = 4000) -> torch.Tensor:
    """Return rows whose principal components have very different variances."""
    rng = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.4, 0.2, 0.1, 0.05, 0.001])
    turned = torch.linalg.qr(torch.randn(5, 5, generator=rng))[0]
    return (torch.randn(n, 5, generator=rng) * scale @ turned).clamp(-1, 1)


def spectrum(x: torch.Tensor) -> torch.Tensor:
    """Return the variances of the principal components, the largest first."""
    return torch.linalg.eigvalsh(torch.cov(x.double().T)).flip(0)


@pytest.mark.parametrize(("share", "equal"), [(0.5, 1), (0.9, 2), (0.99, 4), (1.0, 5)])
def test_the_largest_components_get_equal_variances(share: float, equal: int) -> None:
    layer, x = Whitening(5), embeddings()
    layer.fit(0, x, share, torch.Generator().manual_seed(1))
    found = spectrum(layer.eval()(x))
    assert torch.allclose(found[:equal], found[0].expand(equal), rtol=0.05)
    if equal < 5:
        assert found[equal] < 0.8 * found[0]
    assert float(layer(x).square().mean().sqrt()) == pytest.approx(SPREAD, rel=0.05)


def test_the_rotation_is_random() -> None:
    x, found = embeddings(), []
    for seed in range(2):
        layer = Whitening(5).eval()
        layer.fit(0, x, 0.99, torch.Generator().manual_seed(seed))
        found.append(layer(x))
    assert (found[0] - found[1]).abs().max() > 0.1


def test_it_is_the_identity_in_training_and_before_it_is_fitted() -> None:
    layer, x = Whitening(5), embeddings()
    assert torch.equal(layer.eval()(x), x)
    layer.fit(0, x, 0.9, torch.Generator().manual_seed(0))
    assert torch.equal(layer.train()(x), x)


def test_stacked_layers_equal_single_ones() -> None:
    x = torch.stack([embeddings(), embeddings().flip(1)])
    stacked = stack([Whitening(5), Whitening(5)]).eval()
    assert isinstance(stacked, Whitening)
    singles = []
    for run in range(2):
        single = Whitening(5).eval()
        single.fit(0, x[run], 0.9, torch.Generator().manual_seed(run))
        stacked.fit(run, x[run], 0.9, torch.Generator().manual_seed(run))
        singles.append(single(x[run]))
    assert torch.allclose(stacked(x.flatten(0, 1)), torch.cat(singles), atol=1e-6)


def test_weights_of_nets_without_whitening_are_loaded() -> None:
    layer = Whitening(5)
    layer.load_state_dict({})
    assert torch.equal(layer.matrix[0], torch.eye(5))
