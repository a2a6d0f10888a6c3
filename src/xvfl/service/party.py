"""The process of `xvfl party`: connect to the coordinator, reply to requests, keep checkpoints."""

from contextlib import ExitStack
from typing import Any

import torch

from xvfl.certs import peer_name
from xvfl.errors import PartyError
from xvfl.model.fitting import choose_device
from xvfl.service.config import PartyProcessConfig
from xvfl.service.connector import connect_party
from xvfl.service.log import FINISHED, LogFunction
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import ProgressClock, StatusServer
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals
from xvfl.training.threads import limit_threads
from xvfl.wire.client import PartyClient


def serve_party(config: PartyProcessConfig, show: bool = True) -> None:
    """Take part until the coordinator ends the run, or a signal stops this process.

    Parameters
    ----------
    config : PartyProcessConfig
        The configuration of this party.
    show : bool, default=True
        Print the log on standard error as well.

    Raises
    ------
    PartyError
        If the coordinator ends this party's part before the run is finished.

    """
    name = peer_name(config.tls.read()[1])
    folder, log = open_state_dir(config, name, show)
    inputs = PartyInputs.load(name, config, folder)
    service = open_party(inputs, log)
    endpoint = service.endpoint
    client = connect_party(config, service.table.hello, endpoint, log, config.reconnect_timeout)
    with ExitStack() as stack:
        if config.status_address is not None:
            clock, limit = ProgressClock(), config.progress_timeout
            server = StatusServer(
                config.status_address,
                lambda: _status(service, client, clock, limit),
                config.status_allowed_hosts,
            )
            stack.callback(server.close)
            log({"event": "status_server", "port": server.port})
        stack.callback(service.close)
        stack.enter_context(stop_on_signals(on_stop=client.stop, timeout=STOP_TIMEOUT_S))
        log({"event": "started", "coordinator": config.coordinator, "rows": len(service.table.ids)})
        stack.enter_context(limit_threads(False, choose_device(config.device)))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        client.run()
    log({"event": "stopped", "reason": endpoint.end_reason or "stop signal"})
    if endpoint.end_reason is not None and endpoint.end_reason != FINISHED:
        raise PartyError(f"the coordinator ended this party's part: {endpoint.end_reason}")


def open_party(inputs: PartyInputs, log: LogFunction) -> "PartyService | UploadPartyService":
    """Load a party that uploads, or takes part in interactive training, as its inputs say."""
    kind = UploadPartyService if inputs.training == "upload" else PartyService
    return kind(inputs, log)


def _status(
    service: PartyService | UploadPartyService,
    client: PartyClient,
    clock: ProgressClock,
    limit: float,
) -> dict[str, Any]:
    state, problem = service.status(), ""
    idle = clock.seconds_since_change(state)
    if not client.connected:
        problem = "no connection to the coordinator"
    elif service.busy and idle > limit:
        problem = f"no progress of the training for {idle:.0f} s"
    return {
        "healthy": not problem,
        "problem": problem,
        "side": "party",
        "name": service.inputs.name,
        "connected": client.connected,
        "matched_rows": service.endpoint.hello.rows,
        "requests_rejected": service.endpoint.n_rejected,
        **state,
    }
