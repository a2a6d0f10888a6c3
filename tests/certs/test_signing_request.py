"""Signing requests: the private key stays with its owner, and the authority checks the rest."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from tests.certs.tls_helpers import handshake, tls_context
from tests.command_line import rejected_with, run_xvfl
from xvfl.certs import Authority, create_authority, open_authority, peer_name, read_request
from xvfl.certs.signing_request import MAX_BYTES
from xvfl.errors import CertificateError


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_authority(tmp_path / "certs")


def csr(*names: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> bytes:
    """Make a request as another tool would."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, each) for each in names]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    signed = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(Encoding.PEM)


def test_a_party_and_a_coordinator_are_enrolled_by_requests(
    authority: Authority, tmp_path: Path
) -> None:
    certs, bank, main = authority.folder, tmp_path / "bank", tmp_path / "main"
    said = run_xvfl("certs", "request", "bank", "--dir", bank)
    fingerprint = read_request(bank / "bank.csr").fingerprint
    assert said.code == 0 and fingerprint in said.out
    assert (bank / "bank.key").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (bank / "bank.csr").read_bytes()
    request = ("certs", "request", "coordinator", "--dir", main, "--host", "localhost")
    said = run_xvfl(*request, "--host", "127.0.0.1")
    for name in ("coordinator.key", "coordinator.csr", "coordinator.release.key"):
        assert f"created {main / name}" in said.out and (main / name).is_file()
    keys = sorted(authority.folder.glob("*.key"))
    said = run_xvfl(
        "certs", "sign", bank / "bank.csr", "--dir", certs, "--fingerprint", fingerprint
    )
    assert said.code == 0 and f"created {bank / 'bank.crt'}" in said.out
    hosts = ("--host", "localhost", "--host", "127.0.0.1")
    said = run_xvfl("certs", "sign", main / "coordinator.csr", "--dir", certs, *hosts)
    assert said.code == 0 and "confirm the fingerprint" in said.out
    assert sorted(authority.folder.glob("*.key")) == keys, "the authority never has these keys"
    server = tls_context(True, certs / "ca.crt", main / "coordinator")
    shown = handshake(server, tls_context(False, certs / "ca.crt", bank / "bank"))
    assert peer_name(shown) == "bank"
    assert [each.name for each in authority.issued()] == ["bank", "coordinator"]
    assert authority.revoke("bank")[0].serial in run_xvfl("certs", "show", "--dir", certs).out


def test_nothing_is_overwritten(authority: Authority, tmp_path: Path) -> None:
    assert run_xvfl("certs", "request", "bank", "--dir", tmp_path).code == 0
    before = (tmp_path / "bank.key").read_bytes()
    assert "already exists" in rejected_with("certs", "request", "bank", "--dir", tmp_path)
    assert (tmp_path / "bank.key").read_bytes() == before
    sign = ("certs", "sign", tmp_path / "bank.csr", "--dir", authority.folder)
    assert run_xvfl(*sign).code == 0
    assert "bank.crt: already exists" in rejected_with(*sign)
    assert run_xvfl(*sign, "--out", tmp_path / "renewed.crt").code == 0
    assert len(authority.issued()) == 2


def test_a_party_gets_no_certificate_of_a_server(authority: Authority, tmp_path: Path) -> None:
    asks = ("certs", "request", "bank", "--dir", tmp_path, "--host", "fl.example.org")
    assert run_xvfl(*asks).code == 0
    sign = ("certs", "sign", tmp_path / "bank.csr", "--dir", authority.folder)
    line = rejected_with(*sign)
    assert "'bank' asks for the certificate of a server" in line
    assert "--host fl.example.org" in line and not authority.issued()


def test_another_fingerprint_is_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "bank.csr").write_bytes(csr("bank"))
    sign = ("certs", "sign", tmp_path / "bank.csr", "--dir", authority.folder)
    assert "expected the fingerprint 00ff" in rejected_with(*sign, "--fingerprint", "00ff")
    assert not authority.issued() and not (tmp_path / "bank.crt").exists()


