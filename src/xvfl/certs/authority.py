"""A certificate authority for trials, in a folder.

ca.crt, ca.key    the authority; the key stays in this folder
ca.crl            the revocation list, which every side reads
issued.json       the issued certificates: name, serial number, hosts, dates
NAME.crt/.key     for the owner of NAME; hand over both with ca.crt, then delete the key here.
                  With a signing request, the key is never here
NAME.release.key  for the coordinator NAME: signs releases; hand it over and delete it here, too
NAME.release.pub  for every party, with ca.crt: verifies releases
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from xvfl.certs import pem_files
from xvfl.certs.names import alternative_names, check_name
from xvfl.certs.pem_files import OWNER_ONLY, WORLD_READABLE
from xvfl.certs.release_key import create_release_pair
from xvfl.certs.signing_request import PublicKey, SigningRequest
from xvfl.errors import CertificateError, unknown

CERTIFICATE, KEY, REVOCATION_LIST, ISSUED = "ca.crt", "ca.key", "ca.crl", "issued.json"
CREATE_HINT = "; `xvfl certs init` creates it"
AUTHORITY_DAYS = 5 * 365
"""Validity of the authority in days."""
CERTIFICATE_DAYS = 90
"""Default validity of a certificate in days."""
BACKDATED = timedelta(days=1)
"""A certificate is valid this long before its creation, in case a clock is slow."""
IN_USE = ("valid", "not yet valid")
"""States of certificates that may still be revoked by name."""


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate that the authority has issued."""

    name: str
    serial: str
    """In hexadecimal, as other tools display it."""
    hosts: tuple[str, ...]
    """Host names and addresses of a server; a certificate without hosts is for clients only."""
    starts: str
    ends: str
    """ISO 8601, UTC."""
    revoked: str | None = None
    """Time of revocation."""

    def state(self, now: datetime) -> str:
        """Return "valid", "expired", "revoked" or "not yet valid"."""
        if self.revoked is not None:
            return "revoked"
        if now < datetime.fromisoformat(self.starts):
            return "not yet valid"
        return "expired" if now > datetime.fromisoformat(self.ends) else "valid"


@dataclass(frozen=True)
class Authority:
    """A certificate authority that can issue and revoke certificates."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        days: int = CERTIFICATE_DAYS,
        now: datetime | None = None,
    ) -> IssuedCertificate:
        """Create NAME.crt and NAME.key; for a server, also the key pair that signs releases.

        Parameters
        ----------
        name : str
            The party, or the coordinator.
        hosts : sequence of str
            Host names and addresses of a server; a party needs none.
        days : int
            Validity in days.
        now : datetime, optional
            Time of creation, for tests.

        """
        check_name(name)
        pem_files.check_absent(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        key = ec.generate_private_key(ec.SECP256R1())
        signed, issued = self._sign(name, key.public_key(), hosts, days, now)
        if hosts:
            create_release_pair(self.folder, name)
        pem_files.write_new(self.folder / f"{name}.key", pem_files.key_to_pem(key), OWNER_ONLY)
        pem_files.write_new(self.folder / f"{name}.crt", pem_files.to_pem(signed), WORLD_READABLE)
        self._save_issued([*self.issued(), issued])
        return issued

    def sign(
        self,
        request: SigningRequest,
        path: Path,
        hosts: Sequence[str] = (),
        days: int = CERTIFICATE_DAYS,
    ) -> IssuedCertificate:
        """Sign a request and write the certificate to a path that must not exist.

        Parameters
        ----------
        request : SigningRequest
            The request; the authority decides about everything but its name and its key.
        path : Path
            File of the certificate.
        hosts : sequence of str
            Host names and addresses of a server; a party gets none.
        days : int
            Validity in days.

        """
        if request.hosts and not hosts:
            wanted = " ".join(f"--host {each}" for each in request.hosts)
            raise CertificateError(
                f"{request.name!r} asks for the certificate of a server; if it is the "
                f"coordinator, allow its hosts: {wanted}"
            )
        pem_files.check_absent(path)
        signed, issued = self._sign(request.name, request.public, hosts, days)
        # List it first: a certificate that is not listed could not be revoked.
        self._save_issued([*self.issued(), issued])
        pem_files.write_new(path, pem_files.to_pem(signed), WORLD_READABLE)
        return issued

    def _sign(
        self,
        name: str,
        public: PublicKey,
        hosts: Sequence[str],
        days: int,
        now: datetime | None = None,
    ) -> tuple[x509.Certificate, IssuedCertificate]:
        created = (now or datetime.now(UTC)).replace(microsecond=0)
        starts, ends = created - BACKDATED, created + timedelta(days=days)
        ends = min(ends, self.certificate.not_valid_after_utc)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            # Only servers get this purpose; otherwise any party could impersonate the coordinator.
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        signed = (
            _builder(name, public, starts, ends, issuer=self)
            .add_extension(alternative_names(name, hosts), critical=False)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        serial = f"{signed.serial_number:x}"
        return signed, IssuedCertificate(
            name, serial, tuple(hosts), starts.isoformat(), ends.isoformat()
        )

    def issued(self) -> list[IssuedCertificate]:
        """Return all issued certificates, the oldest first."""
        entries = pem_files.read(
            self.folder / ISSUED, json.loads, "the list of certificates", CREATE_HINT
        )
        try:
            return [
                IssuedCertificate(**{**each, "hosts": tuple(each["hosts"])}) for each in entries
            ]
        except (KeyError, TypeError) as error:
            raise CertificateError(f"{self.folder / ISSUED}: damaged ({error})") from error

    def revoke(
        self,
        name: str,
        serials: Sequence[str] = (),
        everything: bool = False,
        now: datetime | None = None,
    ) -> list[IssuedCertificate]:
        """Revoke certificates of a name, update the revocation list, and return them.

        Parameters
        ----------
        name : str
            The party, or the coordinator.
        serials : sequence of str
            Serial numbers of the certificates to revoke; by default the only one in use.
        everything : bool
            Revoke all certificates of the name.
        now : datetime, optional
            Time of revocation, for tests.

        """
        moment = (now or datetime.now(UTC)).replace(microsecond=0)
        before = self.issued()
        names = sorted({each.name for each in before})
        if name not in names:
            raise CertificateError(f"{self.folder}: {unknown('name', name, names)}")
        known = {each.serial: each for each in before if each.name == name}
        in_use = [key for key, each in known.items() if each.state(moment) in IN_USE]
        chosen = {each.lower().replace(":", "").lstrip("0") for each in serials}
        if strange := sorted(chosen - known.keys()):
            raise CertificateError(f"{name!r}: {unknown('serial', strange[0], list(known))}")
        if not chosen and not everything:
            if len(in_use) > 1:
                listed = ", ".join(f"{key} (from {known[key].starts[:10]})" for key in in_use)
                raise CertificateError(
                    f"{name!r} has {len(in_use)} certificates in use: {listed}; revoke one with "
                    "--serial, or all of them with --all"
                )
            chosen = set(in_use)
        chosen = set(known) if everything else chosen
        if all(known[key].revoked is not None for key in chosen):
            raise CertificateError(f"{name!r}: its certificates are already revoked or expired")
        after = [
            replace(each, revoked=each.revoked or moment.isoformat())
            if each.serial in chosen
            else each
            for each in before
        ]
        # Write the enforced list first: after a failure in between, the certificate is rejected.
        self.write_revocation_list(after, moment)
        self._save_issued(after)
        return [each for each in after if each not in before]

    def write_revocation_list(self, issued: Sequence[IssuedCertificate], now: datetime) -> None:
        """Sign and write the revocation list."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(min(now, datetime.now(UTC)))
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
        pem_files.replace(self.folder / REVOCATION_LIST, pem_files.to_pem(signed))

    def _save_issued(self, issued: Sequence[IssuedCertificate]) -> None:
        text = json.dumps([asdict(each) for each in issued], indent=1) + "\n"
        pem_files.replace(self.folder / ISSUED, text.encode())


