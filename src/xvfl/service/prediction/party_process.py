"""The process of `xvfl party CONFIG --serve`: answer requests for the opened rows."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from xvfl.certs import peer_name
from xvfl.errors import ConfigError, PartyError
from xvfl.model.fitting import choose_device
from xvfl.model.workflow import read_source
from xvfl.service.config import PartyProcessConfig
from xvfl.service.connector import connect_party
from xvfl.service.prediction.assisted_prediction import AssistedPredictor
from xvfl.service.prediction.endpoint import start_endpoint
from xvfl.service.prediction.party_prediction import PartyPredictor
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import StatusServer
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals
from xvfl.training.threads import limit_threads
from xvfl.wire.client import PartyClient


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
    source = read_source(opened.table, config.id_column, name)
    predictor = PartyPredictor(
        name,
        folder,
        source,
        config.matching,
        opened.limits,
        config.device,
        log,
        again,
        Path(config.release_key) if config.release_key else None,
        config.id_column,
    )
    endpoint = predictor.endpoint
    client = connect_party(config, predictor.table.hello, endpoint, log, config.reconnect_timeout)
    with ExitStack() as stack:
        if config.status_address is not None:
            server = StatusServer(
                config.status_address,
                lambda: _status(predictor, client),
                config.status_allowed_hosts,
            )
            stack.callback(server.close)
            log({"event": "status_server", "port": server.port})
        stack.enter_context(stop_on_signals(on_stop=client.stop, timeout=STOP_TIMEOUT_S))
        if opened.address is not None:
            assisted = AssistedPredictor(
                name,
                folder,
                source,
                config.matching.rule,
                predictor.handles,
                client.call,
                log,
                opened.min_parties,
            )
            start_endpoint(opened, assisted, {"party": name}, log, stack)
        rows = len(predictor.table.ids)
        log({"event": "started", "coordinator": config.coordinator, "prediction_rows": rows})
        stack.enter_context(limit_threads(False, choose_device(config.device)))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        client.run()
    log({"event": "stopped", "reason": endpoint.end_reason or "stop signal"})
    if endpoint.end_reason is not None:
        raise PartyError(f"the coordinator ended this party's part: {endpoint.end_reason}")


def _status(predictor: PartyPredictor, client: PartyClient) -> dict[str, Any]:
    endpoint = predictor.endpoint
    return {
        "healthy": client.connected,
        "problem": "" if client.connected else "no connection to the coordinator",
        "side": "party",
        "predicting": True,
        "name": predictor.name,
        "connected": client.connected,
        "matched_rows": endpoint.hello.rows,
        "requests_rejected": endpoint.n_rejected,
        **endpoint.usage,
    }
