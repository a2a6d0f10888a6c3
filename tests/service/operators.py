"""Operators of a federation: machines, processes, commands, and a steady load of requests."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.command_line import run_xvfl
from tests.machines import machines
from tests.processes import ENVIRONMENT, free_port
from tests.service.predicting_federation import (
    PARTIES,
    WAIT_S,
    Predicting,
    held_by,
    write_federation,
    write_party,
)
from tests.service.test_long_lived_party import UNLIMITED
from xvfl.system.event_log import read_log

COORDINATOR, NEW = "coordinator", "lab"
SIDES = (COORDINATOR, *PARTIES, NEW)
CLOCK = """\
import os, time

_time, _file = time.time, os.environ["CLOCK_OFFSET"]


def _offset():
    with open(_file) as file:
        return float(file.read() or 0)


time.time = lambda: _time() + _offset()
"""
"""A module that Python imports at its start: the wall clock of a process, with an offset."""
REVOCATION_LIST = 'revocation_list = "certs/ca.crl"\n'


@dataclass
class Event:
    """What happened in a part of the year."""

    what: str
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Side and command."""
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    slowest: float = 0.0
    """Seconds of the slowest request that was answered."""

    @property
    def where(self) -> set[str]:
        """The sides at which commands were run, but for approvals."""
        return {side for side, command in self.commands if not command.startswith("xvfl approve")}


