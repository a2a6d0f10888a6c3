"""The process of `xvfl coordinator`: match ids with parties, train, evaluate, release.

It listens for the parties, or uses the connections of a process that predicts (`--serve`).
"""

import errno
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from xvfl.errors import RunError
from xvfl.relay import borrow_connections
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.listener import TRAINING, CheckHello, listen
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.run_description import RunOutcome
from xvfl.service.status_server import serve_status
from xvfl.system.event_log import LogFunction
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals
from xvfl.wire.in_process import InProcessTransport, OfflineTransport
from xvfl.wire.server import CoordinatorServer
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
        try:
            transports, server = open_connections(
                config, log, {TRAINING: service.check_hello}, stack
            )
        except RunError as error:
            used = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
            if not used or service.needs_parties:
                raise
            # All uploads are stored: no party is needed.
            log({"event": "not_listening", "address": config.listen, "reason": str(error)})
            transports, server = {name: OfflineTransport() for name in config.parties}, None
        if server is not None:
            describe = server.status
            serve_status(config, lambda: {**service.status(), **describe()}, log, stack)
        service.connect({**transports, **open_local_party(service)})
        return service.run(stop)


def open_connections(
    config: CoordinatorConfig,
    log: LogFunction,
    checks: Mapping[str, CheckHello],
    stack: ExitStack,
) -> tuple[Mapping[str, Transport], CoordinatorServer | None]:
    """Listen for parties, or borrow the connections of the process that does."""
    lent = stack.enter_context(borrow_connections(Path(config.state_dir), config.parties))
    if lent is not None:
        reason = "another process of this coordinator listens; this one uses its connections"
        log({"event": "not_listening", "address": config.listen, "reason": reason})
        return lent, None
    server = stack.enter_context(listen(config, log, checks))
    log_listening(config, server, log)
    return server.transports, server


def log_listening(config: CoordinatorConfig, server: CoordinatorServer, log: LogFunction) -> None:
    """Log the address of the port for parties."""
    address = f"{config.listen.rpartition(':')[0]}:{server.port}"
    log({"event": "listening", "address": address, "parties": list(config.parties)})


def open_local_party(service: CoordinatorService) -> dict[str, Transport]:
    """Start the party in this process, if the configuration has one."""
    if service.config.local_party is None:
        return {}
    inputs = PartyInputs.of_local_party(service.config, service.uploads)
    endpoint = open_party(inputs, service.log).endpoint
    return {inputs.name: InProcessTransport(endpoint.hello, endpoint.handle)}
