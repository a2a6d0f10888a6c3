"""Faults of a coordinator and a party, and what log, exit code, health and metrics say of each.

`python -m tests.service.fault_table` causes all of them and writes the table of docs/operate.md.
"""

import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tests.processes import ROOT
from tests.service.fault_processes import (
    COORDINATOR,
    PARTY,
    Faulty,
    federation,
    limit_files,
    train,
    write_files,
)
from xvfl.certs import create_authority, open_authority

PAGE = ROOT / "docs" / "operate.md"
BLOCK = re.compile(r"(<!-- faults -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = (
    "| fault | side | last line of the log | exit code | `/health` | metric |",
    "|---|---|---|---|---|---|",
)
ENDED, GOES_ON = "–", "goes on"
"""Health and metrics of a process that has ended, and the exit code of one that has not."""
ONCE = ("party", "--once")
TRAIN = ("coordinator",)


class Row(NamedTuple):
    """What one side says after a fault."""

    side: str
    line: str
    """Event and reason of the last line of its log, or of standard error if it has no log."""
    code: str
    health: str
    metric: str


Cause = Callable[[Faulty], Row]


def ended(f: Faulty, name: str) -> Row:
    """Return what a process says that has ended."""
    code = f.end(name)
    events = f.events(name)
    if not events:
        return Row(name, f"standard error: `{f.plain(f.errors(name))}`", str(code), ENDED, ENDED)
    last = events[-1]
    assert last["event"] in ("failed", "stopped", "finished"), (events[-3:], f.errors(name))
    assert last.get("exit_code", 0) == code, last
    return Row(name, line(f, last), str(code), ENDED, ENDED)


def goes_on(f: Faulty, name: str, kind: str, metric: str, health: int = 503) -> Row:
    """Return what a process says that goes on, once this event is in its log.

    `health` is the status that /health ends in.
    """
    event = f.wait(name, kind)
    f.wait(name, "status_server")
    f.until(name, lambda: f.get(name, "/health")[0] == health, f"/health {health}")
    said, reason = line(f, event), f.plain(f.get(name, "/health")[1])
    known = (why := said.partition(": ")[2]) and why in reason
    shown = f"{health}, this reason" if known else f"{health} `{reason}`"
    value = f.metrics(name)[metric]
    moved = "rises" if "_total" in metric else f"is {value:g}"
    return Row(name, said, GOES_ON, shown, f"`{metric}` {moved}")


def counted(kind: str) -> str:
    """Return the metric that counts an event."""
    return f'xvfl_events_total{{event="{kind}"}}'


def line(f: Faulty, event: dict[str, object]) -> str:
    """Format a line of the log."""
    why = next((event[key] for key in ("reason", "warning", "problem") if event.get(key)), "")
    text = f"`{event['event']}`"
    return f"{text}: {f.plain(str(why))}" if why else text


# Before the start.


def unknown_option(f: Faulty) -> Row:
    f.change(PARTY, "id_column", "id_colum")
    f.start(PARTY)
    return ended(f, PARTY)


def table_missing(f: Faulty) -> Row:
    (f.folder / "shop.csv").unlink()
    f.start(PARTY)
    return ended(f, PARTY)


def port_taken(name: str, port: str, f: Faulty) -> Row:
    with closing(socket.create_server(("127.0.0.1", f.ports[port]))):
        f.start(name, *TRAIN) if name == COORDINATOR else f.start(name)
        return ended(f, name)


def no_state_folder(f: Faulty) -> Row:
    (f.folder / "shop").write_text("a file")
    f.start(PARTY)
    return ended(f, PARTY)


# Certificates.


def other_authority(f: Faulty) -> Row:
    create_authority(f.folder / "other").issue(PARTY)
    for each in ("crt", "key"):
        shutil.copy(f.folder / f"other/shop.{each}", f.folder / f"certs/shop.{each}")
    f.start(COORDINATOR)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY)
    return ended(f, PARTY)


def expired(f: Faulty) -> Row:
    for each in ("crt", "key"):
        (f.folder / f"certs/shop.{each}").unlink()
    authority = open_authority(f.folder / "certs")
    past = datetime.now(UTC) - timedelta(days=10)
    authority.issue(PARTY, days=5, now=past)
    f.start(COORDINATOR)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY)
    return ended(f, PARTY)


def revoked(name: str, f: Faulty) -> Row:
    f.serve()
    open_authority(f.folder / "certs").revoke(PARTY)
    if name == PARTY:
        return goes_on(f, PARTY, "not_connected", "xvfl_connected")
    return goes_on(f, COORDINATOR, "connection_rejected", counted("connection_rejected"))


def not_in_parties(f: Faulty) -> Row:
    f.change(COORDINATOR, 'parties = ["shop"]', 'parties = ["bank"]')
    f.start(COORDINATOR, *TRAIN)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY)
    return goes_on(f, PARTY, "not_connected", "xvfl_connected")


# Connections.


def no_coordinator(f: Faulty) -> Row:
    f.start(PARTY)
    return goes_on(f, PARTY, "connection_lost", "xvfl_connected")


