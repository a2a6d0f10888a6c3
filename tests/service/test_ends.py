"""What the log, the status and the exit code say of failed writes and of the end of a process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import SOURCES
from tests.service.test_service import write
from xvfl.cli.services import coordinator
from xvfl.errors import XVFLError
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.system.event_log import EventLog, read_log
from xvfl_serve.http.metrics import to_text

WAIT = """
import sys
from time import sleep
import typer
from xvfl.cli.ends import logged_end
from xvfl.system.signals import interruptible, stop_on_signals

def wait(folder: str) -> None:
    with logged_end(folder), stop_on_signals() as stop, interruptible(stop):
        print("waiting", flush=True)
        sleep(600)

typer.run(wait)
"""


def test_the_log_on_standard_error_can_be_the_lines_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path, "bank", as_json=True)
    log({"event": "matched", "rows": 3, "parties": ["bank", "ü"]})
    assert capsys.readouterr().err == (tmp_path / "log.jsonl").read_text()


def test_events_that_cannot_be_written_make_a_process_unhealthy(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "bank", show=False)
    log({"event": "started"})
    kept = log.path.rename(tmp_path / "kept")
    log.path.mkdir()
    log({"event": "epoch"})
    log({"event": "epoch"})
    status = {"healthy": True, **log.status()}
    assert not status["healthy"] and "log.jsonl cannot be written" in status["problem"]
    metrics = to_text(status_metrics(status))
    assert "xvfl_log_events_lost_total 2.0" in metrics
    assert 'xvfl_events_total{event="epoch"} 2.0' in metrics
    log.path.rmdir()
    kept.rename(log.path)
    log({"event": "epoch"})
    assert "healthy" not in log.status() and log.status()["log_events_lost"] == 2


def test_a_log_that_is_renamed_goes_on_in_a_new_file(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "bank", show=False)
    log({"event": "started"})
    log.path.rename(tmp_path / "log.jsonl.1")
    log({"event": "epoch"})
    assert [each["event"] for each in read_log(tmp_path)] == ["epoch"]
    assert "healthy" not in log.status()


def test_a_fatal_error_is_in_the_log(tmp_path: Path) -> None:
    write(tmp_path)
    for each in (tmp_path / "certs").glob("coordinator.crt"):
        each.unlink()
    with pytest.raises(XVFLError) as caught:
        coordinator(tmp_path / "coordinator.toml", quiet=True)
    last = read_log(tmp_path / "main")[-1]
    assert last["event"] == "failed" and last["exit_code"] == 2
    assert last["reason"] == str(caught.value)


@pytest.mark.parametrize(
    ("number", "code", "reason"), [(signal.SIGTERM, 0, "SIGTERM"), (signal.SIGINT, 130, "interrup")]
)
def test_sigterm_is_a_success_and_ctrl_c_is_not(
    tmp_path: Path, number: signal.Signals, code: int, reason: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAIT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        errors = process.stderr.read()
    (event,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (event["event"], event["exit_code"]) == ("stopped", code)
    assert event["reason"].startswith(reason) and "Traceback" not in errors
