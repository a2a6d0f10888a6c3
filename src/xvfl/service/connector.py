"""A party's client, with the check of the coordinator's certificate."""

from collections.abc import Callable
from pathlib import Path

from xvfl.certs import PeerVerifier
from xvfl.certs.proof import proof_checker
from xvfl.federation.endpoint import Endpoint
from xvfl.service.config import PartyProcessConfig
from xvfl.service.log import LogFunction
from xvfl.wire.client import CheckProof, PartyClient
from xvfl.wire.messages import Hello, Proof


def connect_party(
    config: PartyProcessConfig,
    hello: Callable[[], Hello],
    endpoint: Endpoint,
    log: LogFunction,
    reconnect_timeout: float,
) -> PartyClient:
    """Build the client that passes a coordinator's requests to an endpoint."""
    return PartyClient(
        config.coordinator,
        config.tls,
        hello,
        endpoint.handle,
        lambda: endpoint.end_reason is not None,
        log,
        config.max_message_bytes,
        reconnect_timeout,
        _check_proof(config, log),
    )


def _check_proof(config: PartyProcessConfig, log: LogFunction) -> CheckProof:
    if config.revocation_list is None:
        return _accept
    peers = PeerVerifier(Path(config.tls.ca_certificate), Path(config.revocation_list), log)
    return proof_checker(config.tls, config.coordinator, peers)


def _accept(nonce: bytes, proof: Proof) -> None:
    """Accept a coordinator that TLS accepts: this party has no revocation list."""
