"""`xvfl align`: every side a process of its own with its own files, over mutual TLS."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from tests.command_line import rejected_with, run_xvfl
from tests.federation.split_helpers import InMemoryCheckpoints
from tests.processes import free_port
from tests.small_tables import SOURCE, make_tables
from tests.wire.transport_helpers import issue_certificates, open_transports, run_server
from xvfl.errors import ConfigError, MatchingError, PartyError
from xvfl.federation.endpoint import Endpoint
from xvfl.matching import (
    coordinator_session,
    load_coordinator_alignment,
    load_party_alignment,
    party_session,
    session_checks,
)
from xvfl.service.align import MAX_INTERRUPTIONS, match_parties
from xvfl.service.config import MatchingConfig, PartyProcessConfig, load_config
from xvfl.service.matched_table import SESSIONS, MatchedTable, matching_endpoint
from xvfl.system import event_log
from xvfl.system.event_log import read_log
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, ErrorReply, Hello, Match, Message

COORDINATOR = """
listen = "localhost:{port}"
parties = ["bank", "shop"]
revocation_list = "certs/ca.crl"

[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"

[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
"""
PARTY = """
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "customer"
state_dir = "{name}"

[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
"""
NO_ROWS = torch.zeros(0, dtype=torch.int32)
LABELED, IDS = ["a", "b", "c"], ["C", "d", " a "]


def table(ids: list[str]) -> pd.DataFrame:
    """Return a table with one column."""
    return pd.DataFrame({"x": 0.0}, index=ids)


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """Write three sides' files: the shop spells its ids in capitals."""
    bank, shop, y = make_tables()
    bank.reset_index().to_csv(tmp_path / "bank.csv", index=False)
    shop.index = shop.index.str.upper()
    shop.reset_index().to_csv(tmp_path / "shop.csv", index=False)
    y.iloc[10:].reset_index().to_csv(tmp_path / "labels.csv", index=False)
    issue_certificates(tmp_path / "certs", ["bank", "shop"])
    port = free_port()
    (tmp_path / "coordinator.toml").write_text(COORDINATOR.format(port=port))
    for name in ("bank", "shop"):
        (tmp_path / f"{name}.toml").write_text(PARTY.format(port=port, name=name))
    return tmp_path


def start(config: Path, *more: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "xvfl", "align", str(config), "--wait", "300", *more]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(started: subprocess.Popen[str]) -> str:
    out, err = started.communicate(timeout=600)
    assert started.returncode == 0, err
    return out


@pytest.mark.slow
def test_three_processes_match_their_ids(federation: Path) -> None:
    names = ("coordinator", "bank", "shop")
    (federation / "bank").mkdir()
    (federation / "bank" / "alignment.json").write_text('{"format": 1}')  # Of an earlier version.
    options = {"bank": ["--again"]}
    started = [start(federation / f"{name}.toml", *options.get(name, [])) for name in names]
    said = dict(zip(names, map(finish, started), strict=True))
    assert "bank: holds 110 of 110 labeled rows; 120 rows in all" in said["coordinator"]
    assert "shop: holds 100 of 110 labeled rows; 100 rows in all" in said["coordinator"]
    assert "holds 110 of 110 labeled rows; 120 rows in all" in said["bank"]
    assert "holds 100 of 110 labeled rows; 100 rows in all" in said["shop"]
    found = load_coordinator_alignment(federation / "state" / "alignment.json")
    bank, shop, y = make_tables()
    labeled = list(y.index[10:])
    for name, table in (("bank", bank), ("shop", shop)):
        kept = load_party_alignment(federation / name / "alignment.json")
        assert kept.match.session == found.matches[name].session
        kept.table.check(table.columns, list(_written(federation, name)), name)
        for row, handle in enumerate(found.matches[name].handles):
            held = labeled[row] in table.index
            assert (handle >= 0) == held
            if held:
                assert table.index[kept.match.rows[handle]] == labeled[row]
    log = (federation / "shop" / "alignment.json").read_text()
    assert not any(each in log for each in ("c050", "C050"))
    assert [each["event"] for each in read_log(federation / "bank")][-2:] == [
        "matching_started",
        "matched",
    ]
    matched = [each for each in read_log(federation / "state") if each["event"] == "matched"]
    assert [each["party"] for each in matched] == ["bank", "shop"]
    line = rejected_with("align", federation / "bank.toml")
    assert "bank/alignment.json: ids are matched already; add --again" in line
    # The end of a matching without a party is in the log, too.
    done = run_xvfl("align", federation / "coordinator.toml", "--wait", "0.2")
    last = read_log(federation / "state")[-1]
    assert last["event"] == "failed" and last["reason"] in done.err
    assert last["exit_code"] == done.code == 2


@pytest.mark.slow
def test_a_refused_handshake_is_logged(federation: Path) -> None:
    coordinator = start(federation / "coordinator.toml")
    port = load_config(federation / "coordinator.toml").listen.rpartition(":")[2]  # type: ignore[union-attr]
    until = time.monotonic() + 300
    while True:
        try:
            with socket.create_connection(("localhost", int(port)), timeout=60) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert plain.recv(1000) == b""
            break
        except ConnectionRefusedError:
            assert time.monotonic() < until and coordinator.poll() is None
            time.sleep(0.05)
    for party in [start(federation / f"{name}.toml") for name in ("bank", "shop")]:
        finish(party)
    _, err = coordinator.communicate(timeout=600)
    assert coordinator.returncode == 0, err
    assert 'connection_dropped reason="the TLS handshake failed' in err


def _written(folder: Path, name: str) -> list[str]:
    lines = (folder / f"{name}.csv").read_text().splitlines()[1:]
    return [line.split(",")[0] for line in lines]


@pytest.mark.parametrize("kind", ["memory", "grpc"])
def test_matching_runs_over_every_transport(kind: str, tmp_path: Path) -> None:
    config = MatchingConfig(n_threads=1)
    ends = [matching_endpoint(table(IDS), tmp_path / "p0.json", config)]
    with open_transports(kind, ["p0"], ends, tmp_path / "certs") as found:
        ours = match_parties({"p0": found[0]}, LABELED, ["y"], config, tmp_path / "c.json")
    theirs = load_party_alignment(tmp_path / "p0.json")
    handles = ours.matches["p0"].handles
    assert [int(theirs.match.rows[h]) if h >= 0 else None for h in handles] == [2, None, 0]
    assert ends[0].end_reason == "matched"


def test_a_party_added_later_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    config, path = MatchingConfig(n_threads=1), tmp_path / "c.json"

    def match(names: list[str], labeled: list[str]) -> dict[str, bytes]:
        ends = {
            n: matching_endpoint(table(IDS), tmp_path / f"{n}.json", config, again=True)
            for n in names
        }
        over = {n: InProcessTransport(end.hello, end.handle) for n, end in ends.items()}
        found = match_parties(over, labeled, ["y"], config, path)
        return {name: each.session for name, each in found.matches.items()}

    first = match(["p0"], LABELED)
    both = match(["p1"], LABELED)
    assert both["p0"] == first["p0"] and list(both) == ["p0", "p1"]
    assert list(match(["p1"], LABELED[:2])) == ["p1"], "other labels: what was known is void"


def test_two_rules_are_refused_on_both_sides(tmp_path: Path) -> None:
    notes: list[dict[str, object]] = []
    end = matching_endpoint(table(IDS), tmp_path / "p0.json", MatchingConfig("exact"), notes.append)
    over = {"p0": InProcessTransport(end.hello, end.handle)}
    with pytest.raises(MatchingError, match="'p0' rejected .*rule 'folded'.*by 'exact'"):
        match_parties(over, LABELED, ["y"], MatchingConfig(), tmp_path / "c.json")
    assert "rule 'folded'" in str(notes[-1]["reason"])
    assert not (tmp_path / "c.json").exists() and not (tmp_path / "p0.json").exists()


def test_a_party_that_only_matches_does_not_train(tmp_path: Path) -> None:
    end = matching_endpoint(table(IDS), tmp_path / "p0.json", MatchingConfig())
    settings = json.dumps({"method": "xvfl", "net": {}, "train": {}})
    reply = codec.decode(end.handle(codec.encode(Begin(1, "run", 0, settings, NO_ROWS))))
    assert isinstance(reply, ErrorReply) and "only matches ids now" in reply.text


def test_a_party_that_trains_does_not_match_unless_told(tmp_path: Path) -> None:
    hello = Hello(0, "life", False, 3, "", "")
    plain = Endpoint(hello, lambda settings, training: pytest.fail("no run"), InMemoryCheckpoints())
    with pytest.raises(MatchingError, match="Match: expected a request of a coordinator"):
        over = {"p0": InProcessTransport(hello, plain.handle)}
        match_parties(over, LABELED, ["y"], MatchingConfig(), tmp_path / "c.json")


def test_a_party_that_does_not_come_is_named(tmp_path: Path) -> None:
    issue_certificates(tmp_path / "certs", ["p0"])
    with (
        run_server(tmp_path / "certs", ["p0"]) as listener,
        pytest.raises(PartyError, match="'p0' did not connect within 0 s; start `xvfl align`"),
    ):
        match_parties(
            listener.transports,
            LABELED,
            ["y"],
            MatchingConfig(),
            tmp_path / "c.json",
            timeout_s=0.2,
        )


def test_a_question_that_comes_again_gets_the_answer_it_got(tmp_path: Path) -> None:
    config = MatchingConfig(n_threads=1)
    end = matching_endpoint(table(IDS), tmp_path / "p0.json", config)

    def twice(frame: bytes) -> bytes:
        first = end.handle(frame)
        assert end.handle(frame) == first
        return first

    over = {"p0": InProcessTransport(end.hello, twice)}
    found = match_parties(over, LABELED, ["y"], config, tmp_path / "c.json")
    assert (found.matches["p0"].handles >= 0).tolist() == [True, False, True]


def test_a_coordinator_that_starts_again_is_answered(tmp_path: Path) -> None:
    config = MatchingConfig(n_threads=1)
    end = matching_endpoint(table(IDS), tmp_path / "p0.json", config)

    def dies(frame: bytes) -> bytes:
        reply = end.handle(frame)
        if isinstance(codec.decode(frame), Match) and len(frame) > 100:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        match_parties(
            {"p0": InProcessTransport(end.hello, dies)},
            LABELED,
            ["y"],
            config,
            tmp_path / "c.json",
        )
    over = {"p0": InProcessTransport(end.hello, end.handle)}
    found = match_parties(over, LABELED, ["y"], config, tmp_path / "c.json")
    assert found.matches["p0"].session == load_party_alignment(tmp_path / "p0.json").match.session


class RestartingTransport(InProcessTransport):
    """A party that is restarted before one of the requests."""

    def __init__(self, make_end: Callable[[], Endpoint], at: int, fails: bool) -> None:
        self._make_end, self._at, self._fails, self._count = make_end, at, fails, 0
        end = make_end()
        super().__init__(end.hello, end.handle)

    def request(self, message: Message) -> "Future[Message]":
        self._count += 1
        if self._count == self._at:
            end = self._make_end()
            super().__init__(end.hello, end.handle)
            if self._fails:
                lost: Future[Message] = Future()
                lost.set_exception(PartyError("party 'p0' restarted", ("p0",)))
                return lost
        return super().request(message)


@pytest.mark.parametrize("fails", [True, False], ids=["during a request", "between requests"])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_party_that_restarts_is_matched_again(at: int, fails: bool, tmp_path: Path) -> None:
    config, events = MatchingConfig(n_threads=1), list[Mapping[str, Any]]()

    def make_end() -> Endpoint:
        service = MatchedTable(table(IDS), tmp_path / "p0.json", config)
        hello = Hello(0, secrets.token_hex(8), False, len(IDS), "", "")
        return Endpoint(
            hello,
            lambda settings, training: pytest.fail("no run"),
            InMemoryCheckpoints(),
            replies={Match: service.reply},
        )

    over = {"p0": RestartingTransport(make_end, at, fails)}
    found = match_parties(over, LABELED, ["y"], config, tmp_path / "c.json", events.append)
    assert (found.matches["p0"].handles >= 0).tolist() == [True, False, True]
    assert found.matches["p0"].session == load_party_alignment(tmp_path / "p0.json").match.session
    names = [event["event"] for event in events]
    assert names == ["matching_started", "matching_interrupted", "matching_started", "matched"]
    assert not (tmp_path / SESSIONS).exists(), "the unfinished session no longer counts"


def test_a_party_that_never_replies_does_not_block_matching(tmp_path: Path) -> None:
    class Silent(InProcessTransport):
        def request(self, message: Message) -> "Future[Message]":
            lost: Future[Message] = Future()
            lost.set_exception(PartyError("party 'p0' did not reply in time", ("p0",)))
            return lost

    hello = Hello(0, "process", False, len(IDS), "", "")
    over, events = {"p0": Silent(hello, lambda message: message)}, list[Mapping[str, Any]]()
    with pytest.raises(MatchingError, match="party 'p0': no reply in time"):
        match_parties(over, LABELED, ["y"], MatchingConfig(), tmp_path / "c.json", events.append)
    names = [event["event"] for event in events]
    assert names.count("matching_interrupted") == MAX_INTERRUPTIONS


def test_long_matching_logs_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "PROGRESS_S", 0.0)
    for module in (session_checks, coordinator_session, party_session):
        monkeypatch.setattr(module, "PART_SIZE", 2)
    config = MatchingConfig(n_threads=1)
    events = list[Mapping[str, Any]]()
    ids = [f"c{i}" for i in range(7)]
    end = matching_endpoint(table(ids), tmp_path / "p0.json", config)
    over = {"p0": InProcessTransport(end.hello, end.handle)}
    match_parties(over, ids, ["y"], config, tmp_path / "c.json", events.append)
    shares = [e["percent"] for e in events if e["event"] == "matching_progress"]
    assert shares == sorted(shares) and shares[0] < 20 and shares[-1] == 100


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("listen =", "listens ="), "expected either `listen`"),
        (("parties = ", "party = "), "unknown key 'party': did you mean 'parties'"),
        (('["bank", "shop"]', '["bank", "bank"]'), "distinct names"),
        (("certs/coordinator.key", "certs/none.key"), "none.key: cannot be read"),
        (("certs/ca.crl", "certs/none.crl"), "none.crl: expected a revocation list"),
        (("labels.csv", "none.csv"), "file not found"),
        (("listen", "listen = 1\nlisten"), "not valid TOML"),
    ],
)
def test_a_wrong_configuration_is_one_line(
    federation: Path, change: tuple[str, str], words: str
) -> None:
    path = federation / "coordinator.toml"
    path.write_text(path.read_text().replace(*change))
    assert words in rejected_with("align", path)


def test_an_unknown_party_and_a_missing_file_are_one_line(federation: Path) -> None:
    line = rejected_with("align", federation / "coordinator.toml", "--party", "bnak")
    assert "unknown party 'bnak': did you mean 'bank'" in line
    assert "cannot be read" in rejected_with("align", federation / "none.toml")


def test_file_names_count_from_the_configuration(federation: Path) -> None:
    side = load_config(federation / "bank.toml")
    assert isinstance(side, PartyProcessConfig)
    assert side.table == str(federation / "bank.csv")
    assert side.tls.private_key == str(federation / "certs" / "bank.key")
    (federation / "bank.toml").write_text("[matching]\nrule = 'x'\ncoordinator = 1")
    with pytest.raises(ConfigError):
        load_config(federation / "bank.toml")
