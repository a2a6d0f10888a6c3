"""Identify a peer by its certificate; check its dates and the revocation list.

TLS checks signature, dates and purpose when a peer connects. gRPC does not read revocation lists,
and does not notice that the certificate of a connected peer expires, so this module checks both.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from xvfl.certs import pem_files
from xvfl.errors import CertificateError, RunError, WireError
from xvfl.system.printable import one_line
from xvfl.wire.texts import PLAIN_NAME

GRACE_S = 300.0
"""Seconds that the last revocation list stays in force while the file cannot be read."""


def peer_name(certificate_pem: bytes) -> str:
    """Return the name in a certificate: the common name, which must also be a DNS name."""
    return _name(parse_certificate(certificate_pem))


class PeerVerifier:
    """Verifies the certificates of peers; reads the revocation list again when it changes.

    While the list cannot be read, the last one stays in force for `grace` seconds; after that no
    peer is accepted. Callable from any thread.
    """

    def __init__(
        self,
        authority: Path | str,
        revocation_list: Path | str | None,
        log_event: Callable[[dict[str, Any]], None] = lambda event: None,
        grace: float = GRACE_S,
    ) -> None:
        """Read both files; raise if one of them cannot be used."""
        parse = x509.load_pem_x509_certificate
        self._authority = pem_files.read(Path(authority), parse, "a certificate")
        self._path = None if revocation_list is None else Path(revocation_list)
        self._log_event, self._grace = log_event, grace
        self._read_version: tuple[int, int, int] | None = None
        self._revoked: frozenset[int] = frozenset()
        self._unreadable_since: float | None = None
        self._lock = threading.Lock()
        if self._path is not None:
            self._read_again(self._path)

    def check(self, certificate_pem: bytes) -> str:
        """Return the peer's name; raise if its certificate is not trusted (any more)."""
        certificate = parse_certificate(certificate_pem)
        name = _name(certificate)
        self.check_trusted(certificate, repr(name))
        return name

    def check_trusted(self, certificate: x509.Certificate, owner: str) -> None:
        """Raise if a certificate is expired, revoked or of another authority.

        `owner` is for the error.
        """
        try:
            certificate.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise CertificateError(
                f"{owner}: its certificate is not signed by the authority in `ca_certificate`; "
                "request one from that authority"
            ) from error
        if certificate.not_valid_after_utc < datetime.now(UTC):
            raise CertificateError(
                f"{owner}: its certificate expired at {certificate.not_valid_after_utc:%F %T} UTC; "
                "request a new one"
            )
        if self.is_revoked(certificate):
            raise CertificateError(
                f"{owner}: its certificate {certificate.serial_number:x} is revoked; "
                "request a new one"
            )

    def is_revoked(self, certificate: x509.Certificate) -> bool:
        """Return whether a certificate is in the revocation list."""
        with self._lock:
            self._refresh()
            return certificate.serial_number in self._revoked

    def _refresh(self) -> None:
        """Read the list if it has changed; tolerate for a while that this fails."""
        if self._path is None:
            return
        now = time.monotonic()
        try:
            self._read_again(self._path)
        except CertificateError as error:
            if self._unreadable_since is None:
                self._unreadable_since = now
                self._log_event(
                    {
                        "event": "revocation_list_unreadable",
                        "reason": str(error),
                        "last_list_valid_s": self._grace,
                    }
                )
            if now > self._unreadable_since + self._grace:
                raise RunError(
                    f"{error}; restore it; until then no connection is accepted"
                ) from error
            return
        if self._unreadable_since is not None:
            self._unreadable_since = None
            self._log_event({"event": "revocation_list_readable"})

    def _read_again(self, path: Path) -> None:
        try:
            stat = path.stat()
        except OSError as error:
            raise CertificateError(
                f"{path}: expected a revocation list, but it cannot be read ({error.strerror})"
            ) from error
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if version != self._read_version:
            self._revoked = self._read(path)
            self._read_version = version

    def _read(self, path: Path) -> frozenset[int]:
        crl = pem_files.read(path, x509.load_pem_x509_crl, "a revocation list")
        public = self._authority.public_key()
        assert isinstance(
            public, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey, ed25519.Ed25519PublicKey)
        )
        if crl.issuer != self._authority.subject or not crl.is_signature_valid(public):
            raise CertificateError(
                f"{path}: not signed by the authority in `ca_certificate`; "
                "use that authority's list"
            )
        return frozenset(each.serial_number for each in crl)


def parse_certificate(certificate_pem: bytes) -> x509.Certificate:
    """Parse a certificate in PEM format."""
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise CertificateError(f"expected a certificate in PEM format ({error})") from error


def _name(certificate: x509.Certificate) -> str:
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = alternative.value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = []
    if len(common) != 1 or common[0].value not in names:
        found = one_line(f"{[each.value for each in common]} and {names}", 200)
        raise CertificateError(
            "expected a certificate with the party's name as common name and DNS name, got "
            f"{found}; issue one with `xvfl certs issue`"
        )
    try:
        return PLAIN_NAME.read(str(common[0].value), "name in the certificate")
    except WireError as error:
        raise CertificateError(f"{error}; request another certificate") from error
