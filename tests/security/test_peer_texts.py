"""Texts that a peer chooses forge no log line, terminal output or metric, and have a bound."""

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.security.federation_files import N_ROWS, start, wait_for, write_files, write_party
from tests.wire.transport_helpers import run_client, run_server, tls_files, wait_until
from xvfl.errors import PartyError, WireError
from xvfl.federation.predict_in_time import _unpack
from xvfl.federation.prediction_ledger import PredictionLedger, PredictionLimits
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.system.event_log import EventLog, read_log
from xvfl.wire import codec
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import (
    Assist,
    Begin,
    EmbedRows,
    End,
    ErrorReply,
    Hello,
    Message,
    OpenPrediction,
    RowEmbeddings,
)
from xvfl_serve.http.metrics import to_text

FORGED = "12:00:00 coordinator: finished step=99"
HOSTILE = (
    f'gone\n{FORGED}\r\x1b[2J\x1b]0;owned\x07 [red]x[/red] "q" \\ \u202eevil\u2066 \u2028 \x9b1m'
)
HANDLES = torch.zeros(1, dtype=torch.int32)
SERIES = re.compile(r'\w+(\{\w+="(\\[\\"n]|[^"\\\n])*"(,\w+="(\\[\\"n]|[^"\\\n])*")*\})? \S+')
"""A line of the text format of Prometheus."""


def check_lines(text: str, process: str) -> None:
    """Check that an output consists of this process's own printable lines."""
    for line in text.split("\n")[:-1]:
        assert line.isprintable(), repr(line)
        assert re.match(rf"\d\d:\d\d:\d\d {process}: \w+|error: ", line), line
        assert not line.startswith(FORGED) and len(line) < 20_000


def reply_with_error(text: str) -> Callable[[bytes], bytes]:
    def handle(frame: bytes) -> bytes:
        return codec.encode(ErrorReply(codec.decode(frame).request_id, "WireError", text))

    return handle


def check_coordinator(folder: Path, out: str, err: str) -> None:
    """Check what a coordinator printed and logged."""
    assert out == "" and "coordinator: listening" in err
    check_lines(err, "coordinator")
    events = read_log(folder / "main")
    assert all(len(json.dumps(each)) < 20_000 for each in events)
    assert "finished" not in {each["event"] for each in events}


@pytest.mark.slow
def test_a_party_writes_no_line_of_the_coordinator(tmp_path: Path) -> None:
    write_files(tmp_path)
    main = start(tmp_path, "coordinator", "coordinator.toml")
    try:
        address = str(wait_for(tmp_path / "main", "listening", main)["address"])
        port, hello = int(address.rpartition(":")[2]), Hello(0, "honest", False, N_ROWS, "", "")
        handle = reply_with_error(HOSTILE + 500_000 * "x")
        with run_client(tmp_path / "certs", "shop", port, hello, handle):
            out, err = main.communicate(timeout=300)
    finally:
        main.kill()
    assert main.returncode == 2 and "matching with party 'shop'" in err
    check_coordinator(tmp_path, out, err)


@pytest.mark.slow
def test_a_party_writes_no_line_of_the_coordinator_by_its_id(tmp_path: Path) -> None:
    write_files(tmp_path)
    main = start(tmp_path, "coordinator", "coordinator.toml")
    try:
        address = str(wait_for(tmp_path / "main", "listening", main)["address"])
        hello = Hello(0, HOSTILE, False, N_ROWS, "", "")
        client = PartyClient(
            f"localhost:{address.rpartition(':')[2]}",
            tls_files(tmp_path / "certs", "shop").client_credentials,
            lambda: hello,
            reply_with_error("no"),
            is_over=lambda: main.poll() is not None,
        )
        with suppress(PartyError):
            client.run()
        main.terminate()
        out, err = main.communicate(timeout=300)
    finally:
        main.kill()
    check_coordinator(tmp_path, out, err)


