"""Identify a peer by its certificate, and check the revocation list.

TLS checks signature, dates and purpose. gRPC does not read revocation lists, so this module does.
"""

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from xvfl.certs import pem_files
from xvfl.errors import CertificateError


def peer_name(certificate_pem: bytes) -> str:
    """Return the name in a certificate: the common name, which must also be a DNS name."""
    return _name(_parse(certificate_pem))


class PeerVerifier:
    """Verifies the certificates of peers; reads the revocation list again when it changes."""

    def __init__(self, authority: Path, revocation_list: Path | None) -> None:
        self._authority = pem_files.read(authority, x509.load_pem_x509_certificate, "a certificate")
        self._path = revocation_list
        self._read_version: tuple[int, int, int] | None = None
        self._revoked: frozenset[int] = frozenset()
        self._refresh()

    def check(self, certificate_pem: bytes) -> str:
        """Return the peer's name; raise if its certificate is revoked or of another authority."""
        certificate = _parse(certificate_pem)
        name = _name(certificate)
        try:
            certificate.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise CertificateError(
                f"{name!r}: its certificate is not signed by the authority in `ca_certificate`; "
                "request one from that authority"
            ) from error
        self._refresh()
        if certificate.serial_number in self._revoked:
            raise CertificateError(
                f"{name!r}: its certificate {certificate.serial_number:x} is revoked; "
                "request a new one"
            )
        return name

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            stat = self._path.stat()
        except OSError as error:
            raise CertificateError(
                f"{self._path}: expected a revocation list, but it cannot be read "
                f"({error.strerror}); restore it; without it all connections are rejected"
            ) from error
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if version != self._read_version:
            self._revoked = self._read(self._path)
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


def _parse(certificate_pem: bytes) -> x509.Certificate:
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
        raise CertificateError(
            "expected a certificate with the party's name as common name and DNS name, got "
            f"{[each.value for each in common]} and {names}; issue one with `xvfl certs issue`"
        )
    return str(common[0].value)
