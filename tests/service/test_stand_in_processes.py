"""Stored uploads answer for parties that are away: beside a retrain, and after a withdrawal."""

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.processes import run_process
from tests.service.predicting_federation import PARTIES, WAIT_S, Predicting, train_federation
from xvfl.system.event_log import read_log

pytestmark = pytest.mark.slow
STAND_IN = "[upload]\nstand_in = true\n"
OTHER = {"yes": "no", "no": "yes"}


class Callers:
    """Send one request after the other, until the end of a block."""

    def __init__(self, federation: Predicting, ids: list[str]) -> None:
        self._federation, self._ids, self.problems = federation, ids, list[Any]()
        self.count, self._stop = 0, threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(2)]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        while not self._stop.is_set():
            try:
                response = self._federation.predict(self._ids)
                if response.status != 200 or len(response.predictions) != len(self._ids):
                    self.problems.append(response.body)
            except Exception as error:
                self.problems.append(repr(error))
            self.count += 1


def heads_used(folder: Path) -> list[str]:
    """Return the runs of the heads that the predicting coordinator changed to."""
    return [each["run"] for each in read_log(folder / "main") if each["event"] == "head_changed"]


def wait_for_heads(folder: Path, count: int) -> None:
    """Wait until the predicting coordinator has changed its head so many times."""
    until = time.monotonic() + WAIT_S
    while len(heads_used(folder)) < count:
        assert time.monotonic() < until, read_log(folder / "main")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a federation whose uploads may stand in; it predicts the rows of its training."""
    folder = tmp_path_factory.mktemp("trained")
    train_federation(folder, more=STAND_IN)
    ids = pd.read_csv(folder / "labels.csv")["customer"]
    ids.to_csv(folder / "new-ids.csv", index=False)
    for name in PARTIES:
        shutil.copy(folder / f"{name}.csv", folder / f"{name}-new.csv")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def kill_parties(federation: Predicting) -> None:
    """Kill all parties; their uploads stand in for them."""
    for name in PARTIES:
        federation.running[name].kill()
        federation.event("main", "party_left_out", party=name)


def stand_ins(answer: dict[str, Any]) -> set[str]:
    """Return the parties whose upload stands in, according to the notes of an answer."""
    notes = [each for each in answer["notes"] if "its upload stands in" in each]
    return {name for name in PARTIES if any(each.startswith(f"{name}: ") for each in notes)}


def test_withdrawn_rows_are_in_no_answer(folder: Path) -> None:
    held = [set(pd.read_csv(folder / f"{name}.csv")["customer"]) for name in PARTIES]
    asked = sorted(set.intersection(*held))[:4]
    (folder / "leaving.txt").write_text("\n".join(asked[:2]))
    withdraw = ("withdraw", folder / "bank.toml", "--ids", folder / "leaving.txt")
    with Predicting(folder).start(*PARTIES) as federation:
        answers = federation.predict(asked).predictions
        assert all("bank" in each["parties"] and not stand_ins(each) for each in answers)
        done = run_xvfl(*withdraw)
        assert done.code == 0 and "deleted 2 rows" in done.out, done.err
        # The party's process does not embed them any more, and its upload does not replace it.
        answers = federation.predict(asked).predictions
        assert ["bank" in each["parties"] for each in answers] == [False, False, True, True]
        assert not any(map(stand_ins, answers))
        kill_parties(federation)
        answers = federation.predict(asked).predictions
        others = {name for name in PARTIES if name != "bank"}
        expected = [others, others, {*PARTIES}, {*PARTIES}]
        assert [stand_ins(each) for each in answers] == expected
        assert [set(each["parties"]) for each in answers] == expected


def test_no_request_fails_while_a_head_is_trained_on_new_labels_and_taken_back(
    folder: Path,
) -> None:
    labels = pd.read_csv(folder / "labels.csv")
    asked, config = labels["customer"].tolist()[:20], folder / "retrain.toml"
    with Predicting(folder).start(*PARTIES) as federation:
        text = (folder / "coordinator.toml").read_text()
        listen = f'listen = "127.0.0.1:{federation.listen}"'
        config.write_text(text.replace('listen = "127.0.0.1:0"', listen))
        kill_parties(federation)
        before = federation.predict(asked).predictions
        assert all(map(stand_ins, before))
        labels["churned"] = labels["churned"].map(OTHER)
        labels.to_csv(folder / "labels.csv", index=False)
        with Callers(federation, asked) as callers:
            run_process(folder, "coordinator", config.name, "--retrain", "--quiet")
            wait_for_heads(folder, 1)
            during = callers.count
            after = federation.predict(asked).predictions
            back = run_xvfl("rollback", config)
            assert back.code == 0 and "head 1 is the current one" in back.out, back.err
            wait_for_heads(folder, 2)
            again = federation.predict(asked).predictions
            chosen = run_xvfl("heads", "use", config, 2)
            assert chosen.code == 0 and "head 2 is the current one" in chosen.out, chosen.err
            wait_for_heads(folder, 3)
            last = federation.predict(asked).predictions
            gone = run_xvfl("heads", "retire", config, 1, "--yes")
            assert gone.code == 0, gone.err
            assert federation.predict(asked).predictions == last
        assert callers.problems == [] and 0 < during < callers.count
        events = [each["event"] for each in read_log(folder / "main")]
        # The training opened no port, and used the stored uploads.
        assert "not_listening" in events and "upload_received" not in events
    listed = json.loads(run_xvfl("heads", "list", config, "--json").out)
    assert [each["state"] for each in listed] == ["current", "retired"]
    named = [
        {"head": each["number"], **{name: each[name] for name in ("digest", "encoders")}}
        for each in reversed(listed)
    ]
    assert named[0]["encoders"] == dict.fromkeys(PARTIES, "1")
    for answers, head in ((before, 0), (after, 1), (again, 0), (last, 1)):
        assert [each["model"] for each in answers] == [named[head]] * len(asked)
    assert [each["prediction"] for each in last] == [each["prediction"] for each in after]
    assert [each["prediction"] for each in again] == [each["prediction"] for each in before]
    opposite = [OTHER[each["prediction"]] for each in before]
    same = [new["prediction"] == old for new, old in zip(after, opposite, strict=True)]
    assert sum(same) >= 0.8 * len(asked)
