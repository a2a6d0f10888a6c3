"""A party under fire: frames that no coordinator would send are answered or change nothing."""

import random

import pytest
import torch

from tests.federation.mutations import corrupt_frame, forge_frame
from tests.federation.split_helpers import settings_json
from tests.federation.test_endpoint import (
    NONE,
    STEP,
    WHOLE,
    cue,
    embed,
    gradient,
    party,
    same,
    say,
    state,
)
from xvfl.federation.endpoint import Endpoint
from xvfl.wire import codec
from xvfl.wire.messages import Backward, Begin, Complete, End, ErrorReply, Flush, Gradient

COUNTS = [500, pytest.param(2_000, marks=pytest.mark.slow)]
"""Numbers of frames to send."""


def at_work() -> Endpoint:
    """Give a party with an embedding and a completion out."""
    end = party()
    say(end, embed(2))
    say(end, Complete(3, 2, cue(), WHOLE))
    return end


def questions(end: Endpoint) -> list[bytes]:
    """List every kind of question that such a party would answer."""
    back = Gradient(3, torch.ones(4, 5, dtype=torch.float64))
    views = ("plain", "masked", "self")
    given = {"gradients": gradient(end, lambda g: g), "instructions": (STEP,)}
    asked = (
        embed(9, views=views, **given),
        embed(9, training=False),
        Complete(9, 2, cue(), WHOLE),
        Backward(9, back),
        Flush(9, given["gradients"], (STEP,), 5),
        Begin(9, "run", 0, settings_json(), NONE),
        End(9, "over"),
    )
    return [codec.encode(each) for each in asked]


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_frames_change_nothing(count: int) -> None:
    end, rng = at_work(), random.Random(5)
    valid, before = questions(end), state(end)
    for _ in range(count):
        assert isinstance(codec.decode(end.handle(corrupt_frame(rng, valid))), ErrorReply)
    assert same(before, state(end)) and end.n_rejected == count


@pytest.mark.parametrize("count", COUNTS)
def test_whole_frames_around_nonsense_are_answered_and_a_refusal_changes_nothing(
    count: int,
) -> None:
    end, rng = at_work(), random.Random(7)
    failed: list[str] = []
    valid, before = questions(end), state(end)
    end._log_problem = lambda event: (
        failed.append(event["traceback"]) if "traceback" in event else None
    )
    answered = refused = 0
    for _ in range(count):
        frame = forge_frame(rng, valid)
        reply = codec.decode(end.handle(frame))
        if isinstance(reply, ErrorReply):
            refused += 1
            assert same(before, state(end)), codec.decode(frame)
            continue
        answered += 1
        note, end = end._log_problem, at_work()
        end._log_problem = note
    assert not failed, failed[0]
    assert refused > count // 3 and answered > count // 20
