"""Sign with the private key of a TLS certificate, and verify with the certificate."""

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from xvfl.errors import CertificateError

PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)


def sign(private_key: bytes, statement: bytes) -> bytes:
    """Sign a statement with a private key in PEM format."""
    key = load_pem_private_key(private_key, None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(statement, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(statement, PSS, hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(statement)
    raise CertificateError(
        f"private_key: expected an EC, RSA or Ed25519 key, got {type(key).__name__}"
    )


def is_signed(certificate: x509.Certificate, signature: bytes, statement: bytes) -> bool:
    """Return whether a signature of a statement is by the key of a certificate."""
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
