"""The process of `xvfl coordinator CONFIG --serve`: predict with the parties that are online."""

from contextlib import ExitStack

import torch

from xvfl.data.frames import read_frame
from xvfl.errors import ConfigError, XVFLError
from xvfl.federation.prediction_ledger import PredictionLimits
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig
from xvfl.service.head_store import HeadStore
from xvfl.service.listener import listen
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.coordinator_prediction import CoordinatorPredictor
from xvfl.service.prediction.http_endpoint import start_endpoint
from xvfl.service.prediction.party_prediction import PREDICTION, PartyPredictor
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import serve_status
from xvfl.service.trained_heads import load_federated_model
from xvfl.system.event_log import LogFunction
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals
from xvfl.training.threads import limit_threads
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.transport import Transport

NO_BUDGET = PredictionLimits(2**31, 2**31, 2**31)
"""Budgets of the coordinator's own party."""


def serve_predictions(config: CoordinatorConfig, show: bool = True) -> None:
    """Predict until a signal stops this process.

    Parameters
    ----------
    config : CoordinatorConfig
        The configuration of the coordinator, with a section `[prediction]`.
    show : bool, default=True
        Print the log on standard error as well.

    """
    settings = config.prediction
    if settings is None:
        raise ConfigError("prediction: expected a section [prediction] with `ids`")
    folder, log = open_state_dir(config, "coordinator", show, create=False)
    model = load_federated_model(config)
    id_column = settings.id_column or config.labels.id_column
    ids = list(read_frame(settings.ids, id_column, "prediction.ids").index)
    state = RunDir(folder / PREDICTION).create()
    predictor = CoordinatorPredictor(config, model, ids, state, log)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals(timeout=STOP_TIMEOUT_S))
        stack.enter_context(limit_threads(False, torch.device("cpu")))
        server = stack.enter_context(
            listen(config, log, predictor.check_hello, "prediction", predictor.assist)
        )
        local = open_local_party(config, log)
        pool = predictor.connect({**server.transports, **local})
        stack.callback(pool.close)
        start_endpoint(settings, predictor, {}, log, stack)
        address = f"{config.listen.rpartition(':')[0]}:{server.port}"
        log({"event": "listening", "address": address, "parties": list(config.parties)})
        serve_status(config, lambda: {**predictor.status(), **server.status()}, log, stack)
        used, failed = HeadStore(folder).current_run, ""
        while not stop.wait(0.5):
            predictor.offer_releases()
            run = HeadStore(folder).current_run
            if run in (used, failed):
                continue
            try:
                predictor.use_model(load_federated_model(config))
                used, failed = run, ""
                log({"event": "head_changed", "run": run})
            except Exception as error:
                # Predictions go on with the head in use.
                failed = run
                reason = str(error) if isinstance(error, XVFLError) else repr(error)
                log({"event": "head_not_changed", "reason": reason})
    log({"event": "stopped", "reason": "stop signal"})


def open_local_party(config: CoordinatorConfig, log: LogFunction) -> dict[str, Transport]:
    """Open the prediction table of the party in this process, if there is one."""
    party, settings = config.local_party, config.prediction
    if party is None or settings is None:
        return {}
    if settings.local_table is None:
        raise ConfigError(
            f"prediction.local_table: expected the prediction table of the local party "
            f"{party.name!r}"
        )
    inputs = PartyInputs.of_local_party(config, False, settings.local_table)
    predictor = PartyPredictor(inputs, NO_BUDGET, log, again=True)
    endpoint = predictor.endpoint
    return {party.name: InProcessTransport(endpoint.hello, endpoint.handle)}
