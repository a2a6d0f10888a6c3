"""A certificate authority for trials, in a folder.

ca.crt, ca.key    the authority; the key never leaves this folder
ca.crl            what is revoked; the coordinator reads it
issued.json       what was issued: name, serial number, hosts, times
NAME.crt/.key     for NAME's owner; hand both over with ca.crt, then delete the key here
"""

import ipaddress
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from xvfl.certs import pem_files
from xvfl.certs.pem_files import OPEN, OWNER
from xvfl.errors import CertificateError, unknown

CERTIFICATE, KEY, REVOKED, ISSUED = "ca.crt", "ca.key", "ca.crl", "issued.json"
YEARS = 5 * 365
"""Days that the authority lasts."""
DAYS = 90
"""Days that a certificate lasts unless told otherwise."""
EARLY = timedelta(days=1)
"""How far before its making a certificate is valid: a clock that is behind is no reason to fail."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+")


@dataclass(frozen=True)
class Issued:
    """A certificate that the authority has made."""

    name: str
    serial: str
    """In hexadecimal, as other tools show it."""
    hosts: tuple[str, ...]
    """Host names and addresses under which it may serve; without any it can only dial out."""
    starts: str
    ends: str
    """Times in ISO form, UTC."""
    revoked: str | None = None
    """When it was revoked."""

    def state(self, now: datetime) -> str:
        """Say in a word whether it can be used."""
        if self.revoked is not None:
            return "revoked"
        if now < datetime.fromisoformat(self.starts):
            return "not yet valid"
        return "expired" if now > datetime.fromisoformat(self.ends) else "valid"


@dataclass(frozen=True)
class Authority:
    """An authority, opened to issue and revoke."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        days: int = DAYS,
        now: datetime | None = None,
    ) -> Issued:
        """Make NAME.crt and NAME.key; `now` is when, for certificates of another time."""
        if not NAME.fullmatch(name):
            raise CertificateError(
                f"{name!r}: expected a name of at most 63 plain letters, digits, dots, hyphens and "
                "underscores that begins and ends with a letter or digit"
            )
        if name.lower() == Path(CERTIFICATE).stem:
            raise CertificateError(f"{name!r}: this name is the authority's; choose another")
        for suffix in (".crt", ".key"):
            _refuse_existing(self.folder / f"{name}{suffix}")
        made_at = (now or _now()).replace(microsecond=0)
        key = ec.generate_private_key(ec.SECP256R1())
        starts, ends = made_at - EARLY, made_at + timedelta(days=days)
        ends = min(ends, self.certificate.not_valid_after_utc)
        serial = x509.random_serial_number()
        builder = _leaf(self.certificate, name, hosts, key.public_key())
        builder = builder.serial_number(serial).not_valid_before(starts).not_valid_after(ends)
        signed = builder.sign(self.key, hashes.SHA256())
        issued = Issued(name, f"{serial:x}", tuple(hosts), starts.isoformat(), ends.isoformat())
        pem_files.write_new(self.folder / f"{name}.key", pem_files.key_pem(key), OWNER)
        pem_files.write_new(self.folder / f"{name}.crt", pem_files.pem(signed), OPEN)
        self._note([*self.issued(), issued])
        return issued

    def issued(self) -> list[Issued]:
        """List what was issued, the oldest first."""
        entries = pem_files.read(self.folder / ISSUED, json.loads, "the list of certificates")
        try:
            return [Issued(**{**each, "hosts": tuple(each["hosts"])}) for each in entries]
        except (KeyError, TypeError) as error:
            raise CertificateError(f"{self.folder / ISSUED}: damaged ({error})") from error

    def revoke(self, name: str, now: datetime | None = None) -> list[Issued]:
        """Revoke every certificate of a name and sign a new list; give those newly revoked."""
        moment = (now or _now()).replace(microsecond=0)
        before = self.issued()
        names = sorted({each.name for each in before})
        if name not in names:
            raise CertificateError(f"{self.folder}: {unknown('name', name, names)}")
        changed = [each for each in before if each.name == name and each.revoked is None]
        if not changed:
            raise CertificateError(f"{name!r}: every certificate of this name is revoked already")
        after = [
            replace(each, revoked=moment.isoformat()) if each in changed else each
            for each in before
        ]
        # The list that is enforced comes first: a failure between the two revokes too much.
        self.sign_revoked(after, moment)
        self._note(after)
        return [each for each in after if each.name == name and each.revoked == moment.isoformat()]

    def sign_revoked(self, issued: Sequence[Issued], now: datetime) -> None:
        """Write the list of what is revoked."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(min(now, _now()))
            .next_update(self.certificate.not_valid_after_utc)
        )
        for each in issued:
            if each.revoked is not None:
                builder = builder.add_revoked_certificate(
                    x509.RevokedCertificateBuilder()
                    .serial_number(int(each.serial, 16))
                    .revocation_date(datetime.fromisoformat(each.revoked))
                    .build()
                )
        signed = builder.sign(self.key, hashes.SHA256())
        pem_files.replace(self.folder / REVOKED, pem_files.pem(signed))

    def _note(self, issued: Sequence[Issued]) -> None:
        text = json.dumps([asdict(each) for each in issued], indent=1) + "\n"
        pem_files.replace(self.folder / ISSUED, text.encode())


def make_authority(folder: Path, days: int = YEARS, now: datetime | None = None) -> Authority:
    """Make a new authority in a folder that has none."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CertificateError(f"{folder}: cannot be made ({error.strerror})") from error
    for name in (CERTIFICATE, KEY, REVOKED, ISSUED):
        _refuse_existing(folder / name)
    made_at = now or _now()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "xvfl trial authority")])
    public = key.public_key()
    signed = (
        _plain(subject, subject, public, public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(made_at - EARLY)
        .not_valid_after(made_at + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem_files.write_new(folder / KEY, pem_files.key_pem(key), OWNER)
    pem_files.write_new(folder / CERTIFICATE, pem_files.pem(signed), OPEN)
    pem_files.write_new(folder / ISSUED, b"[]\n", OPEN)
    authority = Authority(folder, signed, key)
    authority.sign_revoked([], made_at)
    return authority


def open_authority(folder: Path) -> Authority:
    """Open an authority to issue and revoke."""
    certificate = pem_files.read(
        folder / CERTIFICATE, x509.load_pem_x509_certificate, "a certificate"
    )
    key = pem_files.read(folder / KEY, pem_files.load_key, "the authority's key")
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{folder}: {KEY} does not belong to {CERTIFICATE}")
    return Authority(folder, certificate, key)


def _leaf(
    authority: x509.Certificate,
    name: str,
    hosts: Sequence[str],
    public: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        # Only who serves may pass for a server: else any party could pose as the coordinator.
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    issuer_key = authority.public_key()
    assert isinstance(issuer_key, ec.EllipticCurvePublicKey)
    return (
        _plain(subject, authority.subject, public, issuer_key)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name), *map(_host, hosts)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )


def _plain(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise CertificateError(f"{host!r}: expected a host name or an IP address, without a port")
    return x509.DNSName(host)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise CertificateError(
            f"{path}: exists already; keep it, or move it away and run this again"
        )


def _now() -> datetime:
    return datetime.now(UTC)