def no_coordinator_once(f: Faulty) -> Row:
    f.change(PARTY, "reconnect_timeout = 60.0", "reconnect_timeout = 0.5")
    f.start(PARTY, *ONCE)
    return ended(f, PARTY)


def no_party(f: Faulty) -> Row:
    f.change(COORDINATOR, "join = 60.0", "join = 0.5")
    f.start(COORDINATOR, *TRAIN)
    return ended(f, COORDINATOR)


def coordinator_killed(f: Faulty) -> Row:
    f.serve()
    f.running[COORDINATOR].kill()
    return goes_on(f, PARTY, "connection_lost", "xvfl_connected")


def party_killed(f: Faulty) -> Row:
    f.serve()
    f.running[PARTY].kill()
    return goes_on(f, COORDINATOR, "party_left_out", 'xvfl_party_present{party="shop"}')


def clock_ahead(f: Faulty) -> Row:
    f.serve(patch=set_clock_ahead)
    found = goes_on(f, COORDINATOR, "clock_compared", counted("clock_compared"), health=200)
    name = 'xvfl_party_clock_ahead_seconds{party="shop"}'
    assert abs(f.metrics(COORDINATOR)[name] - 7200) < 60
    return found._replace(metric=f"`{name}` is about 7200")


def set_clock_ahead() -> None:
    from xvfl.wire import client

    told = client.Challenge
    client.Challenge = lambda number, nonce: told(number, nonce, time.time() + 7200)  # type: ignore[assignment, misc]


def other_protocol(f: Faulty) -> Row:
    f.start(COORDINATOR)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY, patch=set_other_protocol)
    return goes_on(f, PARTY, "not_connected", "xvfl_connected")


def set_other_protocol() -> None:
    from xvfl.wire import protocol

    protocol.OLDEST = protocol.NEWEST = 3


# Tables, uploads, heads.


def table_changed(f: Faulty) -> Row:
    table = pd.read_csv(f.folder / "shop.csv")
    table.iloc[1:].to_csv(f.folder / "shop.csv", index=False)
    f.start(COORDINATOR)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY)
    return ended(f, PARTY)


def empty_state_folder(f: Faulty) -> Row:
    shutil.rmtree(f.folder / COORDINATOR)
    f.start(COORDINATOR, *TRAIN)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY)
    return goes_on(f, PARTY, "approval_requested", "xvfl_approvals_pending", health=200)


def budget_used(f: Faulty) -> Row:
    f.serve()
    for _ in range(2):
        f.predict(["c003"])
    return goes_on(f, PARTY, "prediction_refused", "xvfl_prediction_requests_of_a_row", health=200)


def upload(forge: Callable[[], object], name: str, f: Faulty) -> None:
    f.start(COORDINATOR, *TRAIN)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY, patch=forge)


def forge_constant() -> None:
    forge(lambda views: views * 0 + 0.1)


def forge_large() -> None:
    forge(lambda views: views * 1000)


def forge(change: Callable[..., object]) -> None:
    from xvfl.service.uploads import upload_party

    compute = upload_party.compute_views
    upload_party.compute_views = lambda *given: change(compute(*given))  # type: ignore[assignment]


def upload_suspicious(f: Faulty) -> Row:
    upload(forge_constant, COORDINATOR, f)
    assert f.end(COORDINATOR) == 0
    event = next(e for e in f.events(COORDINATOR) if e["event"] == "upload_suspicious")
    return Row(COORDINATOR, line(f, event), "0", ENDED, f"`{counted('upload_suspicious')}` rises")


def upload_rejected(f: Faulty) -> Row:
    upload(forge_large, COORDINATOR, f)
    return ended(f, COORDINATOR)


def disk_full(name: str, size: int, f: Faulty) -> Row:
    limit = partial(limit_files, size)
    f.start(COORDINATOR, *TRAIN, patch=limit if name == COORDINATOR else int)
    f.wait(COORDINATOR, "listening")
    f.start(PARTY, patch=limit if name == PARTY else int)
    if name == COORDINATOR:
        return ended(f, name)
    return goes_on(f, PARTY, "encoder_failed", "xvfl_encoder_failed")


def log_unwritable(f: Faulty) -> Row:
    f.serve()
    (f.folder / "coordinator/log.jsonl").rename(f.folder / "kept.jsonl")
    (f.folder / "coordinator/log.jsonl").mkdir()
    f.running[PARTY].kill()
    lost = "xvfl_log_events_lost_total"
    f.until(COORDINATOR, lambda: f.metrics(COORDINATOR)[lost] > 0, lost)
    status, text = f.get(COORDINATOR, "/health")
    f.until(COORDINATOR, lambda: "party_left_out" in f.errors(COORDINATOR), lost)
    return Row(
        COORDINATOR,
        "on standard error alone",
        GOES_ON,
        f"{status} `{f.plain(text)}`",
        f"`{lost}` rises",
    )