@pytest.mark.slow
def test_the_coordinator_writes_no_line_of_a_party(tmp_path: Path) -> None:
    write_files(tmp_path)
    with run_server(tmp_path / "certs", ["shop"]) as server:
        write_party(tmp_path, server.port)
        shop = start(tmp_path, "party", "shop.toml")
        try:
            transport = server.transports["shop"]
            wait_until(lambda: transport.hello() or shop.poll() is not None)
            transport.request(End(1, HOSTILE + 500_000 * "x")).result(300)
            _, err = shop.communicate(timeout=300)
        finally:
            shop.kill()
    assert shop.returncode == 2 and "error: the coordinator ended the run for this party" in err
    check_lines(err, "shop")
    assert max(map(len, (tmp_path / "shop" / "log.jsonl").read_bytes().splitlines())) < 20_000


@pytest.mark.parametrize(
    "message",
    [
        EmbedRows(1, HOSTILE, ("plain",), HANDLES),
        EmbedRows(1, 1000 * "a", ("plain",), HANDLES),
        Assist(1, HOSTILE, 1.0, HANDLES),
        OpenPrediction(1, HOSTILE),
        Begin(1, HOSTILE, 0, "{}", HANDLES),
        Hello(0, HOSTILE, False, 1, "", ""),
        Hello(0, "id", False, 1, HOSTILE, ""),
        Hello(0, "id", False, 1, "", HOSTILE),
        Hello(0, "id", False, 1, "", "", HOSTILE),
    ],
    ids=lambda message: type(message).__name__,
)
def test_names_that_are_no_names_are_rejected(message: Message) -> None:
    with pytest.raises(WireError) as caught:
        codec.decode(codec.encode(message))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_long_refusal_is_shortened_and_does_not_exclude_the_party() -> None:
    status, observed = torch.tensor([3], dtype=torch.uint8), torch.ones(1)
    message = RowEmbeddings(1, torch.zeros(0, 1, 8), status, observed, 20 * HOSTILE)
    reply = codec.decode(codec.encode(message))
    assert isinstance(reply, RowEmbeddings)
    assert len(reply.refusal) <= 200 and reply.refusal.isprintable()
    assert _unpack(reply, torch.tensor([0]), 1, 8).shape == (1, 1, 8)


def test_an_event_is_one_line_and_its_values_are_no_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path, "bank")
    log.write({"event": "refused", "caller": "a rows=0 reason=none", "reason": HOSTILE, "rows": 3})
    log.write({"event": "various", "each": {HOSTILE: HOSTILE}, "parties": [HOSTILE], "n": None})
    err = capsys.readouterr().err
    check_lines(err, "bank")
    assert err.count("\n") == 2 and "rows=3" in err and " rows=0 reason=none " not in err
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


def test_callers_that_the_coordinator_invents_are_few_valid_series(tmp_path: Path) -> None:
    limits = PredictionLimits(max_per_row=10**6, max_per_caller=10**6, max_per_day=10**6)
    ledger = PredictionLedger(limits, 4, tmp_path, lambda: date(2026, 1, 1))
    for number in range(500):
        ledger.take(np.array([0]), f"{HOSTILE} {number}")
    text = to_text(status_metrics({**ledger.usage(), "party_present": {HOSTILE: 1}}))
    lines = [each for each in text.split("\n")[:-1] if not each.startswith("# ")]
    assert all(SERIES.fullmatch(line) and line.isprintable() for line in lines)
    assert len(lines) < 120
    by_caller = [float(line.rsplit(" ", 1)[1]) for line in lines if "by_caller" in line]
    assert sum(by_caller) == 500


def test_a_status_shows_no_markup_and_no_escape(tmp_path: Path) -> None:
    status = {"healthy": True, "side": HOSTILE, "problem": HOSTILE, "party_reason": {"a": HOSTILE}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        shown = start(tmp_path, "status", f"127.0.0.1:{server.server_port}")
        out, err = shown.communicate(timeout=300)
    finally:
        server.shutdown()
        server.server_close()
    assert shown.returncode == 0 and err == ""
    assert all(line.isprintable() for line in out.split("\n"))
    assert "[red]" in out and "\\u202e" in out.replace("\n", "")
