"""Interactive training in one process: real services, transports that lose and refuse requests."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.upload.local_federation import PARTIES, tables
from xvfl.config import NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError, RunError
from xvfl.federation.remote_party import RemoteParty
from xvfl.matching.alignment import load_coordinator_alignment
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.service.align import match_parties
from xvfl.service.config import (
    CoordinatorConfig,
    CoordinatorLabels,
    MatchingConfig,
    PartyProcessConfig,
    TimeoutConfig,
)
from xvfl.service.coordinator_run import CoordinatorRun
from xvfl.service.labeled_rows import MatchedLabels
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.service.run_description import RunOutcome
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, Embed, ErrorReply, Flush, Hello, Message, Release
from xvfl.wire.tls import Tls

pytestmark = pytest.mark.usefixtures("limited_threads")
Match = Callable[[Message], bool]
EPOCHS, INTERVAL = 3, 4
TLS = Tls("ca", "certificate", "key")


class FullDisk:
    """Checkpoints that cannot be written."""

    def save(self, *given: Any) -> None:
        raise RunError("no space left on device")

    def newest(self, run: str, step: int) -> None:
        """Find nothing."""


class Line(InProcessTransport):
    """A transport to a party that can be restarted, refuse requests or lose replies."""

    def __init__(self, service: PartyService) -> None:
        super().__init__(service.endpoint.hello, service.endpoint.handle)
        self.service = service
        self.faults: dict[str, Match] = {}

    def hello(self) -> Hello:
        return self.service.endpoint.hello

    def request(self, message: Message) -> "Future[Message]":
        kinds = [kind for kind, strikes in self.faults.items() if strikes(message)]
        if "restart" in kinds:
            self.service = PartyService(self.service.inputs, lambda event: None)
            self._handle = self.service.endpoint.handle
        reply: Future[Message] = Future()
        if "refuse" in kinds:
            reply.set_result(ErrorReply(message.request_id, "WireError", "not today"))
            return reply
        endpoint = self.service.endpoint
        store = endpoint._store
        endpoint._store = FullDisk() if "full disk" in kinds else store
        answer = super().request(message)
        endpoint._store = store
        return reply if "lose" in kinds else answer


class Federation:
    """Two parties and a coordinator with their folders."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, list[dict[str, Any]]()
        self.main = RunDir(folder / "main").create()
        self.tables, self.labels = tables()
        self.lines = {name: Line(self.party(name)) for name in PARTIES}
        if not self.main.has("alignment.json"):
            match_parties(
                dict(self.lines),
                list(self.labels.index),
                ["y"],
                MatchingConfig(),
                self.main / "alignment.json",
                end=False,
            )

    def party(self, name: str) -> PartyService:
        folder = RunDir(self.folder / name).create()
        key = str(self.folder / "main" / "release.pub")
        config = PartyProcessConfig("localhost:1", f"{name}.csv", TLS, release_key=key)
        return PartyService(PartyInputs(name, config, self.tables[name], folder), self.log.append)

    def run(self, stop: Event | None = None, **options: Any) -> RunOutcome:
        given = {
            "net": NetConfig(16, 32, members=1),
            "train": TrainConfig(epochs=EPOCHS, batch_size=32, device="cpu", patience=0),
            "privacy": PrivacyConfig("off"),
            "timeouts": TimeoutConfig(answer=1.0, join=1.0),
            "checkpoint_interval": INTERVAL,
            "release_to": ("shop",),
            **options,
        }
        config = CoordinatorConfig(
            "localhost:1",
            PARTIES,
            TLS,
            CoordinatorLabels("labels.csv", "id", "y"),
            state_dir=str(self.main.path),
            **given,
        )
        timeout = config.timeouts.answer
        parties = [RemoteParty(n, line, timeout) for n, line in self.lines.items()]
        alignment = load_coordinator_alignment(self.main / "alignment.json")
        matched = MatchedLabels(self.labels, list(self.labels.index), alignment)
        run = CoordinatorRun(config, matched, parties, self.log.append)
        self.status = run.status
        return run.run(stop or Event())

    def weights(self) -> dict[str, Tensor]:
        found = dict(self.main.load_tensors(MODEL)[0])
        for name in PARTIES:
            last = sorted((self.folder / name).glob("checkpoint-*.safetensors"))[-1]
            found |= RunDir(last.parent).load_tensors(last.name)[0]
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.log if each["event"] == kind]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped after its first step."""
    folder, stop = tmp_path_factory.mktemp("started"), Event()
    stop.set()
    made = Federation(folder)
    assert made.run(stop).evaluation is None and made.events("stopped")[0]["step"] == 1
    return folder


@pytest.fixture(scope="module")
def undisturbed(started: Path, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """The same run, finished without a fault."""
    made = copied(started, tmp_path_factory.mktemp("undisturbed") / "run")
    outcome = made.run()
    assert outcome.evaluation is not None and outcome.uninformed == ()
    return made


def copied(started: Path, folder: Path) -> Federation:
    shutil.copytree(started, folder)
    return Federation(folder)


def nth(kind: type[Message], number: int, **values: Any) -> Match:
    """Match the n-th message of a kind."""
    left = iter(range(number))

    def strikes(message: Message) -> bool:
        matches = isinstance(message, kind)
        matches = matches and all(getattr(message, k) == v for k, v in values.items())
        return matches and next(left, None) == number - 1

    return strikes


def test_it_trains_evaluates_and_releases(undisturbed: Federation) -> None:
    lines = undisturbed.main.read_json("evaluation.json")["lines"]
    assert {line["mode"] for line in lines} == {"local", "assisted", "collaborative", "peers"}
    assert [each["epoch"] for each in undisturbed.main.records()] == [1, 2, 3]
    assert undisturbed.events("released")
    assert all(
        each.service.endpoint.end_reason == "finished" for each in undisturbed.lines.values()
    )
    status = undisturbed.status()
    assert status["healthy"] and status["state"] == "finished"
    assert undisturbed.main.read_json("run.json")["state"] == "ended"
    with pytest.raises(RunError, match="this run is finished"):
        undisturbed.run()


FAULTS: dict[str, tuple[str, Match]] = {
    "a restart in training": ("restart", nth(Embed, 7, training=True)),
    "a restart in validation": ("restart", nth(Embed, 3, training=False)),
    "a restart at a checkpoint": ("restart", nth(Flush, 2)),
    "a refusal": ("refuse", nth(Embed, 7, training=True)),
    "a lost reply": ("lose", nth(Embed, 7, training=True)),
    "a full disk": ("full disk", nth(Flush, 2)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_after_a_fault_the_weights_are_those_of_an_undisturbed_run(
    name: str, started: Path, undisturbed: Federation, tmp_path: Path
) -> None:
    made, (kind, strikes) = copied(started, tmp_path / "run"), FAULTS[name]
    made.lines["shop"].faults[kind] = strikes
    with pytest.raises(RunError, match=r"shop.*; when all parties are back, start this command"):
        made.run()
    assert made.main.read_json("run.json")["state"] == "failed"
    made.run()
    expected, found = undisturbed.weights(), made.weights()
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[key]) for key, value in expected.items())
    assert [each["epoch"] for each in made.main.records()] == [1, 2, 3]


def test_a_run_ends_each_time_that_a_party_refuses(started: Path, tmp_path: Path) -> None:
    made = copied(started, tmp_path / "run")
    made.lines["shop"].faults["refuse"] = lambda m: isinstance(m, Embed) and m.step >= 6
    for _ in range(2):
        with pytest.raises(RunError, match=r"not today; when .* it continues from step 5$"):
            made.run()
    made.lines["shop"].faults.clear()
    assert made.run().evaluation is not None


def test_a_party_that_does_not_begin_or_takes_no_release(started: Path, tmp_path: Path) -> None:
    made = copied(started, tmp_path / "run")
    made.lines["shop"].faults["refuse"] = lambda message: isinstance(message, Begin)
    with pytest.raises(RunError, match="'shop' rejected the request: not today; fix it and resume"):
        made.run()
    made.lines["shop"].faults["refuse"] = lambda message: isinstance(message, Release)
    assert made.run().uninformed == ("shop",)


def test_changed_configurations_and_rows_are_refused(started: Path, tmp_path: Path) -> None:
    made = copied(started, tmp_path / "run")
    with pytest.raises(RunError, match="the configuration changed since this run started"):
        made.run(net=NetConfig(8, 32, members=1))
    with pytest.raises(ConfigError, match="interactive training sends gradients; expected 'off'"):
        made.run(privacy=PrivacyConfig())
    made.tables["shop"].iloc[:, 0] = float("nan")
    made.lines["shop"] = Line(made.party("shop"))
    with pytest.raises(RunError, match="'shop': its rows changed since the run started"):
        made.run()
