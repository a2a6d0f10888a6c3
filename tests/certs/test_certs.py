"""Certificates as the command line makes them, as TLS takes them, and as the coordinator checks."""

import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from tests.certs.tls_helpers import handshake, tls_context
from tests.command_line import rejected_with, run_xvfl
from xvfl.certs import Authority, PeerVerifier, create_authority, open_authority, peer_name
from xvfl.errors import CertificateError, RunError

NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = create_authority(tmp_path / "certs")
    made.issue("coordinator", ["localhost", "127.0.0.1", "::1"])
    made.issue("bank")
    return made


def meet(authority: Authority, party: Path | None, trusts: Path | None = None) -> bytes:
    """Let a party dial the coordinator; its files may be another authority's."""
    trusted = authority.folder / "ca.crt"
    server = tls_context(True, trusted, authority.folder / "coordinator")
    return handshake(server, tls_context(False, trusts or trusted, party))


def test_the_commands_make_certificates_that_tls_takes(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    assert "created an authority" in run_xvfl("certs", "init", certs).out
    said = run_xvfl("certs", "issue", "coordinator", "--dir", certs, "--host", "localhost")
    assert said.code == 0 and "coordinator.key" in said.out
    assert run_xvfl("certs", "issue", "bank", "--dir", certs, "--days", "30").code == 0
    server = tls_context(True, certs / "ca.crt", certs / "coordinator")
    shown = handshake(server, tls_context(False, certs / "ca.crt", certs / "bank"))
    peers = PeerVerifier(certs / "ca.crt", certs / "ca.crl")
    assert peers.check(shown) == peer_name(shown) == "bank"
    certificate = x509.load_pem_x509_certificate((certs / "bank.crt").read_bytes())
    assert certificate.not_valid_after_utc - NOW < timedelta(days=31)
    listed = run_xvfl("certs", "show", "--dir", certs).out
    assert listed.count("valid") == 3 and f"{certificate.serial_number:x}" in listed
    said = run_xvfl("certs", "revoke", "bank", "--dir", certs)
    assert said.code == 0 and f"{certificate.serial_number:x}" in said.out
    assert "revoked" in run_xvfl("certs", "show", "--dir", certs).out
    with pytest.raises(CertificateError, match="'bank': its certificate .* is revoked"):
        peers.check(shown)


def test_keys_are_their_owners_alone_and_of_the_curve_p256(authority: Authority) -> None:
    for name in ("ca", "coordinator", "bank"):
        assert (authority.folder / f"{name}.key").stat().st_mode & 0o777 == 0o600
        found = x509.load_pem_x509_certificate((authority.folder / f"{name}.crt").read_bytes())
        public = found.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert isinstance(public.curve, ec.SECP256R1)


def test_nothing_is_overwritten(authority: Authority) -> None:
    folder = authority.folder
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert "ca.crt: already exists" in rejected_with("certs", "init", folder)
    assert "bank.crt: already exists" in rejected_with("certs", "issue", "bank", "--dir", folder)
    (folder / "bank.crt").unlink()
    assert "bank.key: already exists" in rejected_with("certs", "issue", "bank", "--dir", folder)
    (folder / "bank.crt").write_bytes(before[folder / "bank.crt"])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["issue", "../bank"], "expected a name of at most 63"),
        (["issue", "bänk"], "expected a name"),
        (["issue", "ca"], "reserved for the authority"),
        (["issue", "shop", "--host", "fl.example.org:443"], "without a port"),
        (["revoke", "bamk"], "unknown name 'bamk': did you mean 'bank'"),
    ],
)
def test_bad_arguments_are_one_line(authority: Authority, arguments: list[str], words: str) -> None:
    assert words in rejected_with("certs", *arguments, "--dir", authority.folder)
    assert len(authority.issued()) == 2


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("xvfl.certs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    line = rejected_with("certs", "init", tmp_path / "certs")
    assert "needs the package cryptography: pip install 'xvfl[federated]'" in line


def test_a_folder_without_an_authority_says_so(tmp_path: Path) -> None:
    for command in (["issue", "bank"], ["revoke", "bank"], ["show"]):
        line = rejected_with("certs", *command, "--dir", tmp_path)
        assert "ca.crt: expected a certificate" in line and "xvfl certs init" in line


def test_a_key_of_another_authority_is_noticed(authority: Authority, tmp_path: Path) -> None:
    other = create_authority(tmp_path / "other")
    (authority.folder / "ca.key").unlink()
    (authority.folder / "ca.key").write_bytes((other.folder / "ca.key").read_bytes())
    with pytest.raises(CertificateError, match="ca.key does not belong to ca.crt"):
        open_authority(authority.folder)


def test_a_party_without_a_certificate_is_refused_by_tls(authority: Authority) -> None:
    with pytest.raises(ssl.SSLError, match="(?i)peer did not return a certificate"):
        meet(authority, None)


def test_a_strangers_certificate_is_refused_by_tls(authority: Authority, tmp_path: Path) -> None:
    stranger = create_authority(tmp_path / "stranger")
    stranger.issue("bank")
    with pytest.raises(ssl.SSLError, match="(?i)certificate verify failed|unknown ca"):
        meet(authority, stranger.folder / "bank")
    with pytest.raises(ssl.SSLError, match="(?i)certificate verify failed"):
        meet(authority, authority.folder / "bank", trusts=stranger.folder / "ca.crt")


@pytest.mark.parametrize(
    ("made", "days", "reason"),
    [(timedelta(days=-60), 30, "has expired"), (timedelta(days=3), 30, "not yet valid")],
)
def test_certificates_of_another_time_are_refused_by_tls(
    tmp_path: Path, made: timedelta, days: int, reason: str
) -> None:
    authority = create_authority(tmp_path / "certs", now=NOW - timedelta(days=90))
    authority.issue("coordinator", ["localhost"])
    issued = authority.issue("bank", days=days, now=NOW + made)
    assert issued.state(NOW) in ("expired", "not yet valid")
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        meet(authority, authority.folder / "bank")


def test_a_clock_that_is_an_hour_behind_does_no_harm(authority: Authority) -> None:
    certificate = x509.load_pem_x509_certificate((authority.folder / "bank.crt").read_bytes())
    assert certificate.not_valid_before_utc < NOW - timedelta(hours=1)
    assert authority.certificate.not_valid_before_utc < NOW - timedelta(hours=1)


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "certs", days=10)
    issued = authority.issue("bank", days=90)
    assert datetime.fromisoformat(issued.ends) == authority.certificate.not_valid_after_utc


