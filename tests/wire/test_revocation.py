"""Revocation lists and expiry on both sides, checked again while the other side is connected."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.wire.test_transports import HELLO, echo
from tests.wire.transport_helpers import (
    COORDINATOR,
    issue_certificates,
    run_server,
    tls_files,
    wait_until,
)
from xvfl.certs import PeerVerifier, create_authority, open_authority
from xvfl.certs.proof import proof_checker, prover
from xvfl.errors import CertificateError, PartyError
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Match, Matched, Proof
from xvfl.wire.server import CoordinatorServer

Events = list[dict[str, Any]]
RECHECK_S = 0.05


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return issue_certificates(tmp_path / "ca", ["p0", "p1"])


class Party:
    """A party's client in a thread, with a revocation list of its own."""

    def __init__(self, folder: Path, name: str, port: int, revocation_list: Path) -> None:
        self.events: Events = []
        self.error: Exception | None = None
        address, own = f"localhost:{port}", tls_files(folder, name)
        peers = PeerVerifier(folder / "ca.crt", revocation_list, self.events.append)
        self.client = PartyClient(
            address,
            own.client_credentials,
            lambda: HELLO,
            echo,
            lambda: False,
            self.events.append,
            reconnect_timeout=600,
            check_proof=proof_checker(own, address, peers),
            recheck=RECHECK_S,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.client.run()
        except PartyError as error:
            self.error = error

    def stop(self) -> None:
        self.client.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def connected(
    folder: Path, list_of_party: Path, grace: float = 300
) -> Iterator[tuple[CoordinatorServer, Party, Events]]:
    events: Events = []
    peers = PeerVerifier(folder / "ca.crt", folder / "ca.crl", events.append, grace)
    with run_server(
        folder, ["p0", "p1"], log_event=events.append, identify=peers.check, recheck=RECHECK_S
    ) as server:
        party = Party(folder, "p0", server.port, list_of_party)
        try:
            wait_until(server.transports["p0"].hello)
            assert isinstance(server.transports["p0"].request(Match(1, b"")).result(60), Matched)
            yield server, party, events
        finally:
            party.stop()


def test_a_party_that_is_revoked_is_disconnected(folder: Path) -> None:
    with connected(folder, folder / "ca.crl") as (server, party, events):
        transport = server.transports["p0"]
        other = Party(folder, "p1", server.port, folder / "ca.crl")
        wait_until(server.transports["p1"].hello)
        open_authority(folder).revoke("p0")
        wait_until(lambda: transport.connection is None)
        party.thread.join(60)
        assert "does not accept this certificate: it is revoked" in str(party.error)
        assert str(folder) not in str(party.error) and "p1" not in str(party.error)
        assert server.transports["p1"].hello() is not None
        other.stop()
    (reason,) = [each["reason"] for each in events if each["event"] == "connection_rejected"]
    assert "'p0': its certificate" in reason and "is revoked" in reason


def test_an_open_request_to_a_revoked_party_fails_at_once(folder: Path) -> None:
    with connected(folder, folder / "ca.crl") as (server, party, _):
        go = threading.Event()
        party.client._handle = lambda frame: (go.wait(60), echo(frame))[1]  # type: ignore[assignment]
        reply = server.transports["p0"].request(Match(2, b""))
        open_authority(folder).revoke("p0")
        error = reply.exception(60)
        go.set()
        assert isinstance(error, PartyError) and error.parties == ("p0",)


def test_a_coordinator_that_is_revoked_is_disconnected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator does not know; only the party's list names its certificate."""
    monkeypatch.setattr("xvfl.wire.client.REPEAT_S", 0.0)
    own_list = folder / "party.crl"
    own_list.write_bytes((folder / "ca.crl").read_bytes())
    with connected(folder, own_list) as (server, party, events):
        kept = (folder / "ca.crl").read_bytes()
        open_authority(folder).revoke(COORDINATOR)
        own_list.write_bytes((folder / "ca.crl").read_bytes())
        (folder / "ca.crl").write_bytes(kept)
        wait_until(lambda: server.transports["p0"].connection is None)
        wait_until(lambda: [e for e in party.events if "is revoked" in e.get("reason", "")])
        n_connected = len([each for each in events if each["event"] == "connected"])
        wait_until(lambda: len(party.events) > 3)
        # It tries again, because the coordinator may get a new certificate, but sends no Hello.
        assert not party.client.connected and party.thread.is_alive()
        assert len([each for each in events if each["event"] == "connected"]) == n_connected


def test_a_missing_list_ends_nothing_for_a_while(folder: Path) -> None:
    with connected(folder, folder / "ca.crl") as (server, party, events):
        kept = (folder / "ca.crl").read_bytes()
        (folder / "ca.crl").unlink()
        for log in (events, party.events):
            wait_until(lambda log=log: [e for e in log if "unreadable" in e["event"]])
        for request_id in range(2, 12):
            reply = server.transports["p0"].request(Match(request_id, b"")).result(60)
            assert isinstance(reply, Matched)
        (folder / "ca.crl").write_bytes(kept)
        for log in (events, party.events):
            wait_until(lambda log=log: [e for e in log if "readable" in e["event"]][1:])
        assert len([each for each in events if each["event"] == "connected"]) == 1
        assert not [each for each in events if each["event"] == "disconnected"]


def test_without_a_list_for_too_long_nobody_is_accepted_until_it_is_back(folder: Path) -> None:
    own_list = folder / "party.crl"
    own_list.write_bytes((folder / "ca.crl").read_bytes())
    with connected(folder, own_list, grace=0.2) as (server, party, _):
        kept = (folder / "ca.crl").read_bytes()
        (folder / "ca.crl").unlink()
        wait_until(lambda: server.transports["p0"].connection is None)
        wait_until(lambda: [e for e in party.events if "cannot check" in e.get("reason", "")])
        assert party.thread.is_alive()
        assert not [e for e in party.events if str(folder) in str(e.get("reason"))]
        (folder / "ca.crl").write_bytes(kept)
        wait_until(server.transports["p0"].hello)


def test_a_proof_needs_the_key_of_a_server_certificate_for_this_host(
    folder: Path, tmp_path: Path
) -> None:
    own, nonce = tls_files(folder, "p0"), bytes(32)
    peers = PeerVerifier(folder / "ca.crt", folder / "ca.crl")
    check = proof_checker(own, "localhost:1", peers)
    mine = (folder / "p0.crt").read_bytes()
    honest = Proof(0, *prover(tls_files(folder, COORDINATOR))(nonce, mine))
    check(nonce, honest)
    proof_checker(own, "127.0.0.1:1", peers)(nonce, honest)
    with pytest.raises(CertificateError, match="not one of a server at 'elsewhere'"):
        proof_checker(own, "elsewhere:1", peers)(nonce, honest)
    # Another party has a valid certificate, but not one of a server.
    party = Proof(0, *prover(tls_files(folder, "p1"))(nonce, mine))
    with pytest.raises(CertificateError, match="not one of a server"):
        check(nonce, party)
    for forged in (
        Proof(0, honest.certificate, party.signature),
        Proof(0, honest.certificate, b""),
        Proof(0, *prover(tls_files(folder, COORDINATOR))(bytes(31), mine)),
        Proof(0, *prover(tls_files(folder, COORDINATOR))(nonce, (folder / "p1.crt").read_bytes())),
    ):
        with pytest.raises(CertificateError, match="signature does not fit"):
            check(nonce, forged)
    stranger = issue_certificates(tmp_path / "other", [])
    with pytest.raises(CertificateError, match="not signed by the authority"):
        check(nonce, Proof(0, *prover(tls_files(stranger, COORDINATOR))(nonce, mine)))
    open_authority(folder).revoke(COORDINATOR)
    with pytest.raises(CertificateError, match="the coordinator: its certificate .* is revoked"):
        check(nonce, honest)


def test_an_unexpected_error_ends_no_checks(folder: Path) -> None:
    events: Events = []
    peers = PeerVerifier(folder / "ca.crt", folder / "ca.crl")
    failing = threading.Event()

    def check(certificate: bytes) -> str:
        if failing.is_set():
            failing.clear()
            raise OSError("the disk is gone")
        return peers.check(certificate)

    with run_server(
        folder, ["p0"], log_event=events.append, identify=check, recheck=RECHECK_S
    ) as server:
        party = Party(folder, "p0", server.port, folder / "ca.crl")
        wait_until(server.transports["p0"].hello)
        failing.set()
        wait_until(lambda: not failing.is_set())
        open_authority(folder).revoke("p0")
        wait_until(lambda: server.transports["p0"].connection is None)
        party.stop()
    assert "the disk is gone" in str(events)


@pytest.mark.parametrize("expiring", ["p0", COORDINATOR])
def test_a_peer_whose_certificate_expires_is_disconnected(expiring: str, tmp_path: Path) -> None:
    # A busy machine may need longer to connect than the first certificate is valid.
    for seconds in (5, 30, 300):
        folder, events = tmp_path / str(seconds), Events()
        authority = create_authority(folder)
        for name, hosts in (("p0", ()), (COORDINATOR, ("localhost",))):
            created = datetime.now(UTC)
            if name == expiring:
                created += timedelta(seconds=seconds) - timedelta(days=1)
            authority.issue(name, hosts, days=1, now=created)
        peers = PeerVerifier(folder / "ca.crt", None)
        with run_server(
            folder, ["p0"], log_event=events.append, identify=peers.check, recheck=RECHECK_S
        ) as server:
            party = Party(folder, "p0", server.port, folder / "ca.crl")
            wait_until(lambda events=events, party=party: events or party.events, 600)
            if any(event["event"] == "connected" for event in events):
                wait_until(lambda server=server: server.transports["p0"].connection is None, 600)
                wait_until(lambda party=party: party.error or party.events, 600)
                party.stop()
                break
            party.stop()
    else:
        pytest.fail("no connection before the certificate expired")
    if expiring == "p0":
        assert "does not accept this certificate: it is revoked, expired" in str(party.error)
        assert "'p0': its certificate expired at" in str(events)
    else:
        assert "the coordinator: its certificate expired at" in str(party.events)
