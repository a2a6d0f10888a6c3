"""Another head is trained on new labels without any party, beside a coordinator that predicts."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.processes import SOURCES
from tests.service.predicting_federation import PARTIES, WAIT_S, Predicting, train_federation
from xvfl.service.log import read_log

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


def test_no_request_fails_while_a_head_is_trained_on_new_labels_and_taken_back(
    tmp_path: Path,
) -> None:
    train_federation(tmp_path, more=STAND_IN)
    labels = pd.read_csv(tmp_path / "labels.csv")
    ids = labels["customer"].tolist()
    pd.DataFrame({"customer": ids}).to_csv(tmp_path / "new-ids.csv", index=False)
    for name in PARTIES:
        (tmp_path / f"{name}-new.csv").write_text((tmp_path / f"{name}.csv").read_text())
    asked, config = ids[:20], tmp_path / "retrain.toml"
    with Predicting(tmp_path).start(*PARTIES) as federation:
        text = (tmp_path / "coordinator.toml").read_text()
        listen = f'listen = "127.0.0.1:{federation.listen}"'
        config.write_text(text.replace('listen = "127.0.0.1:0"', listen))
        for name in PARTIES:
            federation.running[name].kill()
            federation.event("main", "party_left_out", party=name)
        before = federation.predict(asked).predictions
        assert any("stands in" in note for note in before[0]["notes"])
        labels["churned"] = labels["churned"].map(OTHER)
        labels.to_csv(tmp_path / "labels.csv", index=False)
        with Callers(federation, asked) as callers:
            done = subprocess.run(
                [sys.executable, "-m", "xvfl", "coordinator", config.name, "--retrain", "--quiet"],
                cwd=tmp_path,
                env={"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            wait_for_heads(tmp_path, 1)
            during = callers.count
            after = federation.predict(asked).predictions
            back = run_xvfl("rollback", config)
            assert back.code == 0 and "head 1 is the current one" in back.out, back.err
            wait_for_heads(tmp_path, 2)
            again = federation.predict(asked).predictions
        assert callers.problems == [] and 0 < during < callers.count
        events = [each["event"] for each in read_log(tmp_path / "main")]
        # The training opened no port, and used the stored uploads.
        assert "not_listening" in events and "upload_received" not in events
    assert [each["prediction"] for each in again] == [each["prediction"] for each in before]
    opposite = [OTHER[each["prediction"]] for each in before]
    same = [new["prediction"] == old for new, old in zip(after, opposite, strict=True)]
    assert sum(same) >= 0.8 * len(asked)
