"""Runs with smaller payloads: they train, send less, replay exactly, and refuse what is wrong."""

import pytest
import torch
from torch import Tensor

from tests.federation.split_helpers import InMemoryCheckpoints
from tests.federation.training_helpers import (
    make_endpoint,
    make_workers,
    run_terms,
    start,
    train_config,
)
from xvfl.config import TrainConfig
from xvfl.errors import PartyError
from xvfl.federation.endpoint import Endpoint
from xvfl.methods import Method
from xvfl.training.loop import Trainer
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    CueGradient,
    Embed,
    Embedded,
    ErrorReply,
    Gradient,
    Instruction,
    Message,
    Ready,
)
from xvfl.wire.payload import Packer, Payload

SMALL: list[Payload] = ["bf16", "fp16", "int8"]
NONE = torch.zeros(0, dtype=torch.int32)


def federation(
    train: TrainConfig, payload: Payload
) -> tuple[Trainer, list[InProcessTransport], Method]:
    """Build a run in memory with a payload."""
    made, method, rows = make_workers()
    ends = [make_endpoint(side, InMemoryCheckpoints()) for side in made]
    lines = [InProcessTransport(end.hello, end.handle) for end in ends]
    return Trainer(start(lines, train, payload), method, rows, train), lines, method


def losses(train: TrainConfig, payload: Payload) -> tuple[list[float], int]:
    """Train; give each epoch's loss, and the bytes that travelled."""
    trainer, lines, _ = federation(train, payload)
    before = sum(sum(line.traffic()) for line in lines)
    records = [each for each in trainer.run(lambda: 0.0) if each.kind == "epoch"]
    epochs = [sum(v for name, v in each.values.items() if name != "score") for each in records]
    return epochs, sum(sum(line.traffic()) for line in lines) - before


@pytest.mark.slow
@pytest.mark.parametrize(
    "payload", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("bf16", "fp16")), "int8"]
)
def test_it_trains_as_in_float32(payload: Payload) -> None:
    train = train_config("adamw", epochs=4)
    expected, _ = losses(train, "float32")
    ours, _ = losses(train, payload)
    fallen = expected[0] - expected[-1]
    assert fallen > 0
    assert ours != expected
    assert ours[0] - ours[-1] == pytest.approx(fallen, rel=0.1)


def test_less_travels() -> None:
    train = train_config("adamw", epochs=1)
    sizes = {payload: losses(train, payload)[1] for payload in ("float32", *SMALL)}
    # Of 8 numbers a row; each frame has its head, and each fp16 or int8 row its scale.
    shares = {payload: sizes[payload] / sizes["float32"] for payload in SMALL}
    assert shares["bf16"] < 0.55 and shares["fp16"] < 0.6 and shares["int8"] < 0.42


def begun(payload: Payload) -> Endpoint:
    """Give a party that has begun a run with a payload."""
    end = make_endpoint(make_workers()[0][0], InMemoryCheckpoints())
    settings = run_terms(train_config("adamw", 1), payload).settings
    assert isinstance(say(end, Begin(1, "run", 0, settings, NONE)), Ready)
    return end


def say(end: Endpoint, message: Message) -> Message:
    return codec.decode(end.handle(codec.encode(message)))


def embed(request_id: int, *gradients: Gradient) -> Embed:
    handles = torch.tensor([0, -1, 2, 1], dtype=torch.int32)
    update = Instruction(request_id, "step", 1e-3)
    return Embed(request_id, gradients, (update,), 0, True, ("plain",), handles)


@pytest.mark.parametrize("payload", SMALL)
def test_asked_again_a_party_sends_the_same_and_owes_no_residual_twice(payload: Payload) -> None:
    def cue_gradients(again: int) -> list[Tensor]:
        end, found, packer = begun(payload), [], Packer(payload)
        whole, rng = torch.zeros(4, dtype=torch.bool), torch.Generator().manual_seed(1)
        for request_id in (2, 5):
            say(end, embed(request_id))
            say(
                end,
                Complete(
                    request_id + 1, request_id, packer.pack(torch.randn(4, 8, generator=rng)), whole
                ),
            )
            back = Gradient(request_id + 1, packer.pack(torch.randn(4, 8, generator=rng)))
            question = Backward(request_id + 2, back)
            answers = [say(end, question) for _ in range(again)]
            assert all(isinstance(each, CueGradient) for each in answers)
            found += [each.values for each in answers[-1:]]  # type: ignore[union-attr]
        return found

    for once, often in zip(cue_gradients(1), cue_gradients(3), strict=True):
        assert torch.equal(once, often) and once.any()


@pytest.mark.parametrize("payload", SMALL)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_party_refuses_numbers_that_are_none(payload: Payload, bad: float) -> None:
    end = begun(payload)
    say(end, embed(2))
    values = torch.ones(3, 1, 8)
    values[1, 0, 3] = bad
    answer = say(end, embed(3, Gradient(2, Packer(payload).pack(values))))
    assert isinstance(answer, ErrorReply) and "finite" in answer.text
    whole = Gradient(2, Packer(payload).pack(torch.ones(3, 1, 8)))
    assert isinstance(say(end, embed(4, whole)), Embedded)


def test_a_party_refuses_a_payload_that_was_not_agreed() -> None:
    end = begun("int8")
    say(end, embed(2))
    answer = say(end, embed(3, Gradient(2, torch.ones(3, 1, 8))))
    assert isinstance(answer, ErrorReply) and "'int8'" in answer.text


def test_a_party_that_answers_in_another_payload_is_at_fault() -> None:
    trainer, _, _ = federation(train_config("adamw", 1), "bf16")
    peer = trainer.federation.parties[0]  # type: ignore[attr-defined]
    with pytest.raises(PartyError, match="bfloat16") as caught:
        peer.unpack("embeddings", torch.ones(3, 1, 8), (3, 1, 8), torch.float32)
    assert caught.value.fault == "wrong"
