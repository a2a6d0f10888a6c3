"""Identify a peer by its certificate; check its dates and the revocation lists.

TLS checks signatures, dates and purposes when a peer connects. gRPC does not read revocation lists,
and does not notice that the certificate of a connected peer expires, so this module checks both.
A certificate comes in PEM, followed by those of intermediate authorities, if there are any.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from xvfl.certs import pem_files
from xvfl.certs.chain import check_dates, common_name, find_chain, parse_certificates
from xvfl.errors import CertificateError, RunError, WireError
from xvfl.system.printable import one_line
from xvfl.wire.texts import PLAIN_NAME

GRACE_S = 300.0
"""Seconds that the last files stay in force while one of them cannot be read."""
LIST_END = b"-----END X509 CRL-----"


def peer_name(certificate_pem: bytes) -> str:
    """Return the name in a certificate: the common name, which must also be a DNS name."""
    return _name(parse_certificate(certificate_pem))


class PeerVerifier:
    """Verifies the certificates of peers; reads authorities and lists again when they change.

    While a file cannot be read, the last contents stay in force for `grace` seconds; after that no
    peer is accepted. Callable from any thread.
    """

    def __init__(
        self,
        authority: Path | str,
        revocation_list: Path | str | None,
        log_event: Callable[[dict[str, Any]], None] = lambda event: None,
        grace: float = GRACE_S,
    ) -> None:
        """Read the files; raise if one of them cannot be used.

        Each may hold several authorities, and the lists of several.
        """
        self._authority = Path(authority)
        self._path = None if revocation_list is None else Path(revocation_list)
        self._log_event, self._grace = log_event, grace
        self._read_version: tuple[Any, ...] = ()
        self._authorities: Sequence[x509.Certificate] = ()
        self._lists: Sequence[x509.CertificateRevocationList] = ()
        self._unreadable_since: float | None = None
        self._lock = threading.Lock()
        self._read_again()

    def check(self, certificate_pem: bytes) -> str:
        """Return the peer's name; raise if its certificate is not trusted (any more)."""
        name = peer_name(certificate_pem)
        self.check_trusted(certificate_pem, repr(name))
        return name

    def check_trusted(self, certificate_pem: bytes, owner: str) -> None:
        """Raise if a certificate is expired, revoked or of another authority.

        `owner` is for the error.
        """
        with self._lock:
            self._refresh()
            authorities = self._authorities
        certificates = parse_certificates(certificate_pem)
        try:
            chain = find_chain(certificates, authorities)
        except CertificateError as error:
            raise CertificateError(
                f"{owner}: its certificate is not signed by the authority in `ca_certificate`, nor "
                "by an intermediate authority that it names; request one from that authority, and "
                "append the certificates of intermediate authorities to the file"
            ) from error
        if chain[0].not_valid_after_utc < datetime.now(UTC):
            raise CertificateError(
                f"{owner}: its certificate expired at {chain[0].not_valid_after_utc:%F %T} UTC; "
                "request a new one"
            )
        check_dates(chain)
        if (revoked := self._revoked(chain)) is not None:
            raise CertificateError(
                f"{owner}: its certificate {revoked.serial_number:x} is revoked; request a new one"
                if revoked == chain[0]
                else f"{owner}: the authority {common_name(revoked)!r} is revoked; request a "
                "certificate from another one"
            )

    def is_revoked(self, certificate_pem: bytes) -> bool:
        """Return whether a certificate, or one that issued it, is in a revocation list."""
        with self._lock:
            self._refresh()
        return self._revoked(parse_certificates(certificate_pem)) is not None

    def _revoked(self, chain: Sequence[x509.Certificate]) -> x509.Certificate | None:
        """Return the first certificate of a chain that a list of its issuer names."""
        issuers = (*self._authorities, *chain)
        for certificate in chain:
            for each in self._lists:
                found = each.get_revoked_certificate_by_serial_number(certificate.serial_number)
                named = found is not None and each.issuer == certificate.issuer
                if named and any(_is_signed(each, issuer) for issuer in issuers):
                    return certificate
        return None

    def _refresh(self) -> None:
        """Read the files if they have changed; tolerate for a while that this fails."""
        now = time.monotonic()
        try:
            self._read_again()
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

    def _read_again(self) -> None:
        version: tuple[int, ...] = _version(self._authority, "a certificate")
        if self._path is not None:
            version += _version(self._path, "a revocation list")
        if version != self._read_version:
            authorities = pem_files.read(
                self._authority, x509.load_pem_x509_certificates, "a certificate"
            )
            if self._path is not None:
                self._lists = _read_lists(self._path, authorities)
            self._authorities, self._read_version = authorities, version


def _version(path: Path, what: str) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise CertificateError(
            f"{path}: expected {what}, but it cannot be read ({error.strerror})"
        ) from error
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _read_lists(
    path: Path, authorities: Sequence[x509.Certificate]
) -> list[x509.CertificateRevocationList]:
    """Read revocation lists; at least one is of a trusted authority, and none is forged.

    Those of intermediate authorities are verified when a peer presents the authority's certificate.
    """
    lists = pem_files.read(path, _parse_lists, "a revocation list")
    names = {each.subject for each in authorities}
    trusted = [each for each in lists if any(_is_signed(each, by) for by in authorities)]
    if not trusted or any(each.issuer in names and each not in trusted for each in lists):
        raise CertificateError(
            f"{path}: not signed by the authority in `ca_certificate`; use that authority's list"
        )
    return lists


def _parse_lists(data: bytes) -> list[x509.CertificateRevocationList]:
    parts = data.split(LIST_END)
    return [x509.load_pem_x509_crl(part + LIST_END) for part in parts[: max(len(parts) - 1, 1)]]


def _is_signed(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    if found.issuer != authority.subject:
        return False
    public = authority.public_key()
    known = (ec.EllipticCurvePublicKey, rsa.RSAPublicKey, ed25519.Ed25519PublicKey)
    return isinstance(public, known) and found.is_signature_valid(public)


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
