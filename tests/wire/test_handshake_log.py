"""Handshakes that TLS refuses are in the coordinator's log, each with its reason."""

import os
import socket
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.wire.transport_helpers import issue_certificates, run_server, wait_until
from xvfl.certs import create_authority
from xvfl.wire.handshake_log import log_failed_handshakes
from xvfl.wire.limited_log import MAX_LINES, LimitedLog


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of every wrong kind."""
    found, now = tmp_path_factory.mktemp("certs"), datetime.now(UTC)
    made = create_authority(found / "ca", now=now - timedelta(days=400))
    made.issue("coordinator", hosts=("localhost",))
    made.issue("expired", days=10, now=now - timedelta(days=300))
    made.issue("future", now=now + timedelta(days=3))
    made.issue("p0")
    issue_certificates(found / "other", ["p0"])
    return found


def shake(folder: Path, port: int, own: str | None) -> None:
    """Shake hands with a certificate or none, and wait to be hung up on."""
    context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.crt"))
    context.set_alpn_protocols(["h2"])
    if own is not None:
        context.load_cert_chain(folder / f"{own}.crt", folder / f"{own}.key")
    with (
        socket.create_connection(("localhost", port), timeout=120) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as line,
    ):
        try:
            assert line.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            return


def speak(folder: Path, port: int, words: bytes) -> None:
    """Say something without TLS."""
    with socket.create_connection(("localhost", port), timeout=120) as plain:
        plain.sendall(words)
        assert plain.recv(1000) == b""


CASES: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "none": (lambda f, p: shake(f, p, None), "sent no certificate"),
    "stranger": (lambda f, p: shake(f, p, "other/p0"), "not issued by the CA trusted here"),
    "expired": (lambda f, p: shake(f, p, "ca/expired"), "certificate has expired"),
    "future": (lambda f, p: shake(f, p, "ca/future"), "not yet valid, or this clock is wrong"),
    "http": (lambda f, p: speak(f, p, b"GET / HTTP/1.1\r\n\r\n"), "does not use TLS"),
    "tcp": (lambda f, p: speak(f, p, b"\0 anything that is not TLS"), "does not use TLS"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refused_handshake_is_logged(
    folder: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    events: list[dict[str, Any]] = []
    act, said = CASES[name]
    with (
        log_failed_handshakes(events.append),
        run_server(folder / "ca", ["p0"], log_event=events.append) as listener,
    ):
        act(folder, listener.port)
        wait_until(lambda: events)
    assert [each["event"] for each in events] == ["connection_rejected"] and said in events[0][
        "reason"
    ]
    assert "Handshake failed" not in capfd.readouterr().err


def test_a_flood_of_them_does_not_fill_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []

    def note(event: dict[str, Any]) -> None:
        seen.append(event)
        print(event, file=sys.stderr)

    line = (
        b"ssl_transport_security.cc:1] Handshake failed with SSL: OPENSSL_internal:HTTP_REQUEST:\n"
    )
    limited = LimitedLog(note)
    with log_failed_handshakes(limited):
        for _ in range(5_000):
            os.write(2, line)
    limited.close()
    assert len(seen) == MAX_LINES + 1
    assert seen[-1] == {"event": "events_not_logged", "count": 5_000 - MAX_LINES}
    assert len(capfd.readouterr().err.splitlines()) == len(seen)


def test_what_others_write_to_stderr_gets_there(capfd: pytest.CaptureFixture[str]) -> None:
    events: list[dict[str, Any]] = []
    with log_failed_handshakes(events.append):
        os.write(2, b"one line\nand the beginning of another")
    os.write(2, b"; after it\n")
    assert capfd.readouterr().err == "one line\nand the beginning of another; after it\n"
    assert not events