def damaged(name: str, file: str, f: Faulty, *arguments: str) -> Row:
    """Cut the end off a file of the state folder of a side, and start it."""
    path = f.folder / name / file
    path.write_bytes(path.read_bytes()[:100])
    f.start(name, *arguments)
    return ended(f, name)


def stored_upload_damaged(f: Faulty) -> Row:
    return damaged(COORDINATOR, "uploads/shop/1/views.f16", f, *TRAIN, "--retrain")


def head_checkpoint_damaged(f: Faulty) -> Row:
    f.change(COORDINATOR, "epochs = 2", "epochs = 100_000\npatience = 0")
    f.start(COORDINATOR, *TRAIN, "--retrain")
    f.wait(COORDINATOR, "epoch")
    f.send(COORDINATOR, signal.SIGTERM)
    assert f.end(COORDINATOR) == 0
    return damaged(COORDINATOR, "heads/2/checkpoint.safetensors", f, *TRAIN, "--retrain")


# Signals.


def signalled(name: str, number: signal.Signals, f: Faulty) -> Row:
    f.serve()
    f.send(name, number)
    return ended(f, name)


FRESH: dict[str, Cause] = {
    "unknown option in the configuration": unknown_option,
    "the table is missing": table_missing,
    "the port for parties is in use": partial(port_taken, COORDINATOR, "listen"),
    "the status port is in use": partial(port_taken, PARTY, "status_shop"),
    "the state folder cannot be created": no_state_folder,
    "a party that is not in `parties`": not_in_parties,
    "no coordinator answers": no_coordinator,
    "no coordinator answers, `--once`, after `reconnect_timeout`": no_coordinator_once,
    "no party connects within `timeouts.join`": no_party,
    "the upload is constant": upload_suspicious,
    "the upload is too large": upload_rejected,
    "the disk of the coordinator is full": partial(disk_full, COORDINATOR, 20_000),
    "the disk of the party is full": partial(disk_full, PARTY, 8_000),
}
"""Faults of a federation that was never started, by the text of their line."""
TRAINED: dict[str, Cause] = {
    "certificate of another authority": other_authority,
    "expired certificate": expired,
    "revoked certificate, at the party": partial(revoked, PARTY),
    "revoked certificate, at the coordinator": partial(revoked, COORDINATOR),
    "the coordinator is killed": coordinator_killed,
    "a party is killed": party_killed,
    "a clock is two hours ahead": clock_ahead,
    "another version of the protocol": other_protocol,
    "the table has changed since it was matched": table_changed,
    "the coordinator starts with an empty state folder": empty_state_folder,
    "a budget of predictions is used up": budget_used,
    "the log cannot be written": log_unwritable,
    "the file of the current head is cut short": partial(
        damaged, COORDINATOR, "heads/1/model.safetensors"
    ),
    "the file of a stored upload is cut short, `--retrain`": stored_upload_damaged,
    "the checkpoint of a head is cut short": head_checkpoint_damaged,
    "the file of the encoder is cut short": partial(
        damaged, PARTY, "encoders/1/weights.safetensors"
    ),
    "SIGTERM, at the coordinator": partial(signalled, COORDINATOR, signal.SIGTERM),
    "SIGTERM, at the party": partial(signalled, PARTY, signal.SIGTERM),
    "SIGINT, at the coordinator": partial(signalled, COORDINATOR, signal.SIGINT),
    "SIGINT, at the party": partial(signalled, PARTY, signal.SIGINT),
}
"""Faults of a federation that has trained a head."""
FAULTS = {**FRESH, **TRAINED}


def make_trained(folder: Path) -> None:
    """Write and train the federation that `TRAINED` faults happen to."""
    write_files(folder)
    train(folder)
    for name in (COORDINATOR, PARTY):
        (folder / name / "log.jsonl").unlink(missing_ok=True)


def cause(fault: str, folder: Path, trained: Path) -> str:
    """Cause a fault in an empty folder; return its line of the table."""
    with federation(folder, trained if fault in TRAINED else None) as f:
        return as_line(fault, FAULTS[fault](f))


def as_line(fault: str, row: Row) -> str:
    """Format a line of the table."""
    cells = (fault, row.side.replace(PARTY, "party"), row.line, row.code, row.health, row.metric)
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def documented() -> list[str]:
    """Return the lines of the table in the docs."""
    found = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return [each for each in found[0].splitlines() if each.startswith("| ")][1:]


def update(only: Sequence[str]) -> None:
    """Cause faults, those whose text has one of these, and write their lines into the docs."""
    lines = {each.split(" | ")[0].removeprefix("| "): each for each in documented()}
    with tempfile.TemporaryDirectory() as base:
        trained = Path(base) / "trained"
        trained.mkdir()
        make_trained(trained)
        for number, fault in enumerate(FAULTS):
            if not only or any(each in fault for each in only):
                folder = Path(base) / str(number)
                folder.mkdir()
                lines[fault] = cause(fault, folder, trained)
                print(lines[fault], flush=True)
    table = [*HEADER, *(lines[each] for each in FAULTS if each in lines)]
    text = PAGE.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda match: "\n".join([match[1], *table, "", match[2]]), text)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    update(sys.argv[1:])
