"""The default nets in every size, and users' own in their place."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from tests.options import resolved
from tests.problems import IMAGE, MIXED, NUMBERS
from xvfl import XVFLClassifier, nets
from xvfl.config import NO_PROTECTION, LossConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import InputError, RunError
from xvfl.methods.build import build_method, build_parties
from xvfl.model.custom_nets import CustomNets
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.nets.completers import TypedOutput
from xvfl.nets.party_net import PartyNet
from xvfl.nets.resnet import Block, ResidualBottom
from xvfl.options import MAX_EMBEDDED_NUMBERS, resolve_options
from xvfl.primitives.layout import Feature, Layout, any_image
from xvfl.primitives.task import Classification

RNG = torch.Generator().manual_seed(0)


def linears(net: nn.Module) -> list[tuple[int, int]]:
    """List the widths of a net's linear layers."""
    return [(m.in_features, m.out_features) for m in net.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("size", [(8, 4), (32, 16), (32, 8), (7, 5), (1, 1)])
def test_residual_bottoms_of_any_depth_take_any_image(blocks: int, size: tuple[int, int]) -> None:
    net = ResidualBottom(4, 10, blocks, width=16)
    out = net(torch.rand(2, 4, *size, generator=RNG))
    assert out.shape == (2, 10) and out.isfinite().all()
    stack = [each for each in net.modules() if isinstance(each, Block)]
    sizes = [each.second.out_channels for each in stack]
    assert len(stack) == blocks
    assert sizes == sorted(sizes) and sizes[0] == 16 and sizes[-1] == 16 * 2 ** (min(4, blocks) - 1)


def test_more_blocks_have_more_weights() -> None:
    bottoms = [ResidualBottom(4, 10, blocks) for blocks in (1, 2, 4, 8)]
    counts = [sum(p.numel() for p in net.parameters()) for net in bottoms]
    assert counts == sorted(set(counts))


def test_a_residual_bottom_uses_every_pixel_and_the_flags() -> None:
    x = torch.rand(1, 4, 8, 4, generator=RNG, requires_grad=True)
    ResidualBottom(4, 10, 4)(x).square().sum().backward()
    assert x.grad is not None and (x.grad != 0).all()


def test_heads_have_six_layers_for_images_and_three_for_tables() -> None:
    assert linears(nets.head(9, 7, 4, image=True)) == [(9, 7), *[(7, 7)] * 4, (7, 4)]
    assert linears(nets.head(9, 7, 4, image=False)) == [(9, 7), (7, 7), (7, 4)]


def test_table_bottoms_have_three_layers_and_see_features_and_flags() -> None:
    assert linears(nets.bottom(MIXED, 9, 7, 1)) == [(16 + 6, 7), (7, 7), (7, 9)]
    assert linears(nets.completer(MIXED, 9, 7)) == [(9, 7), (7, 7), (7, 16)]


def test_a_linear_skip_is_added_to_table_bottoms() -> None:
    skip = nets.bottom(MIXED, 9, 7, 1, skip_rank=3)
    assert linears(skip) == [(16 + 6, 7), (7, 7), (7, 9), (16 + 6, 3), (3, 9)]
    assert linears(nets.bottom(MIXED, 9, 7, 1, skip_rank=9))[3:] == [(16 + 6, 9)]
    assert isinstance(skip, nets.LinearSkip)
    x = torch.rand(5, 16 + 6, generator=RNG)
    first, second = skip.linear.children()
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    expected = skip.net(x) + (x @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(skip(x), expected)
    assert isinstance(nets.bottom(IMAGE, 9, 7, 1, skip_rank=3), ResidualBottom)


@pytest.mark.parametrize("size", list(itertools.product([1, 3, 4, 7, 8], [1, 2, 5, 8])))
@pytest.mark.parametrize("channels", [1, 3])
def test_image_completers_give_images_of_any_size(channels: int, size: tuple[int, int]) -> None:
    out = nets.completer(Layout(image=(channels, *size)), 6, 8)(torch.randn(2, 6, generator=RNG))
    assert out.shape == (2, channels, *size)
    assert ((out > 0) & (out < 1)).all()


@pytest.mark.parametrize(
    "kinds",
    ["n", "c", "h", "nc", "cn", "cnc", "nch", "cncnhh", "ch", "nh"],
)
def test_table_completers_type_each_column_in_its_place(kinds: str) -> None:
    widths_ = [1 + i % 3 + (kind == "c") for i, kind in enumerate(kinds)]
    names = {"n": "numeric", "c": "category", "h": "hashed"}
    layout = Layout(
        tuple(
            Feature(f"f{i}", names[kind], width, 5 * (kind == "h"))
            for i, (kind, width) in enumerate(zip(kinds, widths_, strict=True))
        )
    )
    raw = torch.randn(4, layout.encoded, generator=RNG)
    out, at = TypedOutput(layout)(raw), 0
    assert out.shape == raw.shape
    for kind, width in zip(kinds, widths_, strict=True):
        part = raw[:, at : at + width]
        typed = {"n": part.sigmoid(), "c": part.softmax(1), "h": part}[kind]
        torch.testing.assert_close(out[:, at : at + width], typed)
        at += width


def default_nets() -> dict[str, tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]]:
    """List every default net, with a way to draw inputs for it."""

    def draw(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
        return lambda n: (torch.rand(n, *shape, generator=RNG, dtype=torch.float64),)

    cases: dict[str, tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]] = {
        "head": (nets.head(6, 8, 3, image=False), draw(6)),
        "image head": (nets.head(6, 8, 3, image=True), draw(6)),
    }
    layouts = {"numbers": NUMBERS, "mixed": MIXED, "image": IMAGE, "wide": Layout(image=(3, 8, 8))}
    for name, layout in layouts.items():
        shape = (layout.encoded + layout.raw,)
        if layout.image is not None:
            shape = (layout.image[0] + 1, *layout.image[1:])
        cases[f"{name} bottom"] = (nets.bottom(layout, 6, 8, 4), draw(*shape))
        cases[f"{name} completer"] = (nets.completer(layout, 6, 8), draw(6))
    return cases


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", default_nets())
def test_no_net_looks_at_the_other_rows_of_a_batch(name: str, training: bool) -> None:
    net, draw = default_nets()[name]
    net.double().train(training)
    before = [buffer.clone() for buffer in net.buffers()]
    (x,), (other,) = draw(3), draw(3)
    x, other = x[:1], 100 * other
    out = net(x)
    torch.testing.assert_close(net(torch.cat([x, other]))[:1], out, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(net(torch.cat([other, x]))[-1:], out, rtol=1e-9, atol=1e-12)
    assert all(map(torch.equal, before, net.buffers()))


def test_default_sizes_follow_the_data_kind_and_the_members() -> None:
    def sizes(image: bool, **given: int) -> tuple[int, int]:
        net = resolved(NetConfig(**given), image=image).net
        return net.embedding_dim, net.hidden_dim

    assert sizes(False) == (64, 128)
    assert sizes(True) == (256, 256)
    assert sizes(True, embedding_dim=5) == (5, 256)
    assert sizes(False, hidden_dim=6) == (64, 6)
    assert sizes(False, members=3) == (32, 64)


def test_automatic_values_are_replaced_once() -> None:
    several = resolved(federated=False).net
    assert (several.members, several.number_embedding_dim) == (4, 8)
    one = resolved().net
    assert (one.members, one.number_embedding_dim) == (1, 0)
    assert resolved(NetConfig(number_embedding_dim=0), federated=False).net == replace(
        several, number_embedding_dim=0
    )
    assert resolved(several).net == several
    assert resolved(one, federated=False).net == one


def in_one_process(net: NetConfig, numbers: int) -> NetConfig:
    return resolve_options(
        net,
        LossConfig(),
        TrainConfig(),
        NO_PROTECTION,
        federated=False,
        image=False,
        parties=2,
        rows=100,
        numbers=numbers,
    ).net


def test_many_numbers_have_no_embeddings_by_default() -> None:
    def width(numbers: int, given: int | None = None) -> int | None:
        net = NetConfig(number_embedding_dim=given)
        return in_one_process(net, numbers).number_embedding_dim

    assert (width(MAX_EMBEDDED_NUMBERS), width(MAX_EMBEDDED_NUMBERS + 1)) == (8, 0)
    assert width(MAX_EMBEDDED_NUMBERS + 1, 3) == 3


@pytest.mark.parametrize("layouts", [{"a": NUMBERS, "b": MIXED}, {"a": NUMBERS, "b": IMAGE}])
def test_default_nets_fit_together(layouts: dict[str, Layout]) -> None:
    image = any_image(layouts)
    options = resolved(image=image)
    parties = build_parties(layouts, options.net, options.loss, [0])
    method = build_method(
        len(layouts), Classification(range(4)), image, options.net, options.loss, [0]
    )
    assert len(linears(method.heads)) == (6 if image else 3)
    for name, layout in layouts.items():
        net, shape = parties[name], layout.image or (layout.encoded,)
        x, observed = torch.rand(2, *shape), torch.ones(2, layout.raw, dtype=torch.bool)
        E = net.embed(x, observed)
        assert E.shape == (2, 256 if image else 64)
        assert net.completer(*net.completer_inputs(x, observed, E)).shape == (2, *shape)
        assert method.heads(E).shape == (2, 4)


def test_a_partys_first_weights_are_named_by_seed_and_party_alone() -> None:
    def weights(seed: int, layouts: dict[str, Layout]) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            options = resolved(NetConfig(8, 8))
            net: PartyNet = build_parties(layouts, options.net, options.loss, [seed])["b"]
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    first = weights(0, {"a": NUMBERS, "b": MIXED})
    assert torch.equal(first, weights(0, {"b": MIXED, "c": NUMBERS}))
    assert not torch.equal(first, weights(1, {"a": NUMBERS, "b": MIXED}))


# Users' own nets.


class Own(nn.Module):
    """A bottom nobody expects: a quadratic form."""

    def __init__(self, fan_in: int, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(fan_in, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).square()


def frames() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    rng = np.random.default_rng(0)
    index = pd.Index([f"r{i}" for i in range(40)], name="id")
    sources = {
        name: pd.DataFrame(rng.random((40, 2)), index=index, columns=["u", "v"])
        for name in ("bank", "shop")
    }
    return sources, pd.Series(rng.permutation([0, 1] * 20), index=index)


def classifier(**more: Any) -> XVFLClassifier:
    return XVFLClassifier(
        epochs=1, embedding_dim=6, hidden_dim=8, device="cpu", verbose=False, **more
    )


def test_a_users_modules_and_builders_take_the_place_of_the_defaults(tmp_path: Path) -> None:
    sources, labels = frames()
    asked: list[tuple[Layout, int]] = []

    def builder(layout: Layout, d: int) -> nn.Module:
        asked.append((layout, d))
        return Own(layout.encoded + layout.raw, d)

    own, completer, head = Own(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)
    bottoms = {"bank": own, "shop": builder}
    mine = {"bottoms": bottoms, "completers": {"shop": completer}, "head": head}
    kept = [p.clone() for net in (own, completer, head) for p in net.parameters()]
    fitted = classifier(**mine).fit(sources, labels)
    model = fitted.model_
    assert asked == [(model.encoders["shop"].layout, 6)]
    assert isinstance(model.parties["bank"].bottom, Own)
    assert isinstance(model.parties["shop"].bottom, Own)
    assert isinstance(model.parties["shop"].completer, nn.Linear)
    assert isinstance(model.parties["bank"].completer, nets.Completer)
    assert isinstance(model.method.heads, nn.Linear)
    assert not torch.equal(model.parties["bank"].bottom.linear.weight, own.linear.weight)
    given = [p for net in (own, completer, head) for p in net.parameters()]
    assert all(map(torch.equal, kept, given)), "the user's own modules must not be trained in place"
    said = fitted.predict_proba(sources)
    folder = RunDir(tmp_path / "model")
    model.save(folder)
    with pytest.raises(RunError, match="custom nets"):
        Model.load(folder)
    again = Model.load(folder, CustomNets(**mine)).predict(sources)
    np.testing.assert_array_equal(again.values, said.to_numpy())


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"bottoms": {"bank": nn.Linear(5, 6)}}, "party 'bank': custom net does not fit"),
        ({"bottoms": {"shop": nn.Linear(4, 7)}}, "party 'shop': custom net does not fit"),
        (
            {"bottoms": {"shop": lambda layout, d: nn.Linear(layout.encoded, d)}},
            "maps the 2 encoded columns and 2 observed flags",
        ),
        (
            {"bottoms": {"shop": nn.Linear(4, 7)}, "completers": {"shop": nn.Linear(7, 2)}},
            "bottoms must have the same output size",
        ),
        ({"completers": {"bank": nn.Linear(6, 3)}}, r"output shape \(2,\) per row, got \(3,\)"),
        ({"completers": {"bank": nn.Linear(5, 2)}}, "party 'bank': custom net does not fit"),
        ({"bottoms": {"bnak": nn.Linear(4, 6)}}, "did you mean 'bank'"),
    ],
)
def test_a_misfitting_net_is_named_before_training(own: dict[str, Any], message: str) -> None:
    sources, labels = frames()
    ready = prepare_in_memory(sources, labels, PreparationPlan({}, Splits(0.0, 0.2, 0)))
    options = resolved(NetConfig(6, 8))
    rest = (ready.task, ready.prior(), options.net, options.loss, 0)
    with pytest.raises(InputError, match=message):
        Model(ready.encoders, ready.full_threshold, *rest, CustomNets(**own))
    with pytest.raises(InputError, match=message):
        classifier(**own).fit(sources, labels)


