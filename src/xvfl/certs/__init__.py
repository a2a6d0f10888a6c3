"""Certificates: a certificate authority for trials, and the verification of a peer's certificate.

Production deployments use their own certificates. These need two properties: the party's name is
the common name and a DNS name, and an authority that the coordinator trusts has signed them, or an
intermediate authority below it.
"""

from xvfl.certs.authority import Authority, IssuedCertificate, create_authority, open_authority
from xvfl.certs.peers import PeerVerifier, peer_name
from xvfl.certs.signing_request import create_request, read_request

__all__ = [
    "Authority",
    "IssuedCertificate",
    "PeerVerifier",
    "create_authority",
    "create_request",
    "open_authority",
    "peer_name",
    "read_request",
]
