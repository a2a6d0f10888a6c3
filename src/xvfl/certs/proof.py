"""A coordinator proves to a party which certificate it has.

gRPC checks the coordinator's certificate but does not show it to the party, which therefore could
not look it up in a revocation list. The party sends a nonce; the coordinator signs it, with the
party's certificate, so that a signature for one party is of no use with another.
"""

import ipaddress
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from xvfl.certs.peers import PeerVerifier, parse_certificate
from xvfl.certs.signatures import is_signed, sign
from xvfl.errors import CertificateError
from xvfl.wire.messages import Proof

CONTEXT = b"xvfl coordinator proof 1"


class TlsFiles(Protocol):
    """Files that may be renewed while they are in use."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the authorities, the certificate and the private key."""
        ...


def prover(tls: TlsFiles) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Return a function that signs a nonce for a party with the coordinator's key."""

    def prove(nonce: bytes, party: bytes) -> tuple[bytes, bytes]:
        _, certificate, key = tls.read()
        return certificate, sign(key, _statement(nonce, party))

    return prove


def proof_checker(
    tls: TlsFiles, address: str, peers: PeerVerifier
) -> Callable[[bytes, Proof], None]:
    """Return a function that checks a coordinator's proof: signature, purpose, host, revocation.

    Parameters
    ----------
    tls : TlsFiles
        The party's files.
    address : str
        HOST:PORT of the coordinator.
    peers : PeerVerifier
        Checks the issuer and the revocation list.
    """
    used, checked = tls.read()[1], b""

    def check(nonce: bytes, proof: Proof) -> None:
        nonlocal used, checked
        own = tls.read()[1]
        if nonce == checked and own != used:
            raise CertificateError("this party's certificate was renewed: connecting with it")
        certificate = check_coordinator(proof.certificate, address, peers)
        # The file may have been renewed since the connection was opened.
        signed = (_statement(nonce, each) for each in (own, used))
        if not any(is_signed(certificate, proof.signature, each) for each in signed):
            raise CertificateError(
                "the coordinator's signature does not fit its certificate; "
                "someone may intercept the connection"
            )
        used, checked = own, nonce

    return check


def check_coordinator(pem: bytes, address: str, peers: PeerVerifier) -> x509.Certificate:
    """Return a coordinator's certificate; raise if it is not trusted, or not for its address."""
    certificate, host = parse_certificate(pem), address.rpartition(":")[0].strip("[]")
    peers.check_trusted(pem, "the coordinator")
    if not _is_server(certificate, host):
        raise CertificateError(
            f"the coordinator's certificate is not one of a server at {host!r}; "
            "its operator must request one for this host"
        )
    return certificate


def _statement(nonce: bytes, party: bytes) -> bytes:
    certificate = x509.load_pem_x509_certificate(party).public_bytes(Encoding.DER)
    return CONTEXT + sha256(nonce).digest() + sha256(certificate).digest()


def _is_server(certificate: x509.Certificate, host: str) -> bool:
    """Return whether a certificate is for a server at this host."""
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    if ExtendedKeyUsageOID.SERVER_AUTH not in purposes:
        return False
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass
    host = host.lower()
    known = {name.lower() for name in names.get_values_for_type(x509.DNSName)}
    return host in known or f"*.{host.partition('.')[2]}" in known