def test_a_party_cannot_pose_as_the_coordinator(authority: Authority) -> None:
    trusted = authority.folder / "ca.crt"
    posing = tls_context(True, trusted, authority.folder / "bank")
    client = tls_context(False, trusted, authority.folder / "bank")
    with pytest.raises(ssl.SSLCertVerificationError, match="(?i)purpose"):
        handshake(posing, client, host="bank")
    honest = tls_context(True, trusted, authority.folder / "coordinator")
    with pytest.raises(ssl.SSLCertVerificationError, match="(?i)hostname mismatch"):
        handshake(honest, client, host="elsewhere.example.org")
    for host in ("localhost", "127.0.0.1", "::1", "coordinator"):
        assert peer_name(handshake(honest, client, host=host)) == "bank"


def test_a_revoked_name_can_be_issued_anew(authority: Authority) -> None:
    old = (authority.folder / "bank.crt").read_bytes()
    authority.revoke("bank")
    with pytest.raises(CertificateError, match="already revoked"):
        authority.revoke("bank")
    for suffix in (".crt", ".key"):
        (authority.folder / f"bank{suffix}").unlink()
    authority.issue("bank")
    peers = PeerVerifier(authority.folder / "ca.crt", authority.folder / "ca.crl")
    assert peers.check((authority.folder / "bank.crt").read_bytes()) == "bank"
    with pytest.raises(CertificateError, match="revoked"):
        peers.check(old)
    states = [each.state(NOW) for each in authority.issued()]
    assert states == ["valid", "revoked", "valid"]


def test_a_running_coordinator_takes_in_a_new_list(authority: Authority) -> None:
    peers = PeerVerifier(authority.folder / "ca.crt", authority.folder / "ca.crl")
    bank = (authority.folder / "bank.crt").read_bytes()
    assert peers.check(bank) == "bank"
    authority.revoke("bank")
    with pytest.raises(CertificateError, match="revoked"):
        peers.check(bank)
    assert peers.check((authority.folder / "coordinator.crt").read_bytes()) == "coordinator"


def break_list(folder: Path, how: str, stranger: Path) -> str:
    """Make a revocation list unusable; return what the error says."""
    path = folder / "ca.crl"
    if how == "strange":
        path.write_bytes((stranger / "ca.crl").read_bytes())
        return "ca.crl: not signed by the authority"
    if how == "damaged":
        path.write_bytes(b"-----BEGIN X509 CRL-----\nAAAA\n")
        return "ca.crl: expected a revocation list in PEM"
    path.unlink()
    return "ca.crl: expected a revocation list, but"


@pytest.mark.parametrize("how", ["strange", "damaged", "missing"])
def test_an_unusable_list_is_tolerated_for_a_while_then_nobody_is_accepted(
    authority: Authority, tmp_path: Path, how: str
) -> None:
    folder, events = authority.folder, list[dict[str, Any]]()
    stranger = create_authority(tmp_path / "stranger").folder
    bank = (folder / "bank.crt").read_bytes()
    good = (folder / "ca.crl").read_bytes()
    patient = PeerVerifier(folder / "ca.crt", folder / "ca.crl", events.append)
    strict = PeerVerifier(folder / "ca.crt", folder / "ca.crl", grace=-1)
    said = break_list(folder, how, stranger)
    for _ in range(3):
        assert patient.check(bank) == "bank"
    assert [each["event"] for each in events] == ["revocation_list_unreadable"]
    assert said in events[0]["reason"]
    with pytest.raises(RunError, match=f"{said}.*no connection is accepted"):
        strict.check(bank)
    with pytest.raises(CertificateError, match=said):
        PeerVerifier(folder / "ca.crt", folder / "ca.crl")
    (folder / "ca.crl").write_bytes(good)
    assert patient.check(bank) == strict.check(bank) == "bank"
    assert events[-1]["event"] == "revocation_list_readable"
    authority.revoke("bank")
    for peers in (patient, strict):
        with pytest.raises(CertificateError, match="revoked"):
            peers.check(bank)


def test_a_strangers_or_an_unreadable_certificate_is_not_a_peer(
    authority: Authority, tmp_path: Path
) -> None:
    peers = PeerVerifier(authority.folder / "ca.crt", None)
    stranger = create_authority(tmp_path / "stranger")
    stranger.issue("bank")
    with pytest.raises(CertificateError, match="'bank': .*not signed by the authority in"):
        peers.check((stranger.folder / "bank.crt").read_bytes())
    with pytest.raises(CertificateError, match="expected a certificate in PEM form"):
        peers.check(b"not a certificate")
    with pytest.raises(CertificateError, match="common name and DNS name"):
        peers.check((authority.folder / "ca.crt").read_bytes())
