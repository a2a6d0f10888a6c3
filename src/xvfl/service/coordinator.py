"""The process of `xvfl coordinator`: listen for parties, match ids, train, evaluate, release."""

import errno
from collections.abc import Mapping
from contextlib import ExitStack

from xvfl.errors import RunError
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.listener import listen
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.run_description import RunOutcome
from xvfl.service.status_server import serve_status
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
        listening = True
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
            listening = False
        service.connect({**transports, **_local_party(service)})
        if listening:
            serve_status(config, lambda: {**service.status(), **server.status()}, log, stack)
        return service.run(stop)


def _local_party(service: CoordinatorService) -> dict[str, Transport]:
    """Start the party in this process, if the configuration has one."""
    if service.config.local_party is None:
        return {}
    inputs = PartyInputs.of_local_party(service.config, service.uploads)
    endpoint = open_party(inputs, service.log).endpoint
    return {inputs.name: InProcessTransport(endpoint.hello, endpoint.handle)}
