"""A party behind its endpoint: what it refuses, and that a refusal changes nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.federation.split_helpers import (
    InMemoryCheckpoints,
    make_endpoints,
    make_federation,
    settings_json,
)
from xvfl.config import TrainConfig
from xvfl.errors import RunError
from xvfl.federation.endpoint import Endpoint
from xvfl.nets import NoCompleter
from xvfl.wire import codec
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    Completed,
    CueGradient,
    Done,
    Embed,
    Embedded,
    ErrorReply,
    Flush,
    Gradient,
    Hello,
    Instruction,
    Message,
    Ready,
)

NONE = torch.zeros(0, dtype=torch.int32)
ROWS = torch.tensor([0, -1, 2, 1], dtype=torch.int32)
STEP = Instruction(1, "step", 0.1)


def party(train: TrainConfig | None = None) -> Endpoint:
    """Give a party that has begun a run."""
    end = make_endpoints(make_federation(2))[0]
    assert isinstance(say(end, Begin(1, "run", 0, settings_json(train), NONE)), Ready)
    return end


def say(end: Endpoint, message: Message) -> Any:
    """Say something to a party and hear its answer."""
    return codec.decode(end.handle(codec.encode(message)))


def embed(request_id: int, **more: Any) -> Embed:
    """Ask for embeddings."""
    given = {"gradients": (), "instructions": (), "step": 3, "training": True}
    return Embed(request_id, **{**given, "views": ("plain",), "handles": ROWS, **more})


def cue(rows: int = 4) -> Tensor:
    """Draw a cue."""
    return torch.randn(rows, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


WHOLE = torch.zeros(4, dtype=torch.bool)


def state(end: Endpoint) -> tuple[Any, ...]:
    """Take everything a message could change."""
    worker = end.worker
    assert worker.optimized_net is not None
    tensors = {
        **worker.optimized_net.state_tensors("p"),
        **{f"grad/{n}": p.grad for n, p in worker.net.named_parameters()},
    }
    plain = {name: None if value is None else value.clone() for name, value in tensors.items()}
    return (
        plain,
        end.last_update,
        end.step,
        end._order.last,
        sorted(end._sent),
        end.end_reason,
        end._needs_update,
    )


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Compare two states."""
    tensors = a[0].keys() == b[0].keys() and all(
        (x is None and b[0][n] is None) or torch.equal(x, b[0][n]) for n, x in a[0].items()
    )
    return tensors and a[1:] == b[1:]


def test_a_step_and_its_update() -> None:
    end = party()
    made = say(end, embed(2))
    assert isinstance(made, Embedded) and made.values.shape == (3, 1, 5)
    done = say(end, Complete(3, 2, cue(), WHOLE))
    assert isinstance(done, Completed) and done.values.shape == (4, 5)
    back = say(end, Backward(4, Gradient(3, torch.ones_like(done.values))))
    assert isinstance(back, CueGradient) and back.values.abs().sum() > 0
    before = state(end)[0]
    update = Flush(5, (Gradient(2, torch.ones_like(made.values)),), (STEP,), -1)
    assert say(end, update) == Done(5, 1)
    after = state(end)[0]
    assert any(not torch.equal(before[n], after[n]) for n in before if n.startswith("net/"))


def test_asked_again_it_gives_the_same_answer_and_does_nothing_twice() -> None:
    end = party()
    made = say(end, embed(2))
    gradient = (Gradient(2, torch.ones_like(made.values)),)
    question = codec.encode(embed(3, gradients=gradient, instructions=(STEP,), step=4))
    first = end.handle(question)
    before = state(end)
    for _ in range(3):
        assert end.handle(question) == first
    assert same(before, state(end)) and end.last_update == 1


def gradient(end: Endpoint, change: Callable[[Tensor], Tensor]) -> tuple[Gradient, ...]:
    return (Gradient(2, change(torch.ones(3, 1, 5, dtype=torch.float64))),)


def updating(end: Endpoint, views: tuple[str, ...]) -> Embed:
    """Ask for views, with an update that must not be made when they are refused."""
    return embed(9, views=views, gradients=gradient(end, lambda g: g), instructions=(STEP,))


