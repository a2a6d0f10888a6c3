"""A year of a federation in a few minutes: what its operators do, under a steady load of requests.

Processes over mutual TLS; with network namespaces each organization has a machine of its own. Run
it alone with `python -m tests.service.year`, and `--loopback` for one machine.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.command_line import run_xvfl
from tests.machines import machines, may_create_machines
from tests.processes import ENVIRONMENT, free_port
from tests.service.predicting_federation import (
    PARTIES,
    WAIT_S,
    Predicting,
    held_by,
    write_federation,
    write_party,
)
from tests.service.test_long_lived_party import UNLIMITED, add_tables
from xvfl.system.event_log import read_log
from xvfl.trail.verify import read_trail, verify_trail

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
OLD_PARTY = Path(__file__).with_name("old_party.py")
REVOCATION_LIST = 'revocation_list = "certs/ca.crl"\n'
TWO_HOURS = 7200


@dataclass
class Event:
    """What happened in a part of the year."""

    what: str
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Side and command."""
    answered: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def where(self) -> set[str]:
        """The sides at which commands were run, but for approvals."""
        return {side for side, command in self.commands if not command.startswith("xvfl approve")}


class Year(Predicting):
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
        if name != COORDINATOR:
            return ENVIRONMENT
        path = f"{self.folder / 'clock'}:{ENVIRONMENT['PYTHONPATH']}"
        offset = str(self.folder / "clock" / "offset")
        return {**ENVIRONMENT, "PYTHONPATH": path, "CLOCK_OFFSET": offset}

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
        assert event.where <= {*concerned}, event
        assert fails or not event.failed, event
        print(line_of(event), flush=True)

    def note(self, side: str, command: str) -> None:
        """Add a command to the event that happens now."""
        self.events[-1].commands.append((side, command))

    def xvfl(self, side: str, *arguments: object) -> str:
        """Run a command that needs no network at a side; return its output."""
        self.note(side, " ".join(map(str, ("xvfl", *arguments))))
        with chdir(self.folder):
            done = run_xvfl(*arguments)
        assert done.code == 0, done
        return done.out

    def begin(self, side: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command of a side on its machine."""
        self.note(side, " ".join(("xvfl", *arguments)))
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
        self.note(side, f"mv renewal/{side}.crt renewal/{side}.key certs/")
        for end in ("crt", "key"):
            path = self.folder / "renewal" / f"{side}.{end}"
            path.replace(self.folder / "certs" / path.name)
        shutil.rmtree(self.folder / "renewal")

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


def state_of(side: str) -> str:
    """Return the state folder of a side."""
    return "main" if side == COORDINATOR else side


def live_a_year(folder: Path, separate: bool) -> list[Event]:
    """Let a year pass; return its events."""
    with Year(folder, separate) as year:
        begin(year)
        for part in (
            *(retrain, go_back_and_forth, abort_trainings, add_a_party, correct_a_clock),
            *(renew_certificates, restore_a_party, remove_a_party, rotate_logs, update_each_side),
            *(refuse_an_old_party, stop_all),
        ):
            part(year)
        return year.events


def begin(year: Year) -> None:
    """Train, serve, and begin the steady load."""
    with year.during("train and serve", COORDINATOR, *PARTIES):
        for side in (*PARTIES, COORDINATOR):
            year.start_side(side)
        year.port = int(year.event("main", "prediction_endpoint")["port"])
        for name in PARTIES:
            year.wait_available(name)
        shutil.copytree(year.folder / "bank", year.folder / "bank-backup")
        year.note("bank", "cp -a bank bank-backup")
    body = json.dumps({"ids": held_by(year.folder, *PARTIES)[10:15]})
    command = (sys.executable, str(Path(__file__).with_name("steady_load.py")))
    url = f"http://127.0.0.1:{year.port}/predict"
    load = year.on_machine(COORDINATOR, *command, url, body, str(year.results))
    year.running["load"] = subprocess.Popen(load, env=ENVIRONMENT)
    year.wait_for_answer(*PARTIES, head=1)


def retrain(year: Year) -> None:
    """Train another head while the first one answers."""
    with year.during("retrain while serving", COORDINATOR):
        process = year.begin(COORDINATOR, "coordinator", "coordinator.toml", "--retrain", "--quiet")
        year.finish(COORDINATOR, process)
        year.wait_for_answer(*PARTIES, head=2)


def go_back_and_forth(year: Year) -> None:
    """Use the earlier head, then the later one."""
    with year.during("roll back", COORDINATOR):
        year.xvfl(COORDINATOR, "rollback", "coordinator.toml")
        year.wait_for_answer(*PARTIES, head=1)
    with year.during("promote", COORDINATOR):
        year.xvfl(COORDINATOR, "heads", "use", "coordinator.toml", 2)
        year.wait_for_answer(*PARTIES, head=2)


def abort_trainings(year: Year) -> None:
    """Kill a training, stop another one, and remove both."""
    text = (year.folder / "coordinator.toml").read_text()
    long = re.sub(r"epochs = 20\b", "epochs = 100000", text)
    (year.folder / "long.toml").write_text(long)
    for number, ends in ((3, signal.SIGKILL), (4, signal.SIGTERM)):
        with year.during(f"abort a retrain ({ends.name})", COORDINATOR):
            epochs = year.count("main", "epoch")
            process = year.begin(COORDINATOR, "coordinator", "long.toml", "--retrain", "--quiet")
            year.wait_for_event("main", "epoch", epochs + 1)
            process.send_signal(ends)
            assert process.wait(WAIT_S) == (-signal.SIGKILL if ends == signal.SIGKILL else 0)
            listed = year.xvfl(COORDINATOR, "heads", "list", "coordinator.toml", "--json")
            states = {each["number"]: each["state"] for each in json.loads(listed)}
            assert (states[2], states[number]) == ("current", "aborted"), states
            year.xvfl(COORDINATOR, "heads", "retire", "coordinator.toml", number, "--yes")
            year.wait_for_answer(*PARTIES, head=2)


def add_a_party(year: Year) -> None:
    """Let another organization join."""
    with year.during("add a party", COORDINATOR, NEW):
        add_tables(year.folder, NEW)
        year.renew(NEW)
        year.write_party(NEW)
        year.start_side(NEW)
        change_parties(year, '"clinic"]', f'"clinic", "{NEW}"]')
        process = year.begin(COORDINATOR, "coordinator", "coordinator.toml", "--retrain", "--quiet")
        year.finish(COORDINATOR, process)
        year.wait_for_answer(*PARTIES, NEW)


def change_parties(year: Year, before: str, after: str) -> None:
    """Change the list of parties of the coordinator."""
    year.note(COORDINATOR, "edit `parties`")
    config = year.folder / "coordinator.toml"
    first, found, rest = config.read_text().partition(before)
    assert found
    config.write_text(first + after + rest)


def correct_a_clock(year: Year) -> None:
    """Set the coordinator's clock two hours ahead, and back again."""
    with year.during("a clock 2 h ahead, then corrected", COORDINATOR, "bank"):
        year.set_clock(TWO_HOURS)
        compared = year.count("bank", "clock_compared")
        year.renew("bank")
        warned = year.wait_for_event("bank", "clock_compared", compared + 1)
        assert "coordinator's clock is 7,2" in warned["warning"]
        year.wait_for_answer(*PARTIES)
        year.note(COORDINATOR, "correct the clock")
        year.set_clock(0)
        year.wait_for_answer(*PARTIES)
        process = year.begin(COORDINATOR, "coordinator", "coordinator.toml", "--retrain", "--quiet")
        year.finish(COORDINATOR, process)
        year.wait_for_answer(*PARTIES, NEW)


def renew_certificates(year: Year) -> None:
    """Replace every certificate while all processes run."""
    with year.during("renew every certificate", *SIDES):
        loaded = {side: year.count(state_of(side), "certificate_loaded") for side in SIDES}
        for side in SIDES:
            year.renew(side)
        for side in SIDES:
            year.wait_for_event(state_of(side), "certificate_loaded", loaded[side] + 1)
        for name in (*PARTIES, NEW):
            year.wait_available(name)
        year.wait_for_answer(*PARTIES, NEW)
    with year.during("revoke the old certificates", COORDINATOR):
        old = year.xvfl(COORDINATOR, "certs", "show", "--dir", "certs")
        print(old)


def restore_a_party(year: Year) -> None:
    """Lose the state folder of a party, and restore it from its backup."""
    with year.during("restore a party from its backup", "bank"):
        year.note("bank", "kill -KILL")
        year.running.pop("bank").kill()
        year.wait_for_answer("shop", "clinic", without=["bank"])
        shutil.rmtree(year.folder / "bank")
        year.note("bank", "cp -a bank-backup bank")
        shutil.copytree(year.folder / "bank-backup", year.folder / "bank")
        year.start_side("bank")
        year.wait_for_answer(*PARTIES)
    assert year.wait_for_event("bank", "trail_differs")


def remove_a_party(year: Year) -> None:
    """Revoke a party, then train without it."""
    with year.during("revoke a party", COORDINATOR):
        year.xvfl(COORDINATOR, "certs", "revoke", NEW, "--all", "--dir", "certs")
        year.wait_for_answer(*PARTIES, without=[NEW])
    with year.during("remove a party", COORDINATOR, NEW):
        change_parties(year, f', "{NEW}"]', "]")
        process = year.begin(COORDINATOR, "coordinator", "coordinator.toml", "--retrain", "--quiet")
        year.finish(COORDINATOR, process)
        year.wait_for_answer(*PARTIES, without=[NEW])
        year.stop_side(NEW)


def rotate_logs(year: Year) -> None:
    """Rename the logs; the processes go on in new files."""
    with year.during("rotate logs", COORDINATOR, *PARTIES):
        for side in (COORDINATOR, *PARTIES):
            state = state_of(side)
            year.note(side, f"mv {state}/log.jsonl {state}/log.jsonl.1")
            (year.folder / state / "log.jsonl").rename(year.folder / state / "log.jsonl.1")


def update_each_side(year: Year) -> None:
    """Stop and start one side after the other, as for another version of xvfl."""
    for name in PARTIES:
        with year.during(f"update {name}", name):
            year.stop_side(name)
            others = [each for each in PARTIES if each != name]
            year.wait_for_answer(*others, without=[name])
            year.start_side(name)
            year.wait_for_answer(*PARTIES)
    with year.during("update the coordinator", COORDINATOR, fails=True) as event:
        year.stop_side(COORDINATOR)
        year.start_side(COORDINATOR)
        year.wait_for_answer(*PARTIES)
    assert event.failed


def refuse_an_old_party(year: Year) -> None:
    """Let a party of version 0.3 connect."""
    with year.during("refuse a party of 0.3", "shop"):
        year.note("shop", "xvfl party shop.toml (0.3.0)")
        command = (sys.executable, str(OLD_PARTY), f"{year.address}:{year.listen}", "certs", "shop")
        done = subprocess.run(
            year.on_machine("shop", *command),
            cwd=year.folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "pip install --upgrade 'xvfl[federated]>=0.4'" in done.stdout, done
        rejected = year.wait_for_event("main", "connection_rejected")
        assert rejected["party"] == "shop" and "xvfl before 0.4" in rejected["reason"]
        year.wait_for_answer(*PARTIES)


def stop_all(year: Year) -> None:
    """Stop all sides; check their trails."""
    year.running.pop("load").kill()
    with year.during("stop all", COORDINATOR, *PARTIES):
        for side in (COORDINATOR, *PARTIES):
            year.stop_side(side)
    for side in SIDES:
        assert verify_trail(read_trail(year.folder / state_of(side))).problems == []


def line_of(event: Event) -> str:
    """Describe an event in a line of a table."""
    where = ", ".join(sorted({side for side, _ in event.commands}))
    return f"{event.what:36} {event.answered:8} {len(event.failed):6}  {where}"


def table_of(events: Sequence[Event]) -> str:
    """Return a table of all events, with the commands of each."""
    lines = [f"{'event':36} {'answered':>8} {'failed':>6}  commands at"]
    for event in events:
        lines.append(line_of(event))
        lines += [f"    {side}: {command}" for side, command in event.commands]
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        separate = "--loopback" not in sys.argv and may_create_machines()
        print(table_of(live_a_year(Path(made), separate)))
        print("machines:", "network namespaces" if separate else "one, by loopback")
