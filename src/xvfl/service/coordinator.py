"""The process of `xvfl coordinator`: listen for parties, match ids, train, evaluate, release."""

import errno
from collections.abc import Mapping
from contextlib import ExitStack

from xvfl.certs.release_key import PUBLIC_KEY
from xvfl.errors import RunError
from xvfl.federation.request_limits import UNLIMITED
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import read_source
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.listener import listen
from xvfl.service.outcome import RunOutcome
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.status_server import StatusServer
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals
from xvfl.wire.in_process import InProcessTransport, OfflineTransport
from xvfl.wire.transport import Transport


def serve_coordinator(
    config: CoordinatorConfig, show: bool = True, retrain: bool = False
) -> RunOutcome:
    """Train until the run is finished or a signal stops this process.

    A restarted coordinator resumes from its last checkpoint.

    Parameters
    ----------
    config : CoordinatorConfig
        The configuration of the coordinator.
    show : bool, default=True
        Print the log on standard error as well.
    retrain : bool, default=False
        Train another head on the stored uploads, although one is finished.

    Returns
    -------
    RunOutcome

    """
    service = CoordinatorService(config, show, retrain)
    log = service.log
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals(timeout=STOP_TIMEOUT_S))
        transports: Mapping[str, Transport]
        status_address = config.status_address
        try:
            server = stack.enter_context(listen(config, log, service.check_hello))
            transports = server.transports
            address = f"{config.listen.rpartition(':')[0]}:{server.port}"
            log({"event": "listening", "address": address, "parties": list(config.parties)})
        except RunError as error:
            used = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
            if not used or service.needs_parties:
                raise
            # All uploads are stored: train beside a process that predicts at these addresses.
            log({"event": "not_listening", "address": config.listen, "reason": str(error)})
            transports = {name: OfflineTransport() for name in config.parties}
            status_address = None
        service.connect({**transports, **_local_party(service)})
        if status_address is not None:
            status_server = StatusServer(
                status_address, service.status, config.status_allowed_hosts
            )
            stack.callback(status_server.close)
            log({"event": "status_server", "port": status_server.port})
        return service.run(stop)


def _local_party(service: CoordinatorService) -> dict[str, Transport]:
    """Start the party in this process, if the configuration has one."""
    config = service.config
    party = config.local_party
    if party is None:
        return {}
    folder = RunDir(service.folder / party.name)
    folder.create()
    source = read_source(party.table, party.id_column, party.name)
    inputs = PartyInputs(
        party.name,
        source,
        party.options,
        folder,
        config.matching,
        party.id_column,
        service.folder / PUBLIC_KEY,
        limits=UNLIMITED,
        training="upload" if service.uploads else "interactive",
        encoder=party.encoder,
    )
    endpoint = open_party(inputs, service.log).endpoint
    return {party.name: InProcessTransport(endpoint.hello, endpoint.handle)}