def create_authority(
    folder: Path, days: int = AUTHORITY_DAYS, now: datetime | None = None
) -> Authority:
    """Create an authority in a folder that has none."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CertificateError(f"{folder}: cannot be created ({error.strerror})") from error
    pem_files.check_absent(*(folder / name for name in (CERTIFICATE, KEY, REVOCATION_LIST, ISSUED)))
    created = now or datetime.now(UTC)
    starts, ends = created - BACKDATED, created + timedelta(days=days)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("xvfl trial authority", key.public_key(), starts, ends)
    signed = builder.sign(key, hashes.SHA256())
    pem_files.write_new(folder / KEY, pem_files.key_to_pem(key), OWNER_ONLY)
    pem_files.write_new(folder / CERTIFICATE, pem_files.to_pem(signed), WORLD_READABLE)
    pem_files.write_new(folder / ISSUED, b"[]\n", WORLD_READABLE)
    authority = Authority(folder, signed, key)
    authority.write_revocation_list([], created)
    return authority


def open_authority(folder: Path) -> Authority:
    """Load an authority from its folder."""
    certificate = pem_files.read(
        folder / CERTIFICATE, x509.load_pem_x509_certificate, "a certificate", CREATE_HINT
    )
    key = pem_files.read(folder / KEY, pem_files.parse_key, "the authority's key", CREATE_HINT)
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{folder}: {KEY} does not belong to {CERTIFICATE}")
    return Authority(folder, certificate, key)


def _builder(
    name: str,
    public: PublicKey,
    starts: datetime,
    ends: datetime,
    issuer: Authority | None = None,
) -> x509.CertificateBuilder:
    """Build a certificate that an authority signs; without `issuer`, the authority's own."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signs = issuer is None
    usage = x509.KeyUsage(
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
    signer = issuer.key.public_key() if issuer else public
    extensions: dict[x509.ExtensionType, bool] = {
        x509.SubjectKeyIdentifier.from_public_key(public): False,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer): False,
        x509.BasicConstraints(ca=signs, path_length=0 if signs else None): True,
        usage: True,
    }
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
    )
    for extension, critical in extensions.items():
        builder = builder.add_extension(extension, critical)
    return builder