def forged() -> bytes:
    """Return a request for a key that its sender does not have."""
    own, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    made = x509.load_pem_x509_csr(csr("bank", key=own)).public_bytes(Encoding.DER)
    points = [
        key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        for key in (own, other)
    ]
    assert points[0] in made
    return x509.load_der_x509_csr(made.replace(*points)).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "expected a signing request in PEM format"),
        (b"x" * (MAX_BYTES + 1), f"at most {MAX_BYTES} bytes"),
        (csr("bank").replace(b"A", b"B", 9), "expected a signing request|signature is not of"),
        (forged(), "its signature is not of the key that it names"),
        (csr(), "expected one common name, got 0"),
        (csr("bank", "shop"), "expected one common name, got 2"),
        (csr("../bank"), "expected a name of at most 63"),
        (csr("ca"), "reserved for the authority"),
        (csr("bank", key=rsa.generate_private_key(65537, 1024)), "RSA key of 2048"),
        (csr("bank", key=ec.generate_private_key(ec.SECP192R1())), "of 256 bits or more"),
    ],
)
def test_an_invalid_request_is_rejected(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bank.csr"
    path.write_bytes(data)
    with pytest.raises(CertificateError, match=words):
        read_request(path)


def test_requests_of_other_tools_are_signed(authority: Authority, tmp_path: Path) -> None:
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        path = tmp_path / f"{type(key).__name__}.csr"
        path.write_bytes(csr("bank", key=key))
        issued = authority.sign(read_request(path), path.with_suffix(".crt"))
        assert issued.name == peer_name(path.with_suffix(".crt").read_bytes()) == "bank"


def test_a_renewed_certificate_outlives_the_revocation_of_the_old_one(
    authority: Authority,
) -> None:
    folder, now = authority.folder, datetime.now(UTC)
    old = authority.issue("bank")
    for suffix in (".crt", ".key"):
        (folder / f"bank{suffix}").unlink()
    new = authority.issue("bank")
    line = rejected_with("certs", "revoke", "bank", "--dir", folder)
    assert "2 certificates in use" in line and old.serial in line and "--serial" in line
    assert [each.state(now) for each in authority.issued()] == ["valid", "valid"]
    said = run_xvfl("certs", "revoke", "bank", "--serial", old.serial.upper(), "--dir", folder)
    assert said.code == 0 and old.serial in said.out and new.serial not in said.out
    assert [each.state(now) for each in authority.issued()] == ["revoked", "valid"]
    assert "already revoked" in rejected_with(
        "certs", "revoke", "bank", "--serial", old.serial, "--dir", folder
    )
    assert "unknown serial" in rejected_with(
        "certs", "revoke", "bank", "--serial", "12ab", "--dir", folder
    )
    # Now one is in use, so that the name is enough.
    assert new.serial in run_xvfl("certs", "revoke", "bank", "--dir", folder).out


def test_all_certificates_of_a_party_that_leaves_are_revoked(authority: Authority) -> None:
    for _ in range(2):
        authority.issue("bank")
        for suffix in (".crt", ".key"):
            (authority.folder / f"bank{suffix}").unlink()
    assert run_xvfl("certs", "revoke", "bank", "--all", "--dir", authority.folder).code == 0
    now = datetime.now(UTC)
    assert {each.state(now) for each in open_authority(authority.folder).issued()} == {"revoked"}


def test_issue_names_the_files_that_it_wrote(authority: Authority) -> None:
    folder = authority.folder
    issue = ("certs", "issue", "coordinator", "--dir", folder, "--host", "localhost")
    said = run_xvfl(*issue)
    assert f"created {folder / 'coordinator.release.key'}" in said.out
    for name in ("coordinator.crt", "coordinator.key", "coordinator.release.key"):
        (folder / name).unlink()
    before = (folder / "coordinator.release.pub").read_bytes()
    said = run_xvfl(*issue)
    assert said.code == 0 and "release.key" not in said.out and "kept the key pair" in said.out
    assert not (folder / "coordinator.release.key").exists()
    assert (folder / "coordinator.release.pub").read_bytes() == before
