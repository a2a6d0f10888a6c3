"""Metrics of the connections to the parties, for the status of a coordinator."""

from collections.abc import Iterable, Sequence
from typing import Any

from xvfl.federation.remote_party import RemoteParty


def connected_parties(parties: Iterable[RemoteParty]) -> dict[str, int]:
    """Return for each party 1 if it is connected, otherwise 0."""
    return {each.name: int(each.transport.hello() is not None) for each in parties}


def party_metrics(parties: Sequence[RemoteParty]) -> dict[str, Any]:
    """Return who is connected, and traffic and response times, by party."""
    traffic = {each.name: each.transport.traffic() for each in parties}
    return {
        "party_present": connected_parties(parties),
        "party_bytes_sent": {name: sent for name, (sent, _) in traffic.items()},
        "party_bytes_received": {name: received for name, (_, received) in traffic.items()},
        "party_latency_seconds": {
            each.name: each.latency for each in parties if each.latency is not None
        },
    }
