"""Chains of certificates: a certificate, intermediate authorities, an authority that is trusted.

TLS validates the whole chain when a peer connects. A connection stays open longer than its
certificates may be valid, so their dates, and the revocation lists, are checked again here.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from xvfl.errors import CertificateError

MAX_CERTIFICATES = 8
"""Certificates of a chain, and trusted authorities."""


def parse_certificates(pem: bytes) -> list[x509.Certificate]:
    """Parse one or more certificates in PEM format; the first one is the owner's."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"expected a certificate in PEM format ({error})") from error
    if not 1 <= len(found) <= MAX_CERTIFICATES:
        raise CertificateError(
            f"expected 1 to {MAX_CERTIFICATES} certificates in a file, got {len(found)}"
        )
    return found


def find_chain(
    given: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """Return the path from the first given certificate to an authority; raise if there is none."""
    path = [given[0]]
    while len(path) <= len(given):
        below = len(path) - 1
        for authority in authorities:
            if _may_issue(authority, below) and is_issued_by(path[-1], authority):
                return [*path, authority]
        above = [
            each
            for each in given[1:]
            if each not in path and _may_issue(each, below) and is_issued_by(path[-1], each)
        ]
        if not above:
            break
        path.append(above[0])
    raise CertificateError(f"{common_name(path[-1])!r}: not issued by a trusted authority")


def check_dates(chain: Sequence[x509.Certificate]) -> None:
    """Raise if a certificate above the first one is not valid now."""
    now = datetime.now(UTC)
    for each in chain[1:]:
        if not each.not_valid_before_utc <= now <= each.not_valid_after_utc:
            raise CertificateError(
                f"the certificate of the authority {common_name(each)!r} is valid from "
                f"{each.not_valid_before_utc:%F} to {each.not_valid_after_utc:%F %T} UTC; its "
                "operator must renew it"
            )


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate, or all of its name."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value if names else certificate.subject.rfc4514_string())[:100]


def _may_issue(certificate: x509.Certificate, below: int) -> bool:
    """Return whether a certificate is one of an authority, with this many others below it."""
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return basic.ca and (basic.path_length is None or below <= basic.path_length)
