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
from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

from tests.machines import may_create_machines
from tests.processes import ENVIRONMENT
from tests.recorded import old_party
from tests.recorded.record import SESSION
from tests.recorded.replay import serve_recorded_parties
from tests.service.operators import COORDINATOR, NEW, SIDES, Event, Operators, line_of, state_of
from tests.service.predicting_federation import PARTIES, WAIT_S
from tests.service.test_long_lived_party import add_tables
from xvfl.trail.verify import read_trail, verify_trail

TWO_HOURS = 7200


def begin(year: Operators) -> None:
    """Train, serve, and begin the steady load."""
    with year.during("train and serve", COORDINATOR, *PARTIES):
        for side in (*PARTIES, COORDINATOR):
            year.start_side(side)
        year.port = int(year.event("main", "prediction_endpoint")["port"])
        for name in PARTIES:
            year.wait_available(name)
        year.shell("bank", "cp -a bank bank-backup")
    year.begin_load()
    year.wait_for_answer(*PARTIES, head=1)


def retrain(year: Operators) -> None:
    """Train another head while the first one answers."""
    with year.during("retrain while serving", COORDINATOR):
        year.train()
        year.wait_for_answer(*PARTIES, head=2)


def go_back_and_forth(year: Operators) -> None:
    """Use the earlier head, then the later one."""
    with year.during("roll back", COORDINATOR):
        year.xvfl(COORDINATOR, "rollback", "coordinator.toml")
        year.wait_for_answer(*PARTIES, head=1)
    with year.during("promote", COORDINATOR):
        year.xvfl(COORDINATOR, "heads", "use", "coordinator.toml", 2)
        year.wait_for_answer(*PARTIES, head=2)


def ask_for_a_version(year: Operators) -> None:
    """Ask a party for another encoder; its operator approves, and another head is trained."""
    with year.during("ask for another encoder", COORDINATOR):
        asked = ("new-version", "--party", "clinic", "--reason", "rows of October")
        year.finish(COORDINATOR, year.begin(COORDINATOR, "ask", "coordinator.toml", *asked))
        year.wait_for_event("clinic", "approval_requested")
        year.xvfl("clinic", "approve", "clinic.toml", 1)
        year.train()
        year.wait_for(lambda: year.answers()[-1].get("encoders", {}).get("clinic") == "2", "2")


def abort_trainings(year: Operators) -> None:
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


def add_a_party(year: Operators) -> None:
    """Let another organization join."""
    with year.during("add a party", COORDINATOR, NEW):
        add_tables(year.folder, NEW)
        year.renew(NEW)
        year.write_party(NEW)
        year.start_side(NEW)
        change_parties(year, '"clinic"]', f'"clinic", "{NEW}"]')
        year.train()
        year.wait_for_answer(*PARTIES, NEW)


def change_parties(year: Operators, before: str, after: str) -> None:
    """Change the list of parties of the coordinator."""
    year.note(COORDINATOR, "edit `parties`")
    config = year.folder / "coordinator.toml"
    first, found, rest = config.read_text().partition(before)
    assert found
    config.write_text(first + after + rest)


def correct_a_clock(year: Operators) -> None:
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
        year.train()
        year.wait_for_answer(*PARTIES, NEW)


def renew_certificates(year: Operators) -> None:
    """Replace every certificate while all processes run."""
    certificate = (year.folder / "certs" / "shop.crt").read_bytes()
    old = f"{load_pem_x509_certificate(certificate).serial_number:x}"
    with year.during("renew every certificate", *SIDES):
        loaded = {side: year.count(state_of(side), "certificate_loaded") for side in SIDES}
        for side in SIDES:
            year.renew(side)
        for side in SIDES:
            year.wait_for_event(state_of(side), "certificate_loaded", loaded[side] + 1)
        for name in (*PARTIES, NEW):
            year.wait_available(name)
        year.wait_for_answer(*PARTIES, NEW)
    with year.during("revoke an old certificate", COORDINATOR):
        command = ("certs", "revoke", "shop", "--serial", old, "--dir", "certs")
        year.xvfl(COORDINATOR, *command)
        year.wait_for_answer(*PARTIES, NEW)


