"""The process of `xvfl party`: connect to the coordinator, reply to requests.

With `--serve`, it replies to requests for the rows that are opened for prediction.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from xvfl.certs import PeerVerifier, peer_name
from xvfl.certs.clocks import PeerClocks
from xvfl.certs.loaded_tls import LoadedTls
from xvfl.certs.proof import proof_checker
from xvfl.certs.tls_diagnosis import diagnose_tls
from xvfl.errors import ConfigError, PartyError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.model.dashboard.state_folder import describe_party
from xvfl.model.fitting import choose_device
from xvfl.service.config import PartyProcessConfig
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.service.prediction.assisted_prediction import AssistedPredictor
from xvfl.service.prediction.http_endpoint import start_endpoint
from xvfl.service.prediction.party_prediction import PartyPredictor
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import serve_status
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.system.event_log import FINISHED, EventLog, LogFunction
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals
from xvfl.trail.acknowledgements import exchange_newest
from xvfl.training.threads import limit_threads
from xvfl.wire.client import PartyClient

Party = PartyService | UploadPartyService | PartyPredictor


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
    _run(config, open_party(PartyInputs.load(name, config, folder), log), log)


def serve_party_predictions(
    config: PartyProcessConfig, show: bool = True, again: bool = False
) -> None:
    """Answer the coordinator's prediction requests until a signal stops this process.

    Parameters
    ----------
    config : PartyProcessConfig
        The configuration of this party, with a section `[prediction]`.
    show : bool, default=True
        Print the log on standard error as well.
    again : bool, default=False
        Match the ids of the prediction table once more.

    """
    opened = config.prediction
    if opened is None:
        raise ConfigError(
            "prediction: expected a section [prediction] with the `table` to open for prediction"
        )
    name = peer_name(config.tls.read()[1])
    folder, log = open_state_dir(config, name, show)
    inputs = PartyInputs.load(name, config, folder, opened.table)
    _run(config, PartyPredictor(inputs, opened.limits, log, again), log)


def open_party(inputs: PartyInputs, log: LogFunction) -> "PartyService | UploadPartyService":
    """Load a party that uploads, or takes part in interactive training, as its inputs say."""
    kind = UploadPartyService if inputs.config.training == "upload" else PartyService
    return kind(inputs, log)


def connect_party(
    config: PartyProcessConfig,
    endpoint: RequestEndpoint,
    log: LogFunction,
    reconnect_timeout: float,
) -> PartyClient:
    """Build the client that passes a coordinator's requests to an endpoint."""
    tls, clocks = LoadedTls(config.tls, log), PeerClocks(log)
    peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list, log)
    return PartyClient(
        config.coordinator,
        tls.client_credentials,
        lambda: endpoint.hello,
        endpoint.handle,
        lambda: endpoint.end_reason is not None,
        log,
        config.max_message_bytes,
        reconnect_timeout,
        proof_checker(tls, config.coordinator, peers),
        diagnose=partial(diagnose_tls, config.coordinator, config.tls),
        on_clock=partial(clocks.compare, ""),
        status=lambda: {
            **tls.status(),
            "clock_ahead_seconds": clocks.ahead.get(""),
            "clock_warning": clocks.warning,
        },
    )


def _run(config: PartyProcessConfig, party: Party, log: EventLog) -> None:
    """Reply to the coordinator's requests until it ends them, or a signal stops this process."""
    endpoint, settings, own = party.endpoint, config.prediction, party.inputs
    client = connect_party(config, endpoint, log, config.reconnect_timeout)
    with ExitStack() as stack:
        serve_status(config, lambda: _status(party, client), log, stack)
        stack.callback(party.close)
        stack.enter_context(stop_on_signals(on_stop=client.stop, timeout=STOP_TIMEOUT_S))
        stack.enter_context(exchange_newest(own.folder.path, own.name, client, log))
        if isinstance(party, PartyPredictor) and settings and settings.address is not None:
            assisted = AssistedPredictor(party.inputs, party.handles, client.call, log)
            start_endpoint(settings, assisted, {"party": party.inputs.name}, log, stack)
        rows = "prediction_rows" if isinstance(party, PartyPredictor) else "rows"
        log({"event": "started", "coordinator": config.coordinator, rows: len(party.table.ids)})
        stack.enter_context(limit_threads(False, choose_device(config.device)))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        client.run()
    log({"event": "stopped", "reason": endpoint.end_reason or "stop signal"})
    if endpoint.end_reason not in (None, FINISHED):
        raise PartyError(f"the coordinator ended this party's part: {endpoint.end_reason}")


def _status(party: Party, client: PartyClient) -> dict[str, Any]:
    return {
        "healthy": client.connected,
        "problem": "" if client.connected else "no connection to the coordinator",
        "side": "party",
        "name": party.inputs.name,
        "connected": client.connected,
        "matched_rows": party.endpoint.hello.rows,
        "requests_rejected": party.endpoint.n_rejected,
        **describe_party(party.inputs.folder.path),
        **client.status(),
        **party.status(),
    }
