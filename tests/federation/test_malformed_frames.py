"""The coordinator under fire: frames that no party would send change nothing, and are logged."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor

from tests.federation.mutations import corrupt_frame, forge_frame
from tests.federation.split_helpers import (
    make_endpoints,
    make_federation,
    make_small_method,
    settings_json,
)
from tests.federation.test_split import assert_equal, fused_gradients, split_gradients
from tests.problems import D, Problem
from tests.wire.transport_helpers import run_client, run_server, tls_files, wait_until
from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.endpoint import Endpoint
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.split import SplitFederation
from xvfl.methods import Method
from xvfl.methods.base import Federation
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import WeightUpdate
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Challenge, Done, Embedded, Hello, Match, Matched, Ready
from xvfl.wire.server import CoordinatorServer
from xvfl.wire.tls import PATH

COUNTS = [500, pytest.param(2_000, marks=pytest.mark.slow)]
"""Numbers of frames to send."""
STRANGE, TURN = "p2", 77
"""A party on the list that sends nonsense, and the request_id of the question it is asked."""
HELLO = Hello(0, "strange", False, 3, "columns", "session")
GREETING = [codec.encode(Challenge(0, bytes(32))), codec.encode(HELLO)]
VALID = [
    codec.encode(each)
    for each in (
        HELLO,
        Ready(TURN, 0, 0, torch.ones(9, dtype=torch.uint8)),
        Embedded(TURN, torch.randn(4, 3, D)),
        Done(TURN, 1),
        Matched(TURN, bytes(range(200))),
    )
]


class Stream:
    """Stands for a gRPC stream where ten thousand real ones would take too long."""

    def __init__(self, certificate: bytes, frames: list[bytes]) -> None:
        self._certificate, self._frames = certificate, iter(frames)

    def peer(self) -> str:
        return "nowhere"

    async def read(self) -> Any:
        return next(self._frames, grpc.aio.EOF)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate]}

    async def write(self, frame: bytes) -> None:
        """Take a question."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise grpc.aio.AbortError(text)


@dataclass
class Meeting:
    """A coordinator with two parties at work, and a third name on its list."""

    made: Problem
    method: Method
    listener: CoordinatorServer
    federation: SplitFederation
    folder: Path
    events: list[dict[str, Any]]

    def state(self) -> tuple[Any, ...]:
        parties = self.federation.parties
        pending = [(each.gradients, each.instructions, each.instance_id) for each in parties]
        heard = [self.listener.transports[name].hello() for name in self.made.names]
        return deepcopy((self.federation.counters, pending, heard))

    def weights(self) -> list[Tensor]:
        nets = [*self.made.parties, self.method.heads]
        return [each.detach().clone() for net in nets for each in net.parameters()]

    def refused(self) -> int:
        rejected = [each for each in self.events if each["event"] == "connection_rejected"]
        counted = sum(each.get("not_logged", 0) for each in rejected)
        pending = self.listener._limited_log._not_logged
        pending_count = sum(n for (kind, _), n in pending.items() if kind == "connection_rejected")
        return len(rejected) + counted + pending_count


@pytest.fixture
def meeting(authority: Path) -> Iterator[Meeting]:
    made, events = make_federation(2), []  # type: ignore[var-annotated]
    with ExitStack() as stack:
        names = [*made.names, STRANGE]
        listener = stack.enter_context(run_server(authority, names, log_event=events.append))
        for name, end in zip(made.names, make_endpoints(made, 0.7), strict=True):
            stack.enter_context(run_client(authority, name, listener.port, end.hello, end.handle))
        peers = [RemoteParty(name, listener.transports[name]) for name in made.names]
        federation = SplitFederation(peers, D)
        begin_run(federation, RunTerms("run", settings_json(), join_timeout=20))
        method = make_small_method(made, "xvfl+")
        yield Meeting(made, method, listener, federation, authority, events)