def restore_a_party(year: Operators) -> None:
    """Lose the state folder of a party, and restore it from its backup."""
    with year.during("restore a party from its backup", "bank"):
        year.note("bank", "kill -KILL")
        year.kill("bank")
        year.wait_for_answer("shop", "clinic", without=["bank"])
        shutil.rmtree(year.folder / "bank")
        year.shell("bank", "cp -a bank-backup bank")
        year.start_side("bank")
        year.wait_for_answer(*PARTIES)
    for state in ("bank", "main"):
        assert year.wait_for_event(state, "trail_differs")


def remove_a_party(year: Operators) -> None:
    """Revoke a party, then train without it."""
    with year.during("revoke a party", COORDINATOR):
        year.xvfl(COORDINATOR, "certs", "revoke", NEW, "--all", "--dir", "certs")
        year.wait_for_answer(*PARTIES, without=[NEW])
    with year.during("remove a party", COORDINATOR, NEW):
        change_parties(year, f', "{NEW}"]', "]")
        year.train()
        year.wait_for_answer(*PARTIES, without=[NEW])
        year.stop_side(NEW)


def rotate_logs(year: Operators) -> None:
    """Rename the logs; the processes go on in new files."""
    with year.during("rotate logs", COORDINATOR, *PARTIES):
        for side in (COORDINATOR, *PARTIES):
            state = state_of(side)
            year.shell(side, f"mv {state}/log.jsonl {state}/log.jsonl.1")


def update_each_side(year: Operators) -> None:
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
        year.shell(COORDINATOR, "cp -a main main-backup")
        # Restored at once, as on another machine.
        shutil.rmtree(year.folder / "main")
        year.shell(COORDINATOR, "cp -a main-backup main")
        year.start_side(COORDINATOR)
        year.wait_for_answer(*PARTIES)
    assert event.failed


def refuse_an_old_party(year: Operators) -> None:
    """Let a party of version 0.3 connect."""
    with year.during("refuse a party of 0.3", "shop"):
        year.note("shop", "the first message of xvfl 0.3.0")
        command = (
            sys.executable,
            old_party.__file__,
            f"{year.address}:{year.listen}",
            "certs",
            "shop",
        )
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


def serve_parties_of_04(year: Operators) -> None:
    """Let a coordinator of this version train and predict with recorded parties."""
    with year.during("serve recorded parties of 0.4"):
        (year.folder / "recorded").mkdir()
        serve_recorded_parties(year.folder / "recorded", json.loads(SESSION.read_text()))


def stop_all(year: Operators) -> None:
    """Stop all sides; check their trails."""
    year.kill("load")
    with year.during("stop all", COORDINATOR, *PARTIES):
        for side in (COORDINATOR, *PARTIES):
            year.stop_side(side)
    for side in SIDES:
        assert verify_trail(read_trail(year.folder / state_of(side))).problems == []


PARTS = (
    begin,
    retrain,
    go_back_and_forth,
    abort_trainings,
    add_a_party,
    ask_for_a_version,
    correct_a_clock,
    renew_certificates,
    restore_a_party,
    remove_a_party,
    rotate_logs,
    update_each_side,
    refuse_an_old_party,
    serve_parties_of_04,
    stop_all,
)


def live_a_year(folder: Path, separate: bool) -> list[Event]:
    """Let a year pass; return its events."""
    with Operators(folder, separate) as year:
        for part in PARTS:
            part(year)
        return year.events


def table_of(events: Sequence[Event]) -> str:
    """Return a table of all events, with the commands of each."""
    lines = [f"{'event':36} {'answered':>8} {'failed':>6} {'slowest':>8}  commands at"]
    for event in events:
        lines.append(line_of(event))
        lines += [f"    {side}: {command}" for side, command in event.commands]
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        separate = "--loopback" not in sys.argv and may_create_machines()
        print(table_of(live_a_year(Path(made), separate)))
        print("machines:", "network namespaces" if separate else "one, by loopback")
