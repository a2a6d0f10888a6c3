"""The process of `xvfl coordinator CONFIG --serve`: predict with the parties that are online.

Without a finished head it trains one first. It lends its connections to later trainings.
"""

from collections import ChainMap
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import cast

import torch

from xvfl.data.frames import read_frame
from xvfl.errors import ConfigError, XVFLError
from xvfl.federation.prediction_ledger import PredictionLimits
from xvfl.model.run_dir import RunDir
from xvfl.relay import LOCK as BORROWED
from xvfl.relay import lend_connections
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator import log_listening
from xvfl.service.coordinator import open_local_party as open_training_party
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.head_store import HeadStore
from xvfl.service.listener import TRAINING, CheckHello, listen
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.coordinator_prediction import CoordinatorPredictor
from xvfl.service.prediction.http_endpoint import start_endpoint
from xvfl.service.prediction.party_prediction import PREDICTION, PartyPredictor
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import StatusFunction, serve_status
from xvfl.service.trained_heads import load_federated_model
from xvfl.system.event_log import LogFunction
from xvfl.system.locks import is_locked
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals, stopped_event
from xvfl.training.threads import limit_threads
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.server import Answer, CoordinatorServer, reject_request
from xvfl.wire.transport import Transport

NO_BUDGET = PredictionLimits(2**31, 2**31, 2**31)
"""Budgets of the coordinator's own party."""


def serve_predictions(config: CoordinatorConfig, show: bool = True) -> None:
    """Predict until a signal stops this process; train first if no head is finished.

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
    folder, log = open_state_dir(config, "coordinator", show)
    checks, answers = dict[str, CheckHello](), dict[str, Answer]()
    starting = {"healthy": False, "problem": "starting", "side": "coordinator"}
    statuses: list[StatusFunction] = [lambda: starting]
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals(timeout=STOP_TIMEOUT_S))
        stack.enter_context(limit_threads(False, torch.device("cpu")))
        server = stack.enter_context(
            listen(config, log, checks, lambda *asked: answers.get("", reject_request)(*asked))
        )
        log_listening(config, server, log)
        serve_status(config, lambda: {**statuses[-1](), **server.status()}, log, stack)
        if not HeadStore(folder).current_run:
            service = CoordinatorService(config, show)
            service.connect({**server.transports, **open_training_party(service)})
            statuses.append(service.status)
            checks[TRAINING] = service.check_hello
            outcome = service.run(stop)
            del checks[TRAINING]
            if outcome.evaluation is None:
                return
        model = load_federated_model(config)
        id_column = settings.id_column or config.labels.id_column
        ids = list(read_frame(settings.ids, id_column, "prediction.ids").index)
        state = RunDir(folder / PREDICTION).create()
        predictor = CoordinatorPredictor(config, model, ids, state, log)
        local = open_local_party(config, log)
        pool = predictor.connect(
            ChainMap(local, cast(dict[str, Transport], server.by_purpose[PREDICTION]))
        )
        stack.callback(pool.close)
        statuses.append(predictor.status)
        answers[""] = predictor.assist
        start_endpoint(settings, predictor, {}, log, stack)
        stack.enter_context(lend_connections(folder.path, server))
        _follow_heads(config, predictor, server, stop, log)
    log(stopped_event())


def _follow_heads(
    config: CoordinatorConfig,
    predictor: CoordinatorPredictor,
    server: CoordinatorServer,
    stop: Event,
    log: LogFunction,
) -> None:
    """Predict with the current head, and offer releases, until a stop."""
    heads = HeadStore(RunDir(config.state_dir))
    used, failed = heads.current_run, ""
    while not stop.wait(0.5):
        # A training that has borrowed the connections delivers its own.
        if not is_locked(Path(config.state_dir) / BORROWED):
            predictor.offer_releases(server.transports)
        run = heads.current_run
        if run in (used, failed):
            continue
        try:
            # A training may have added parties.
            predictor.use_model(load_federated_model(config, tuple(server.transports)))
            used, failed = run, ""
            log({"event": "head_changed", "run": run})
        except Exception as error:
            # Predictions go on with the head in use.
            failed = run
            reason = str(error) if isinstance(error, XVFLError) else repr(error)
            log({"event": "head_not_changed", "reason": reason})


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