async def flood(meeting: Meeting, rng: random.Random, frames_sent: int) -> None:
    """Send damaged first words in all_parties's name, and damaged answers in the strange one's."""
    shown = {n: (meeting.folder / f"{n}.crt").read_bytes() for n in meeting.listener.transports}
    for count in range(frames_sent):
        bad = corrupt_frame(rng, VALID)
        frames = [*GREETING[: count % 4 // 2], bad] if count % 2 else [*GREETING, bad]
        name = rng.choice(list(shown)) if count % 2 else STRANGE
        with pytest.raises(grpc.aio.AbortError):
            await meeting.listener._join(None, Stream(shown[name], frames))


def flood_grpc(meeting: Meeting, rng: random.Random, frames_sent: int) -> None:
    """Do the same over a real connection."""
    address = f"localhost:{meeting.listener.port}"
    with grpc.secure_channel(
        address, tls_files(meeting.folder, STRANGE).client_credentials()
    ) as channel:
        for count in range(frames_sent):
            bad = corrupt_frame(rng, VALID)
            frames = [*GREETING[: count % 4 // 2], bad] if count % 2 else [*GREETING, bad]
            with pytest.raises(grpc.RpcError) as caught:
                for _ in channel.stream_stream(PATH)(iter(frames), timeout=120):
                    pass
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_frames_change_nothing(meeting: Meeting, count: int) -> None:
    rng, line = random.Random(3), meeting.listener.transports[STRANGE]
    expected = fused_gradients(meeting.made, meeting.method, 0.7)
    asked = line.request(Match(TURN, b"?"))
    state, weights = meeting.state(), meeting.weights()
    running = asyncio.run_coroutine_threadsafe(flood(meeting, rng, count), meeting.listener._loop)
    running.result(300)
    assert meeting.refused() == count
    over_grpc = count // 16
    flood_grpc(meeting, rng, over_grpc)
    wait_until(lambda: meeting.refused() == count + over_grpc)
    assert all(e["reason"] for e in meeting.events if e["event"] == "connection_rejected")
    assert meeting.state() == state and not asked.done() and line.hello() is None
    assert all(torch.equal(a, b) for a, b in zip(meeting.weights(), weights, strict=True))

    ours = split_gradients(meeting.made, meeting.method, meeting.federation)
    assert_equal(ours, expected, 1e-12)


async def flood_sealed(meeting: Meeting, rng: random.Random, frames_sent: int) -> int:
    """Send whole frames around nonsense, as first words and as answers; count the answers heard."""
    shown = {n: (meeting.folder / f"{n}.crt").read_bytes() for n in meeting.listener.transports}
    heard = 0
    for count in range(frames_sent):
        forged = forge_frame(rng, VALID)
        frames = [*GREETING[: count % 4 // 2], forged] if count % 2 else [*GREETING, forged]
        name = rng.choice(list(shown)) if count % 2 else STRANGE
        asked = meeting.listener.transports[STRANGE].request(Match(TURN, b"?"))
        await asyncio.sleep(0)
        with suppress(grpc.aio.AbortError):
            await meeting.listener._join(None, Stream(shown[name], frames))
        heard += asked.done() and asked.exception() is None
    return heard


@pytest.mark.parametrize("count", COUNTS)
def test_whole_frames_around_nonsense_touch_nobody_else(meeting: Meeting, count: int) -> None:
    state, weights = meeting.state(), meeting.weights()
    running = asyncio.run_coroutine_threadsafe(
        flood_sealed(meeting, random.Random(9), count), meeting.listener._loop
    )
    assert running.result(300) > count // 10
    assert meeting.state() == state
    assert all(torch.equal(a, b) for a, b in zip(meeting.weights(), weights, strict=True))


def strange_answers(rng: random.Random, end: Endpoint) -> Callable[[bytes], bytes]:
    """Answer as a party does, now and then with a whole frame around nonsense."""

    def handle(frame: bytes) -> bytes:
        true = end.handle(frame)
        seldom = isinstance(codec.decode(true), Ready)
        while rng.random() < (0.05 if seldom else 0.4):
            made = forge_frame(rng, [true])
            # The others `Line.hear` refuses or passes over.
            with suppress(WireError):
                if codec.decode(made).request_id == codec.decode(true).request_id:
                    return made
        return true

    return handle


@pytest.mark.parametrize(
    ("dtype", "runs"),
    [
        (torch.float32, 30),
        pytest.param(torch.float32, 150, marks=pytest.mark.slow),
        pytest.param(torch.float64, 150, marks=pytest.mark.slow),
    ],
)
def test_whatever_a_party_answers_is_used_or_a_fault_of_that_party(
    dtype: torch.dtype, runs: int
) -> None:
    rng, faults = random.Random(13), Counter[str]()
    for _ in range(runs):
        made = make_federation(2, dtype)
        ends = make_endpoints(made, 0.7)
        lines = [
            InProcessTransport(ends[0].hello, ends[0].handle),
            InProcessTransport(ends[1].hello, strange_answers(rng, ends[1])),
        ]
        peers = [RemoteParty(name, line) for name, line in zip(made.names, lines, strict=True)]
        federation, method = SplitFederation(peers, D), make_small_method(made, "xvfl+")
        faults[outcome(federation, method, made)] += 1
    strange = made.names[1]
    assert set(faults) <= {"trained", *(f"{kind}, {strange}" for kind in KINDS)}, faults
    assert faults[f"wrong, {strange}"] > runs / 4


KINDS = ("wrong", "refused", "away", "begin")


def outcome(federation: SplitFederation, method: Method, made: Problem) -> str:
    """Train three steps; describe the fault, with the parties that caused it."""
    try:
        begin_run(federation, RunTerms("run", settings_json(), join_timeout=20))
        for _ in range(3):
            federation.run_batch(method, made.rows, one_step)
            federation.update(WeightUpdate("step", 0.1))
        federation.flush()
    except PartyError as error:
        return f"{error.fault}, {', '.join(error.parties)}"
    except RunError as error:
        named = [name for name in made.names if repr(name) in str(error)]
        return f"begin, {', '.join(named)}"
    return "trained"


def one_step(federation: Federation, method: Method, rows: Rows) -> None:
    """Compute a batch's loss and send its gradients back."""
    terms = method.loss(federation, rows)
    federation.backward(torch.stack(list(terms.values())).sum())


HOLDINGS = torch.tensor([0, 1, 2], dtype=torch.uint8)
READY = Ready(0, 5, 7, HOLDINGS)
WRONG = {
    "row_status of another type": replace(READY, row_status=HOLDINGS.float()),
    "row_status of another shape": replace(READY, row_status=HOLDINGS[None]),
    "row_status out of range": replace(READY, row_status=HOLDINGS + 1),
    "a later step": replace(READY, step=6),
    "an earlier step": replace(READY, step=0),
    "a later update": replace(READY, last_update=8),
    "an earlier update": replace(READY, last_update=-1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_party_that_begins_elsewhere_is_refused(name: str) -> None:
    def handle(frame: bytes) -> bytes:
        message = codec.decode(frame)
        return codec.encode(replace(WRONG[name], request_id=message.request_id))

    federation = SplitFederation([RemoteParty("p0", InProcessTransport(HELLO, handle))], D)
    with pytest.raises(RunError, match="party 'p0': Ready: expected"):
        begin_run(federation, RunTerms("run", settings_json(), join_timeout=0.1), 5, 7)