@pytest.mark.parametrize(
    "own",
    [
        {"head": nn.Linear(5, 2)},
        {"head": nn.Linear(6, 3)},
        {"bottoms": {"bank": lambda layout, d: "no net"}},
    ],
    ids=["head of another width", "head of other classes", "no net"],
)
def test_other_misfits_are_named_too(own: dict[str, Any]) -> None:
    sources, labels = frames()
    ready = prepare_in_memory(sources, labels, PreparationPlan({}, Splits(0.0, 0.2, 0)))
    options = resolved(NetConfig(6, 8))
    rest = (ready.task, ready.prior(), options.net, options.loss, 0)
    with pytest.raises(InputError):
        Model(ready.encoders, ready.full_threshold, *rest, CustomNets(**own))


def test_an_adapted_head_maps_each_party_by_its_own_layer() -> None:
    privacy = PrivacyConfig("no_gradients")
    options = resolved(NetConfig(heads=1), privacy=privacy)
    method = build_method(
        3, Classification(range(2)), False, options.net, options.loss, [0], privacy=privacy
    )
    head = method.heads
    assert isinstance(head, nets.AdaptedHead)
    E = torch.randn(5, 3, 2, 256, generator=RNG)
    expected = [[head.adapters[i](E[row, i]) for i in range(3)] for row in range(5)]
    adapted = head.adapt(E)
    assert adapted.shape == (5, 3, 2, 64)
    torch.testing.assert_close(adapted, torch.stack([torch.stack(row) for row in expected]))
    torch.testing.assert_close(head.select_parties([2, 0]).adapt(E[:, [2, 0]]), adapted[:, [2, 0]])


@pytest.mark.parametrize("privacy", [PrivacyConfig("off"), PrivacyConfig("noise")])
def test_parties_that_receive_gradients_need_no_adapters(privacy: PrivacyConfig) -> None:
    options = resolved(privacy=privacy)
    method = build_method(
        3, Classification(range(2)), False, options.net, options.loss, [0], privacy=privacy
    )
    assert not isinstance(method.heads, nets.AdaptedHead)
