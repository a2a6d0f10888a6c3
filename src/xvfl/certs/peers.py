"""Who a peer is by its certificate, and whether that was revoked.

TLS itself checks signature, dates and purpose, but gRPC reads no revocation list: this does.
"""

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from xvfl.certs import pem_files
from xvfl.errors import CertificateError


def peer_name(certificate_pem: bytes) -> str:
    """Give the name in a peer's certificate: the common name, which must be a DNS name too."""
    return _name(_parse(certificate_pem))


class Peers:
    """Check the peers of a running service; a list that changes on the disk is read again."""

    def __init__(self, authority: Path, revoked: Path | None) -> None:
        self._authority = pem_files.read(authority, x509.load_pem_x509_certificate, "a certificate")
        self._path = revoked
        self._stamp: tuple[int, int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        self._refresh()

    def check(self, certificate_pem: bytes) -> str:
        """Give the peer's name, or refuse a certificate that is revoked or of another authority."""
        certificate = _parse(certificate_pem)
        name = _name(certificate)
        try:
            certificate.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise CertificateError(
                f"{name!r}: its certificate is not signed by the authority trusted here; "
                "ask for one that is"
            ) from error
        self._refresh()
        if certificate.serial_number in self._serials:
            raise CertificateError(
                f"{name!r}: its certificate {certificate.serial_number:x} is revoked; "
                "ask the operator for a new one"
            )
        return name

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except OSError as error:
            raise CertificateError(
                f"{self._path}: expected a revocation list, but it cannot be read "
                f"({error.strerror}); put it back, nobody is let in without it"
            ) from error
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._serials = self._read(self._path)
            self._stamp = stamp

    def _read(self, path: Path) -> frozenset[int]:
        revoked = pem_files.read(path, x509.load_pem_x509_crl, "a revocation list")
        public = self._authority.public_key()
        assert isinstance(
            public, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey, ed25519.Ed25519PublicKey)
        )
        if revoked.issuer != self._authority.subject or not revoked.is_signature_valid(public):
            raise CertificateError(
                f"{path}: not signed by the authority trusted here; use the list of that authority"
            )
        return frozenset(each.serial_number for each in revoked)


def _parse(certificate_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise CertificateError(f"expected a certificate in PEM form ({error})") from error


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
