"""Embeddings of numbers, compared with loops over rows and knots."""

from dataclasses import replace

import numpy as np
import torch

from tests.options import resolved
from xvfl.config import EncoderConfig, NetConfig
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl.methods.build import build_parties
from xvfl.nets.numbers import N_FREQUENCIES, SAME_VALUE, NumberEmbeddings
from xvfl.nets.stacked import stack
from xvfl.primitives.layout import Difference, Feature, Layout, NumberBins

KNOTS = (0.0, 1e-6, 0.1, 1 / 3, 0.5, 0.999999, 1.0)
BINS = (
    NumberBins((), ()),
    NumberBins((0.0, 1.0)),
    NumberBins((0.25,)),
    NumberBins(KNOTS, (0.0, 1 / 3, 0.999999)),
    *[NumberBins()] * 3,
    NumberBins((0.2, 0.8), (0.5,)),
)
LAYOUT = Layout(
    (
        Feature("plain", "numeric", 1),
        Feature("ends", "numeric", 1),
        Feature("one knot", "numeric", 1),
        Feature("spiky", "numeric", 1),
        Feature("job", "category", 3),
        Feature("short", "numeric", 1),
        Feature("city", "hashed", 2, 7),
    ),
    bins=BINS,
)
NUMBERS = [0, 1, 2, 3, 7]
"""Encoded columns of the numbers."""
FLAGS = [10, 11, 12, 13, 15]
"""Where a row tells which of them are given."""


def slow_encoding(value: float, bins: NumberBins, n_bins: int, n_frequent: int) -> list[float]:
    """Encode one number knot by knot."""
    encoded = [0.0] * (n_bins + n_frequent)
    for at in range(len(bins.knots) - 1):
        low, high = bins.knots[at], bins.knots[at + 1]
        if value >= high:
            encoded[at] = 1.0
        elif value > low:
            encoded[at] = (value - low) / (high - low)
    for at, frequent in enumerate(bins.frequent):
        if abs(value - frequent) < SAME_VALUE:
            encoded[n_bins + at] = 1.0
    return encoded


def rows() -> torch.Tensor:
    """Draw rows with values at, beside and between knots; some numbers are missing."""
    rng = np.random.default_rng(0)
    values = rng.random((400, 10)).astype(np.float32)
    at_knots = rng.choice(np.array([*KNOTS, 0.2, 0.8], dtype=np.float32), (200, 10))
    values[:200] = at_knots
    values[:100] = np.nextafter(at_knots[:100], np.float32(0.5))
    flags = (rng.random((400, 7)) < 0.8).astype(np.float32)
    return torch.from_numpy(np.concatenate([values, flags], 1))


def test_encodings_equal_loops() -> None:
    n_bins, n_frequent = len(KNOTS) - 1, 3
    wide = 2 * N_FREQUENCIES + n_bins + n_frequent
    net = NumberEmbeddings(LAYOUT, wide)
    with torch.no_grad():
        net.frequencies.zero_()
        net.weight.copy_(torch.eye(wide).expand_as(net.weight))
        net.bias.zero_()
        x = rows()
        out = net(x)
    assert torch.equal(out[:, : x.shape[1]], x)
    found = out[:, x.shape[1] :].view(len(x), len(NUMBERS), wide)[:, :, 2 * N_FREQUENCIES :]
    for row, encoded in zip(x.tolist(), found.tolist(), strict=True):
        for column, flag, numbers in zip(NUMBERS, FLAGS, encoded, strict=True):
            slow = slow_encoding(row[column], BINS[column], n_bins, n_frequent)
            expected = [row[flag] * each for each in slow]
            # A bin of 1e-6 at 1 has 17 steps in single precision.
            np.testing.assert_allclose(numbers, expected, atol=0.07 if row[column] > 0.9 else 1e-5)


def test_stacked_embeddings_equal_single_ones() -> None:
    layout = replace(LAYOUT, differences=PAIRS)
    single = [NumberEmbeddings(layout, 4) for _ in range(3)]
    parts = rows()[:399].chunk(3)
    expected = torch.cat([net(part) for net, part in zip(single, parts, strict=True)])
    found = stack(single)(torch.cat(parts))
    torch.testing.assert_close(found, expected)


def test_gradients_are_finite() -> None:
    x = rows().requires_grad_()
    net = NumberEmbeddings(replace(LAYOUT, differences=PAIRS), 4)
    net(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in net.parameters())


