"""Certificates are renewed, and chains verified, while connections over gRPC go on."""

import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.certs.issuers import Issuer, bundle
from tests.wire.test_transports import HELLO, echo
from tests.wire.transport_helpers import COORDINATOR, tls_files, wait_until
from xvfl.certs import Authority, PeerVerifier, create_authority
from xvfl.certs.loaded_tls import LoadedTls
from xvfl.certs.proof import proof_checker, prover
from xvfl.errors import CertificateError, XVFLError
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Match, Matched
from xvfl.wire.request_ids import next_request_id
from xvfl.wire.server import CoordinatorServer

RECHECK_S = 0.05
Events = list[Any]


class Sides:
    """A coordinator and the party `p0`, each with a folder of its own."""

    def __init__(self, coordinator: Path, party: Path, **more: Any) -> None:
        self.events: Events = []
        self.party_events: Events = []
        self.error: Exception | None = None
        self.seen: list[bytes] = []
        lists = [each / "ca.crl" for each in (coordinator, party)]
        peers = [
            PeerVerifier(each.parent / "ca.crt", each if each.exists() else None) for each in lists
        ]
        self.tls = LoadedTls(tls_files(coordinator, COORDINATOR), self.events.append)
        self.party_tls = LoadedTls(tls_files(party, "p0"), self.party_events.append)
        self._peers = peers[0]
        self.server = CoordinatorServer(
            "localhost:0",
            self.tls.server_credentials(),
            ["p0"],
            self._identify,
            self.events.append,
            prove=prover(self.tls),
            recheck=RECHECK_S,
        )
        address = f"localhost:{self.server.port}"
        self.client = PartyClient(
            address,
            self.party_tls.client_credentials,
            lambda: HELLO,
            echo,
            lambda: False,
            self.party_events.append,
            check_proof=proof_checker(self.party_tls, address, peers[1]),
            recheck=RECHECK_S,
            **more,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _identify(self, pem: bytes) -> str:
        self.seen.append(pem)
        return self._peers.check(pem)

    def _run(self) -> None:
        try:
            self.client.run()
        except XVFLError as error:
            self.error = error

    def ask(self) -> None:
        """Send a request over the connection, or the next one."""
        reply = self.server.transports["p0"].request(Match(next_request_id(), b"x")).result(60)
        assert isinstance(reply, Matched)

    def reconnected(self, before: int) -> bool:
        return self.n_connected() > before

    def n_connected(self) -> int:
        return sum(each["event"] == "connected" for each in self.events)


@contextmanager
def sides(coordinator: Path, party: Path | None = None, **more: Any) -> Iterator[Sides]:
    made = Sides(coordinator, party or coordinator, **more)
    try:
        yield made
    finally:
        made.client.stop()
        made.thread.join(60)
        made.server.close()


def reissue(authority: Authority, name: str, hosts: tuple[str, ...], seconds: float) -> None:
    """Write a certificate over the old one, which ends in this many seconds."""
    for suffix in (".crt", ".key"):
        (authority.folder / f"{name}{suffix}").unlink(missing_ok=True)
    created = datetime.now(UTC) + timedelta(seconds=seconds) - timedelta(days=1)
    authority.issue(name, hosts, days=1, now=created)


HOSTS = {"p0": (), COORDINATOR: ("localhost",)}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = create_authority(tmp_path / "ca")
    for name, hosts in HOSTS.items():
        made.issue(name, hosts)
    return made


def test_short_lived_certificates_of_both_sides_are_renewed_for_ever(authority: Authority) -> None:
    """Both certificates live for seconds; the connection outlives many of them."""
    for name, hosts in HOSTS.items():
        reissue(authority, name, hosts, 20)
    with sides(authority.folder) as running:
        wait_until(running.server.transports["p0"].hello)
        for _ in range(4):
            for name, hosts in HOSTS.items():
                before = running.n_connected()
                reissue(authority, name, hosts, 20)
                running.ask()
                if name == "p0":
                    wait_until(partial(running.reconnected, before))
                else:
                    wait_until(lambda: running.tls.read()[1] == _pem(authority, COORDINATOR))
            running.ask()
        # The first certificates have ended when these are in use.
        reissue(authority, COORDINATOR, HOSTS[COORDINATOR], 3600)
        reissue(authority, "p0", (), 3600)
        ended = time.monotonic() + 21
        while time.monotonic() < ended:
            running.ask()
            time.sleep(0.2)
        assert running.thread.is_alive() and running.error is None
        assert running.seen[-1].startswith(_pem(authority, "p0"))
        served = _served(running.server.port, authority.folder)
        assert served == _pem(authority, COORDINATOR)
    assert [e for e in running.events if e["event"] == "certificate_loaded"]
    assert [e for e in running.party_events if e["event"] == "certificate_loaded"]
    assert "renewed" in str(running.party_events)


def _pem(authority: Authority, name: str) -> bytes:
    return (authority.folder / f"{name}.crt").read_bytes()


def _served(port: int, folder: Path) -> bytes:
    """Return the certificate that the port shows to a new connection."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "p0.crt", folder / "p0.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("localhost", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as session,
    ):
        found = session.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found).encode()


def test_a_long_connection_does_not_count_as_time_without_one(authority: Authority) -> None:
    with sides(authority.folder, reconnect_timeout=1.0) as running:
        wait_until(running.server.transports["p0"].hello)
        time.sleep(1.2)
        reissue(authority, "p0", (), 3600)
        wait_until(lambda: running.n_connected() > 1 or running.error)
        assert running.error is None
        running.ask()


def test_files_that_do_not_belong_together_are_not_used(authority: Authority) -> None:
    folder, events = authority.folder, Events()
    tls = LoadedTls(tls_files(folder, "p0"), events.append)
    before = tls.read()
    kept = {each: (folder / each).read_bytes() for each in ("p0.crt", "p0.key")}
    shutil.copy(folder / "coordinator.crt", folder / "p0.crt")
    assert tls.read() == tls.read() == before
    (folder / "p0.key").unlink()
    assert tls.read() == before
    (folder / "p0.crt").write_bytes(b"nonsense")
    assert tls.read() == before
    assert [each["event"] for each in events] == ["certificate_not_loaded"] * len(events)
    assert "p0.key: does not belong to" in events[0]["reason"]
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    assert tls.read() == before
    assert events[-1]["event"] == "certificate_loaded"
    authority.issue("later", now=datetime.now(UTC) + timedelta(days=3))
    for name, reason in (("later", "not valid yet"), (COORDINATOR, "certificate of 'p0', got")):
        for suffix in (".crt", ".key"):
            shutil.copy(folder / f"{name}{suffix}", folder / f"p0{suffix}")
        assert tls.read() == before and reason in events[-1]["reason"]


def test_a_start_with_unusable_files_says_which(authority: Authority) -> None:
    folder = authority.folder
    shutil.copy(folder / "coordinator.key", folder / "p0.key")
    with pytest.raises(CertificateError, match=r"p0.key: does not belong to .*p0.crt"):
        LoadedTls(tls_files(folder, "p0"))
    (folder / "p0.key").write_bytes(b"")
    with pytest.raises(CertificateError, match=r"p0.key: cannot be used"):
        LoadedTls(tls_files(folder, "p0"))
    (folder / "p0.crt").write_bytes(b"")
    with pytest.raises(CertificateError, match=r"p0.crt: cannot be used"):
        LoadedTls(tls_files(folder, "p0"))


def test_the_end_is_announced_30_days_before_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = create_authority(tmp_path / "ca", days=60)
    authority.issue("p0", days=29)
    events = Events()
    tls = LoadedTls(tls_files(authority.folder, "p0"), events.append)
    assert tls.status() == {"certificate_days_left": 28, "authority_days_left": 59}
    for _ in range(3):
        tls.read()
    assert [each["event"] for each in events] == ["certificate_expires"]
    assert events[0]["days_left"] == 28 and "request a new certificate" in events[0]["warning"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 86401)
    tls.read()
    tls.read()
    assert len(events) == 2
    for suffix in (".crt", ".key"):
        (authority.folder / f"p0{suffix}").unlink()
    authority.issue("p0", days=40)
    tls.read()
    assert [each["event"] for each in events[2:]] == ["certificate_loaded"]
    assert tls.status()["certificate_days_left"] == 39


def organisation(folder: Path, name: str, hosts: tuple[str, ...] = ()) -> tuple[Issuer, Issuer]:
    """Write the certificate of a side, issued by an intermediate authority of its own."""
    folder.mkdir()
    root = Issuer(f"root of {name}")
    inner = Issuer(f"services of {name}", root)
    inner.write(folder, name, hosts)
    return root, inner


def test_mutual_tls_with_an_intermediate_authority_on_each_side(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "coordinator", tmp_path / "party"
    root, _ = organisation(ours, COORDINATOR, ("localhost",))
    other, other_inner = organisation(theirs, "p0")
    for folder in (ours, theirs):
        (folder / "ca.crt").write_bytes(bundle([root.certificate, other.certificate]))
        (folder / "ca.crl").write_bytes(root.revocation_list() + other.revocation_list())
    with sides(ours, theirs) as running:
        wait_until(running.server.transports["p0"].hello)
        running.ask()
        assert running.party_tls.status()["authority_days_left"] >= 363
        # The organisation of the party revokes its intermediate authority.
        lists = root.revocation_list() + other.revocation_list(other_inner.certificate)
        (ours / "ca.crl").write_bytes(lists)
        running.thread.join(60)
        assert "does not accept this certificate" in str(running.error)
    assert "authority 'services of p0' is revoked" in str(running.events)


def test_a_certificate_without_its_intermediate_authority_is_refused(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "coordinator", tmp_path / "party"
    root, _ = organisation(ours, COORDINATOR, ("localhost",))
    other, _ = organisation(theirs, "p0")
    for folder in (ours, theirs):
        (folder / "ca.crt").write_bytes(bundle([root.certificate, other.certificate]))
    end = b"-----END CERTIFICATE-----\n"
    leaf = (theirs / "p0.crt").read_bytes().split(end)[0] + end
    (theirs / "p0.crt").write_bytes(leaf)
    with sides(ours, theirs) as running:
        wait_until(lambda: running.party_events)
        assert running.server.transports["p0"].hello() is None and not running.n_connected()


def test_a_renewal_by_another_authority_in_the_bundle(authority: Authority) -> None:
    """The authority is replaced: both are trusted for a while, then the new one alone."""
    folder, new = authority.folder, Issuer("new authority")
    with sides(folder) as running:
        wait_until(running.server.transports["p0"].hello)
        both = bundle([authority.certificate, new.certificate])
        (folder / "ca.crt").write_bytes(both)
        lists = (folder / "ca.crl").read_bytes() + new.revocation_list()
        (folder / "ca.crl").write_bytes(lists)
        for name in (COORDINATOR, "p0"):
            before = running.n_connected()
            new.write(folder, name, HOSTS[name])
            wait_until(lambda: running.tls.read()[1] == _pem(authority, COORDINATOR))
            running.ask()
        wait_until(partial(running.reconnected, before))
        (folder / "ca.crl").write_bytes(new.revocation_list())
        (folder / "ca.crt").write_bytes(bundle([new.certificate]))
        time.sleep(10 * RECHECK_S)
        running.ask()
        assert running.thread.is_alive() and running.error is None