class Operators(Predicting):
    """A federation, its machines and what its operators do."""

    def __init__(self, folder: Path, separate: bool) -> None:
        super().__init__(folder)
        self.events: list[Event] = []
        self._stack = ExitStack()
        self.machines = self._stack.enter_context(machines(SIDES)) if separate else {}
        self.address = self.machines[COORDINATOR].address if separate else "127.0.0.1"
        self.listen, self.results = free_port(), folder / "results.jsonl"
        self._prepare()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _prepare(self) -> None:
        """Write tables, certificates, configurations, and the clock of the coordinator."""
        write_federation(self.folder, hosts=[self.address])
        config = self.folder / "coordinator.toml"
        listen = f'listen = "{self.address}:{self.listen}"'
        text = config.read_text().replace('listen = "127.0.0.1:0"', listen)
        config.write_text(REVOCATION_LIST + text)
        (self.folder / "clock").mkdir()
        (self.folder / "clock" / "sitecustomize.py").write_text(CLOCK)
        self.set_clock(0)
        for name in PARTIES:
            self.write_party(name)

    def set_clock(self, offset: float) -> None:
        """Set how far the coordinator's clock is ahead."""
        (self.folder / "clock" / "offset").write_text(str(offset))

    # What the processes run on.

    def on_machine(self, name: str, *command: str) -> list[str]:
        return self.machines[name].command(*command) if self.machines else list(command)

    def environment(self, name: str) -> dict[str, str]:
        found = {**ENVIRONMENT, "PYTHONFAULTHANDLER": "1"}
        if name != COORDINATOR:
            return found
        path = f"{self.folder / 'clock'}:{ENVIRONMENT['PYTHONPATH']}"
        offset = str(self.folder / "clock" / "offset")
        return {**found, "PYTHONPATH": path, "CLOCK_OFFSET": offset}

    # What operators do.

    @contextmanager
    def during(self, what: str, *concerned: str, fails: bool = False) -> Iterator[Event]:
        """Count commands and requests of a part of the year.

        Commands are run at the sides that it concerns only. No request fails, unless `fails`.
        """
        event, before = Event(what), len(self.answers())
        self.events.append(event)
        yield event
        found = self.answers()[before:]
        event.failed = [each["failed"] for each in found if each["failed"]]
        event.answered = len(found) - len(event.failed)
        event.slowest = max((each["seconds"] for each in found if not each["failed"]), default=0.0)
        assert event.where <= {*concerned}, event
        assert fails or not event.failed, event
        print(line_of(event), flush=True)

    def note(self, side: str, command: str) -> None:
        """Add a command to the event that happens now."""
        self.events[-1].commands.append((side, command))

    def xvfl(self, side: str, *arguments: object) -> str:
        """Run a command that needs no network at a side; return its output."""
        self.note(side, as_typed("xvfl", *arguments))
        with chdir(self.folder):
            done = run_xvfl(*arguments)
        assert done.code == 0, done
        return done.out

    def shell(self, side: str, command: str) -> None:
        """Run a command of the shell at a side."""
        self.note(side, command)
        subprocess.run(["sh", "-euc", command], cwd=self.folder, check=True)

    def begin(self, side: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command of a side on its machine."""
        self.note(side, as_typed("xvfl", *arguments))
        with (self.folder / f"{side}-command.err").open("wb") as errors:
            return subprocess.Popen(
                self.on_machine(side, sys.executable, "-m", "xvfl", *arguments),
                cwd=self.folder,
                env=self.environment(side),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def finish(self, side: str, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the successful end of a command."""
        assert process.wait() == 0, (self.folder / f"{side}-command.err").read_text()

    def train(self) -> None:
        """Train another head beside the coordinator that predicts."""
        command = ("coordinator", "coordinator.toml", "--retrain", "--quiet")
        self.finish(COORDINATOR, self.begin(COORDINATOR, *command))

    def start_side(self, side: str) -> None:
        """Start the process of a side that stays."""
        if side == COORDINATOR:
            self.note(side, "xvfl coordinator coordinator.toml --serve")
            return self.launch(side)
        self.note(side, f"xvfl party {side}.toml")
        self.launch(side, serve=False)

    def stop_side(self, side: str) -> None:
        """Stop a process as systemd does."""
        self.note(side, "kill -TERM")
        self.signal(side, signal.SIGTERM)
        errors = self.folder / f"{side}.err"
        assert self.running.pop(side).wait(WAIT_S) == 0, errors.read_text()

    def kill(self, name: str) -> None:
        """Kill a process."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def write_party(self, name: str) -> None:
        """Write the configuration of a party."""
        write_party(self.folder, name, self.listen, more=UNLIMITED)
        config = self.folder / f"{name}.toml"
        text = config.read_text().replace("localhost", self.address, 1)
        config.write_text(REVOCATION_LIST + text)

    def renew(self, side: str) -> None:
        """Give a side another certificate, as the guide says."""
        hosts = [f"--host={each}" for each in ("localhost", "127.0.0.1", self.address)]
        more = hosts if side == COORDINATOR else []
        (self.folder / "renewal").mkdir(exist_ok=True)
        self.xvfl(side, "certs", "request", side, "--dir", "renewal", *more)
        self.xvfl(COORDINATOR, "certs", "sign", f"renewal/{side}.csr", "--dir", "certs", *more)
        self.shell(side, f"mv renewal/{side}.crt renewal/{side}.key certs/")
        shutil.rmtree(self.folder / "renewal")

    def begin_load(self) -> None:
        """Send requests, one after the other, until the end."""
        body = json.dumps({"ids": held_by(self.folder, *PARTIES)[10:15]})
        program = str(Path(__file__).with_name("steady_load.py"))
        url = f"http://127.0.0.1:{self.port}/predict"
        command = (sys.executable, program, url, body, str(self.results))
        load = self.on_machine(COORDINATOR, *command)
        self.running["load"] = subprocess.Popen(load, env=ENVIRONMENT)

    # What can be seen.

    def answers(self) -> list[dict[str, Any]]:
        """Return what is known of all requests so far."""
        if not self.results.exists():
            return []
        lines = self.results.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + WAIT_S
        while not holds():
            for name, process in self.running.items():
                errors = self.folder / f"{name}.err"
                assert process.poll() is None, errors.read_text()
            assert time.monotonic() < until, (what, self.answers()[-1:])
            time.sleep(0.2)

    def wait_for_answer(self, *with_: str, head: int = 0, without: Sequence[str] = ()) -> None:
        """Wait for an answer of a head, or with and without the help of parties."""

        def holds() -> bool:
            last = (self.answers() or [{}])[-1]
            parties = set(last.get("parties", ()))
            return (
                bool(parties)
                and parties >= {*with_}
                and not parties & {*without}
                and head in (0, last["head"])
            )

        self.wait_for(holds, f"answer {with_}, {head}, {without}")

    def wait_for_event(self, state: str, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the n-th event of a kind in a log."""
        found: list[dict[str, Any]] = []

        def holds() -> bool:
            found[:] = [each for each in read_log(self.folder / state) if each["event"] == kind]
            return len(found) >= count

        self.wait_for(holds, f"event {kind} of {state}")
        return found[-1]

    def count(self, state: str, kind: str) -> int:
        """Count the events of a kind in a log."""
        return sum(each["event"] == kind for each in read_log(self.folder / state))


def as_typed(*arguments: object) -> str:
    """Return a command as it is typed: arguments with spaces are quoted."""
    texts = map(str, arguments)
    return " ".join(f'"{each}"' if " " in each else each for each in texts)


def state_of(side: str) -> str:
    """Return the state folder of a side."""
    return "main" if side == COORDINATOR else side


def line_of(event: Event) -> str:
    """Describe an event in a line of a table."""
    where = ", ".join(sorted({side for side, _ in event.commands}))
    counts = f"{event.answered:8} {len(event.failed):6} {event.slowest:8.1f}"
    return f"{event.what:36} {counts}  {where}"
