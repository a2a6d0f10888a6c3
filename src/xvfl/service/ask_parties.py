"""Ask the operators of parties for their consent, at the coordinator."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from xvfl.errors import InputError, PartyError, unknown
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.service.align import wait_for_party
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator import open_connections
from xvfl.service.party_approvals import ALLOW
from xvfl.system.event_log import LogFunction
from xvfl.wire.messages import AskApproval, Done
from xvfl.wire.request_ids import next_request_id


def ask_parties(
    config: CoordinatorConfig,
    names: Sequence[str],
    kind: str,
    reason: str,
    timeout: float,
    log: LogFunction,
) -> Iterator[str]:
    """Ask the operators of parties; yield the name of each one that has the request."""
    if kind not in ALLOW:
        raise InputError(f"KIND: {unknown('request', kind, ALLOW)}")
    for name in names:
        if name not in config.parties:
            raise InputError(f"--party: {unknown('party', name, config.parties)}")
    with ExitStack() as stack:
        transports, _ = open_connections(config, log, {}, stack)
        for name in names:
            wait_for_party(name, transports[name], timeout)
            request = AskApproval(next_request_id(), kind, reason)
            try:
                request_all([RemoteParty(name, transports[name])], [request], Done)
            except PartyError as error:
                raise PartyError(f"{name}: {error}", (name,), error.fault) from error
            yield name
