"""Certificates: a certificate authority for trials, and the verification of a peer's certificate.

Production deployments use their own certificates. These need two properties: the party's name is
the common name and a DNS name, and the authority that the coordinator trusts has signed them.
"""

from xvfl.certs.authority import Authority, IssuedCertificate, create_authority, open_authority
from xvfl.certs.peers import PeerVerifier, peer_name

__all__ = [
    "Authority",
    "IssuedCertificate",
    "PeerVerifier",
    "create_authority",
    "open_authority",
    "peer_name",
]