WRONG: dict[str, tuple[Callable[[Endpoint], Message], str]] = {
    "stale": (lambda end: embed(2, step=9), "above 3, got 2: stale or replayed"),
    "replayed under another name": (lambda end: Flush(3, (), (), -1), "stale or replayed"),
    "handles out of range": (
        lambda end: embed(9, handles=torch.tensor([99], dtype=torch.int32)),
        "match ids again",
    ),
    "handles of another type": (lambda end: embed(9, handles=torch.tensor([1])), "int32"),
    "no views": (lambda end: embed(9, views=()), "expected views among"),
    "unknown view": (lambda end: embed(9, views=("raw",)), "expected views among"),
    "plain twice": (lambda end: updating(end, ("plain", "plain")), "one view 'plain', got 2"),
    "negative step": (lambda end: embed(9, step=-1), "step of 0 or more"),
    "gradient of an unknown tensor_id": (
        lambda end: embed(9, gradients=(Gradient(8, torch.ones(3, 1, 5)),)),
        "no longer stored",
    ),
    "gradient twice": (lambda end: embed(9, gradients=2 * gradient(end, lambda g: g)), "once"),
    "gradient with NaN": (
        lambda end: embed(9, gradients=gradient(end, lambda g: g * torch.nan)),
        "NaN or infinity",
    ),
    "gradient of another shape": (
        lambda end: embed(9, gradients=gradient(end, lambda g: g[:2])),
        r"expected shape \(3, 1, 5\), got \(2, 1, 5\)",
    ),
    "gradient of another type": (
        lambda end: embed(9, gradients=gradient(end, lambda g: g.float())),
        "float64, got torch.float32",
    ),
    "update made before": (
        lambda end: embed(9, instructions=(Instruction(0, "step", 0.1),)),
        "already applied",
    ),
    "update of another optimizer": (
        lambda end: embed(9, instructions=(Instruction(1, "page_refresh", 0.1),)),
        "this run's optimizer",
    ),
    "unknown update": (lambda end: embed(9, instructions=(Instruction(1, "wipe", 0.1),)), "wipe"),
    "learning rate NaN": (
        lambda end: embed(9, instructions=(Instruction(1, "step", float("nan")),)),
        "learning rate",
    ),
    "cue with infinity": (lambda end: Complete(9, 2, cue() / 0, WHOLE), "NaN or infinity"),
    "cue of another shape": (lambda end: Complete(9, 2, cue(5), WHOLE), "expected shape"),
    "whole of another type": (lambda end: Complete(9, 2, cue(), WHOLE.int()), "bool"),
    "completion of a used tensor_id": (lambda end: Complete(9, 7, cue(), WHOLE), "unknown"),
    "backward of an embedding": (
        lambda end: Backward(9, gradient(end, lambda g: g)[0]),
        "not a completed embedding",
    ),
    "a party's message": (lambda end: Ready(9, 0, 0, NONE), "expected a request of a coordinator"),
    "another hello": (lambda end: Hello(9, "x", False, 1, "", ""), "a request of a coordinator"),
    "a batch before the update of the last one": (
        lambda end: embed(9, step=4),
        "expected the update of the last training batch first",
    ),
    "settings that are none": (lambda end: Begin(9, "run", 0, "[", NONE), "JSON"),
    "settings with an unknown key": (lambda end: Begin(9, "run", 0, '{"seeds": 1}', NONE), "seed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_message_is_refused_and_changes_nothing(name: str) -> None:
    end = party()
    say(end, embed(2))
    say(end, Complete(3, 2, cue(), WHOLE))
    make, said = WRONG[name]
    before = state(end)
    reply = say(end, make(end))
    assert isinstance(reply, ErrorReply), name
    assert re.search(said, reply.text), reply.text
    assert same(before, state(end))


def test_a_party_without_a_completer_refuses_to_complete() -> None:
    end = party()
    end.worker.net.completer, end.worker.net.completes = NoCompleter(), False
    say(end, embed(2))
    before = state(end)
    for wrong in (updating(end, ("plain", "self")), Complete(9, 2, cue(), WHOLE)):
        reply = say(end, wrong)
        assert isinstance(reply, ErrorReply) and "method has none" in reply.text
    assert same(before, state(end))


def test_self_alone_is_the_self_of_a_pair() -> None:
    end = party()
    pair = say(end, embed(2, views=("masked", "self")))
    alone = say(end, embed(3, views=("self",), instructions=(replace(STEP, rate=0.0),)))
    torch.testing.assert_close(alone.values[:, 0], pair.values[:, 1])


def test_a_party_outlives_a_failure_of_its_own_and_keeps_the_details_to_itself() -> None:
    events: list[dict[str, Any]] = []
    end = party()
    end._log_problem = events.append
    say(end, embed(2))
    rows = end.worker.table
    end.worker.table = Broken(len(rows))  # type: ignore[assignment]
    reply = say(end, embed(3, instructions=(STEP,)))
    assert isinstance(reply, ErrorReply) and reply.code == "RuntimeError"
    assert "internal error RuntimeError" in reply.text and "Ann" not in reply.text
    assert [e["event"] for e in events] == [
        "internal_error",
        "request_rejected",
    ] and "Ann" in events[0]["traceback"]
    end.worker.table = rows
    assert "no longer stored" in say(end, Complete(4, 2, cue(), WHOLE)).text
    assert isinstance(say(end, embed(5, instructions=(replace(STEP, number=2),))), Embedded)


class Broken:
    """A table whose rows cannot be read."""

    device = torch.device("cpu")

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def take(self, handles: Tensor) -> None:
        raise RuntimeError("row of Ann")


def test_a_refusal_quotes_no_more_than_can_be_sent() -> None:
    end = party()
    for key in ("x" * (2**20 - 20), "\\ud800"):
        asked = Begin(9, "run", 0, f'{{"{key}": 1}}', NONE)
        assert isinstance(say(end, asked), ErrorReply)


def test_a_checkpoint_that_does_not_fit_leaves_the_party_where_it_was() -> None:
    end = party()
    say(end, Flush(2, (), (STEP,), 3))
    before = state(end)
    end._store.save("other", 5, {"net/p0/none": torch.zeros(1)}, 7)
    assert isinstance(say(end, Begin(9, "other", 9, settings_json(), NONE)), ErrorReply)
    assert same(before, state(end))


def test_before_a_run_only_begin_is_answered() -> None:
    end = make_endpoints(make_federation(2))[0]
    for message in (embed(1), Complete(1, 1, cue(), WHOLE), Flush(1, (), (), 3)):
        assert "expected Begin first" in say(end, message).text


def test_a_checkpoint_is_taken_up_again() -> None:
    stores = [InMemoryCheckpoints(), InMemoryCheckpoints()]
    made = make_federation(2)
    end = make_endpoints(made, stores=stores)[0]
    say(end, Begin(1, "run", 0, settings_json(), NONE))
    values = say(end, embed(2)).values
    say(end, Flush(3, (Gradient(2, values),), (STEP,), 7))
    kept = {name: value.clone() for name, value in end.worker.net.state_dict().items()}
    values = say(end, embed(4, step=7)).values
    say(end, Flush(5, (Gradient(4, values),), (replace(STEP, number=2),), -1))
    assert end.last_update == 2
    again = say(end, Begin(6, "run", 30, settings_json(), NONE))
    assert (again.step, again.last_update) == (7, 1)
    assert all(torch.equal(kept[n], v) for n, v in end.worker.net.state_dict().items())
    fresh = say(end, Begin(7, "another", 30, settings_json(), NONE))
    assert (fresh.step, fresh.last_update) == (0, 0)
    early = say(end, Begin(8, "run", 6, settings_json(), NONE))
    assert early.step == 0


def test_a_page_step_given_up_between_its_passes() -> None:
    end = party(TrainConfig(optimizer="page"))
    values = say(end, embed(2)).values
    say(end, Flush(3, (Gradient(2, values),), (Instruction(1, "page_refresh", 0.1),), 5))
    before = {name: value.clone() for name, value in end.worker.net.state_dict().items()}
    values = say(end, embed(4)).values
    back = Instruction(2, "page_look_back", 0.1)
    second = embed(5, gradients=(Gradient(4, values),), instructions=(back,))
    assert isinstance(say(end, second), Embedded)
    now = end.worker.net.state_dict()
    assert not all(torch.equal(before[name], now[name]) for name in before)
    again = say(end, Begin(6, "run", 5, settings_json(TrainConfig(optimizer="page")), NONE))
    assert again.last_update == 1
    now = end.worker.net.state_dict()
    assert all(torch.equal(before[name], now[name]) for name in before)


def test_a_request_for_too_many_copies_of_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    end = party()
    monkeypatch.setattr("xvfl.federation.endpoint.MAX_COPIES", 8)
    assert isinstance(say(end, embed(2, views=("plain", "masked"))), Embedded)
    reply = say(end, embed(3, views=("plain", "masked", "self"), instructions=(STEP,)))
    assert "expected at most 8 copies of rows; lower `batch_size`" in reply.text
    assert isinstance(say(end, embed(4, training=False)), Embedded)


def test_a_checkpoint_that_cannot_be_written_is_refused_after_the_update() -> None:
    end = party()
    say(end, embed(2))
    end._store = FullDisk()  # type: ignore[assignment]
    reply = say(end, Flush(3, (), (STEP,), 5))
    assert isinstance(reply, ErrorReply) and "the party could not do this" in reply.text
    assert end.last_update == 1
    assert isinstance(say(end, embed(4)), Embedded)


class FullDisk(InMemoryCheckpoints):
    """A store on a full disk."""

    def save(self, *given: Any) -> None:
        raise RunError("no space left on device")
