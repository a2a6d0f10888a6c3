"""Metrics of the connections to the parties, for the status of a coordinator."""

import time
from collections.abc import Sequence
from typing import Any

from xvfl.federation.remote_party import RemoteParty


def party_metrics(parties: Sequence[RemoteParty]) -> dict[str, Any]:
    """Return who is connected, and traffic and response times, by party."""
    now = time.monotonic()
    traffic = {each.name: each.transport.traffic() for each in parties}
    return {
        "party_present": {each.name: int(each.transport.hello() is not None) for each in parties},
        "party_bytes_sent": {name: sent for name, (sent, _) in traffic.items()},
        "party_bytes_received": {name: received for name, (_, received) in traffic.items()},
        "party_latency_seconds": {
            each.name: each.latency for each in parties if each.latency is not None
        },
        "party_last_seen_seconds": {
            each.name: round(now - each.replied_at, 1)
            for each in parties
            if each.replied_at is not None
        },
    }
