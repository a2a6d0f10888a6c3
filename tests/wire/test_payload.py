"""Smaller payloads: how much is lost, how much is saved, and that nothing odd gets through."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xvfl.errors import WireError
from xvfl.wire.codec import decode, encode
from xvfl.wire.messages import Embedded
from xvfl.wire.payload import ErrorFeedback, Packer, Payload, pack, unpack

SMALL: list[Payload] = ["bf16", "fp16", "int8"]
SHARES: dict[Payload, float] = {"float32": 1.0, "bf16": 0.5, "fp16": 0.5, "int8": 0.25}


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """Draw rows of very different sizes, some of them 0, sometimes none at all."""
    shape = draw(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 9)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sizes = 10.0 ** draw(st.integers(-30, 30)) * torch.randint(0, 3, (*shape[:2], 1), generator=rng)
    return torch.randn(shape, generator=rng) * sizes


def error_bound(values: Tensor, payload: Payload) -> Tensor:
    """Say how far a number may be off: of itself, or of the largest of its row."""
    largest = values.abs().amax(-1, keepdim=True).expand_as(values)
    if payload == "bf16":
        return values.abs() * 2**-8
    if payload == "fp16":
        # Half floats down to 2^-14 of the row's scale, then steps of 2^-24 of it.
        return torch.maximum(values.abs() * 2**-11, largest * 2**-24) * 1.001
    return largest / 127 / 2 * 1.001


@given(rows(), st.sampled_from(SMALL))
def test_what_comes_back_is_as_near_as_the_payload_promises(
    values: Tensor, payload: Payload
) -> None:
    back = unpack(decode(encode(Embedded(1, 0, pack(values, payload)))).values, payload)  # type: ignore[union-attr]
    assert back.dtype == torch.float32 and back.shape == values.shape
    assert bool(((back - values).abs() <= error_bound(values, payload)).all())
    assert bool((back[values == 0] == 0).all())


@pytest.mark.parametrize("payload", SMALL)
def test_the_largest_and_the_smallest_numbers_stay_finite(payload: Payload) -> None:
    ends = torch.finfo(torch.float32)
    values = torch.tensor([[ends.max, -ends.max, 0.0], [ends.tiny, 0.0, 0.0], [1e-45, 0.0, 0.0]])
    back = unpack(pack(values, payload), payload)
    assert bool(back[1:].isfinite().all()) and bool((back[1:] <= 2 * ends.tiny).all())
    assert bool((back[0] >= -ends.max).all()) and bool(back[0].isfinite().all())


@pytest.mark.parametrize("payload", SMALL)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_none_does_not_come_back_as_one(payload: Payload, bad: float) -> None:
    values = torch.ones(3, 4)
    values[1, 2] = bad
    back = unpack(pack(values, payload), payload)
    assert not back[1].isfinite().all()
    assert bool(back[[0, 2]].isfinite().all())


def test_float32_travels_as_it_is() -> None:
    values = torch.randn(3, 2, 4)
    assert pack(values, "float32").data_ptr() == values.data_ptr()
    gradient = Packer().pack_gradient("embedded", values, torch.arange(3))
    assert gradient.data_ptr() == values.data_ptr()


@pytest.mark.parametrize(("payload", "share"), SHARES.items())
def test_a_frame_is_smaller_by_the_share(payload: Payload, share: float) -> None:
    values = torch.randn(512, 3, 64)
    size = len(encode(Embedded(1, 0, pack(values, payload))))
    assert size / (4 * values.numel()) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("payload", SHARES)
def test_another_payload_than_agreed_is_refused(payload: Payload) -> None:
    for other in SHARES:
        if other != payload:
            with pytest.raises(WireError, match="gradient: expected torch"):
                unpack(pack(torch.ones(2, 8), other), payload, "gradient")


@pytest.mark.parametrize("payload", ["fp16", "int8"])
@pytest.mark.parametrize("shape", [(), (2, 0)])
def test_rows_without_room_for_their_scale_are_refused(
    payload: Payload, shape: tuple[int, ...]
) -> None:
    dtype = pack(torch.ones(1, 1), payload).dtype
    with pytest.raises(WireError, match="expected rows of"):
        unpack(torch.zeros(shape, dtype=dtype), payload)


@pytest.mark.parametrize("payload", SMALL)
def test_with_feedback_what_a_row_was_sent_adds_up_to_its_gradients(payload: Payload) -> None:
    rng = torch.Generator().manual_seed(0)
    packer, plain = Packer(payload), Packer(payload, feedback=False)
    true = torch.randn(20, 2, 6, generator=rng) + 1 / 3
    sums = {name: torch.zeros_like(true) for name in ("feedback", "plain")}
    for _ in range(200):
        batch = torch.randperm(20, generator=rng)
        for name, each in (("feedback", packer), ("plain", plain)):
            sent = each.pack_gradient("embedded", true[batch], batch.int())
            sums[name][batch] += each.unpack(sent, "gradient")
    step = error_bound(true.abs() + 0.1, payload) * 2
    assert bool(((sums["feedback"] - 200 * true).abs() <= step + 1e-3).all())
    assert not bool(((sums["plain"] - 200 * true).abs() <= step + 1e-3).all())


def test_feedback_follows_the_row_and_only_rows_it_may_remember() -> None:
    feedback = ErrorFeedback(max_values=3 * 2)
    handles = torch.tensor([2, -1, 3, 0])
    residual = torch.arange(8.0).view(4, 2) + 1
    feedback.store("embedded", residual, handles)
    asked = torch.tensor([0, 1, 2, 3, -1])
    found = feedback.add("embedded", torch.zeros(5, 2), asked)
    assert found.tolist() == [[7, 8], [0, 0], [1, 2], [0, 0], [0, 0]]
    assert not feedback.add("cue", torch.zeros(5, 2), asked).any()
    assert not feedback.add("embedded", torch.zeros(5, 1), asked).any()


def test_a_bad_gradient_spoils_no_later_one() -> None:
    packer = Packer("int8")
    handles = torch.tensor([0, 1])
    packer.pack_gradient("embedded", torch.tensor([[torch.nan, 1.0], [1.0, 1.0]]), handles)
    sent = packer.pack_gradient("embedded", torch.ones(2, 2), handles)
    assert bool(packer.unpack(sent, "gradient").isfinite().all())
