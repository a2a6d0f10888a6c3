"""A party's client, with the check of the coordinator's certificate."""

from collections.abc import Callable

from xvfl.certs import PeerVerifier
from xvfl.certs.proof import proof_checker
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.service.config import PartyProcessConfig
from xvfl.service.log import LogFunction
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Hello


def connect_party(
    config: PartyProcessConfig,
    hello: Callable[[], Hello],
    endpoint: RequestEndpoint,
    log: LogFunction,
    reconnect_timeout: float,
) -> PartyClient:
    """Build the client that passes a coordinator's requests to an endpoint."""
    peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list, log)
    return PartyClient(
        config.coordinator,
        config.tls,
        hello,
        endpoint.handle,
        lambda: endpoint.end_reason is not None,
        log,
        config.max_message_bytes,
        reconnect_timeout,
        proof_checker(config.tls, config.coordinator, peers),
    )
