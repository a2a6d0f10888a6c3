"""A coordinator proves to a party which certificate it has.

gRPC checks the coordinator's certificate but does not show it to the party, which therefore could
not look it up in a revocation list. The party sends a nonce; the coordinator signs it, with the
party's certificate, so that a signature for one party is of no use with another.
"""

import ipaddress
from collections.abc import Callable
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from xvfl.certs.peers import PeerVerifier, parse_certificate
from xvfl.errors import CertificateError
from xvfl.wire.messages import Proof
from xvfl.wire.tls import Tls

CONTEXT = b"xvfl coordinator proof 1"
PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)


def prover(tls: Tls) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Return a function that signs a nonce for a party with the coordinator's key."""
    _, certificate, pem = tls.read()
    key = load_pem_private_key(pem, None)

    def prove(nonce: bytes, party: bytes) -> tuple[bytes, bytes]:
        statement = _statement(nonce, party)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return certificate, key.sign(statement, ec.ECDSA(hashes.SHA256()))
        if isinstance(key, rsa.RSAPrivateKey):
            return certificate, key.sign(statement, PSS, hashes.SHA256())
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return certificate, key.sign(statement)
        raise CertificateError(
            f"private_key: expected an EC, RSA or Ed25519 key, got {type(key).__name__}"
        )

    return prove


def proof_checker(tls: Tls, address: str, peers: PeerVerifier) -> Callable[[bytes, Proof], None]:
    """Return a function that checks a coordinator's proof: signature, purpose, host, revocation.

    Parameters
    ----------
    tls : Tls
        The party's files.
    address : str
        HOST:PORT of the coordinator.
    peers : PeerVerifier
        Checks the issuer and the revocation list.
    """
    own, host = tls.read()[1], address.rpartition(":")[0].strip("[]")

    def check(nonce: bytes, proof: Proof) -> None:
        certificate = parse_certificate(proof.certificate)
        peers.check_trusted(certificate, "the coordinator")
        if not _is_server(certificate, host):
            raise CertificateError(
                f"the coordinator's certificate is not one of a server at {host!r}; "
                "its operator must request one for this host"
            )
        if not _is_signed(certificate, proof.signature, _statement(nonce, own)):
            raise CertificateError(
                "the coordinator's signature does not fit its certificate; "
                "someone may intercept the connection"
            )

    return check


def _statement(nonce: bytes, party: bytes) -> bytes:
    certificate = x509.load_pem_x509_certificate(party).public_bytes(Encoding.DER)
    return CONTEXT + sha256(nonce).digest() + sha256(certificate).digest()


def _is_signed(certificate: x509.Certificate, signature: bytes, statement: bytes) -> bool:
    public = certificate.public_key()
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, statement, ec.ECDSA(hashes.SHA256()))
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, statement, PSS, hashes.SHA256())
        elif isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(signature, statement)
        else:
            return False
    except InvalidSignature:
        return False
    return True


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
