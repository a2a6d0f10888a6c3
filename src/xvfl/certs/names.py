"""Names in certificates: of a party or the coordinator, and of the hosts of a server."""

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress

from cryptography import x509

from xvfl.errors import CertificateError

RESERVED = "ca"
"""The authority's own name in its folder."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+")


def check_name(name: str) -> None:
    """Reject a name that is no name of a party, or of a file of the authority."""
    if not NAME.fullmatch(name):
        raise CertificateError(
            f"{name[:100]!r}: expected a name of at most 63 ASCII letters, digits, dots, hyphens "
            "and underscores that starts and ends with a letter or digit"
        )
    if name.lower() == RESERVED:
        raise CertificateError(f"{name!r}: reserved for the authority; choose another name")


def alternative_names(name: str, hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """Return the alternative names of a certificate: the name, and the hosts of a server."""
    return x509.SubjectAlternativeName([x509.DNSName(name), *map(_host, hosts)])


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not HOST.fullmatch(host):
        raise CertificateError(f"{host!r}: expected a host name or an IP address, without a port")
    return x509.DNSName(host)
