"""Certificates: a small authority for trials, and the check of a peer's certificate.

Real deployments bring certificates of their own; they need the same two things in them: the party's
name as common name and DNS name, and signing by the authority that the coordinator trusts.
"""

from xvfl.certs.authority import Authority, Issued, make_authority, open_authority
from xvfl.certs.peers import Peers, peer_name

__all__ = ["Authority", "Issued", "Peers", "make_authority", "open_authority", "peer_name"]