def test_looked_up_products_equal_matrix_products() -> None:
    net = stack([NumberEmbeddings(LAYOUT, 4) for _ in range(2)])
    assert isinstance(net, NumberEmbeddings)
    values = rows().index_select(1, torch.tensor(NUMBERS)).view(2, 200, -1).transpose(1, 2)

    def gradients(out: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out.square().sum(), (at, net.weight))

    looked_up = values.clone().requires_grad_()
    found = net._looked_up(looked_up)
    assert isinstance(found, torch.Tensor)
    multiplied = values.clone().requires_grad_()
    encoded = torch.cat(net._encodings(multiplied), -1)
    expected = encoded @ net.weight[:, :, 2 * N_FREQUENCIES :]
    torch.testing.assert_close(found, expected)
    (of_x, of_weight), slow = gradients(found, looked_up), gradients(expected, multiplied)
    torch.testing.assert_close(of_weight, slow[1])
    inside = ~torch.isin(values, torch.tensor([*KNOTS, 0.2, 0.8]))
    torch.testing.assert_close(of_x[inside], slow[0][inside], rtol=1e-4, atol=1e-4)


PAIRS = (Difference(0, 3, 0.75, -0.5, 0.25), Difference(2, 7, -1.5, 0.5, 2.0))


def test_differences_equal_loops() -> None:
    wide = 2 * N_FREQUENCIES
    net = NumberEmbeddings(replace(LAYOUT, bins=(), differences=PAIRS), wide)
    with torch.no_grad():
        net.weight.copy_(torch.eye(wide).expand_as(net.weight))
        net.bias.zero_()
        x = rows()
        found = net(x)[:, x.shape[1] :].view(len(x), len(NUMBERS) + len(PAIRS), wide)
        plain = NumberEmbeddings(replace(LAYOUT, bins=()), wide)
        plain.load_state_dict({name: each[:, :5] for name, each in net.state_dict().items()})
        torch.testing.assert_close(found[:, :5].flatten(1), plain(x)[:, x.shape[1] :])
    flag_of = dict(zip(NUMBERS, FLAGS, strict=True))
    for at, pair in enumerate(PAIRS, start=len(NUMBERS)):
        frequencies = net.frequencies[0, at]
        for row, embedded in zip(x.tolist(), found[:, at], strict=True):
            given = row[flag_of[pair.first]] * row[flag_of[pair.second]]
            difference = row[pair.first] - pair.slope * row[pair.second]
            scaled = min(max((difference - pair.low) / (pair.high - pair.low), 0.0), 1.0)
            angles = 2 * torch.pi * scaled * frequencies
            expected = given * torch.cat([angles.sin(), angles.cos()]).relu()
            torch.testing.assert_close(embedded, expected, rtol=1e-4, atol=1e-4)


def test_differences_are_used_with_labels_alone() -> None:
    layout = replace(LAYOUT, differences=PAIRS)
    options = resolved(NetConfig(8, 16, number_embedding_dim=3, members=1))

    def count(net: torch.nn.Module) -> int:
        (found,) = [each for each in net.modules() if isinstance(each, NumberEmbeddings)]
        return len(found.second)

    assert count(build_parties({"p": layout}, options.net, options.loss, [0])["p"]) == len(PAIRS)
    assert count(build_encoder("p", layout, EncoderConfig(embedding_dim=8), [0])) == 0


def test_with_labels_numbers_with_frequent_values_alone_use_bins() -> None:
    options = resolved(NetConfig(8, 16, number_embedding_dim=3, members=1))
    smooth = NumberBins(tuple(i / 31 for i in range(32)))
    layout = replace(LAYOUT, bins=(smooth, *BINS[1:]))

    def embeddings(layout: Layout) -> NumberEmbeddings:
        net = build_parties({"p": layout}, options.net, options.loss, [0])["p"]
        (found,) = [each for each in net.modules() if isinstance(each, NumberEmbeddings)]
        return found

    assert embeddings(replace(LAYOUT, bins=(*[smooth] * 8,))).lower.shape[1] == 0
    used = embeddings(layout).scale.count_nonzero(1)
    assert used.tolist() == [0, 0, 0, len(KNOTS) - 1, 1]


def test_encoders_trained_alone_use_all_bins() -> None:
    plain = replace(LAYOUT, bins=())
    config = EncoderConfig(embedding_dim=8, hidden_dim=16, number_embedding_dim=4)
    sizes = [
        sum(each.numel() for each in build_encoder("p", layout, config, [0]).parameters())
        for layout in (plain, LAYOUT)
    ]
    assert sizes[1] - sizes[0] == len(NUMBERS) * (len(KNOTS) - 1 + 3) * 4
