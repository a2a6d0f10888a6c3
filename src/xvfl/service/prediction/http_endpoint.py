"""The HTTP endpoint of prediction by the federation, from a section `[prediction]`."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from xvfl.errors import ConfigError, RunError, XVFLError
from xvfl.service.addresses import parse_address
from xvfl.service.port_access import port_access, port_tls
from xvfl.service.prediction.assisted_prediction import AssistedPredictor
from xvfl.service.prediction.coordinator_prediction import CoordinatorPredictor
from xvfl.service.prediction.prediction_config import CoordinatorPrediction, PartyPrediction
from xvfl.system.event_log import LogFunction
from xvfl.version import VERSION
from xvfl_serve.http.access import is_loopback
from xvfl_serve.http.id_endpoint import IdEndpoint, IdSettings, PredictionService
from xvfl_serve.http.micro_batches import MicroBatcher

Section = CoordinatorPrediction | PartyPrediction


def start_endpoint(
    section: Section,
    predictor: CoordinatorPredictor | AssistedPredictor,
    about: Mapping[str, Any],
    log: LogFunction,
    stack: ExitStack,
) -> None:
    """Serve the predictions of a process until the stack is closed; `about` is in every answer."""
    batcher = MicroBatcher(predictor.answer, section.max_rows)
    stack.callback(batcher.close)
    service = PredictionService(
        predictor.mode,
        predictor.find_row,
        predictor.prior,
        batcher.submit,
        about,
        predictor.check_ready,
        (XVFLError,),
    )
    endpoint = open_endpoint(section, service, log)
    stack.callback(endpoint.close)
    log({"event": "prediction_endpoint", "port": endpoint.port, "ids": predictor.n_ids})


def open_endpoint(section: Section, service: PredictionService, log: LogFunction) -> IdEndpoint:
    """Listen on the address of a section."""
    assert section.address is not None
    _, port = parse_address(section.address, "prediction.address")
    access = port_access(section.address, "prediction.address", section.tokens, log)
    if not (is_loopback(access.host) or access.callers()):
        raise ConfigError(
            f"prediction.address: other machines could predict at {section.address} without a "
            "token; set prediction.tokens"
        )
    certificate, key = section.certificate, section.private_key
    tls = port_tls(certificate, key, "prediction.certificate", log)
    try:
        settings = IdSettings(access, port, section.deadline, section.max_rows, tls, VERSION)
        return IdEndpoint(settings, service, log)
    except (OSError, OverflowError) as error:
        raise RunError(
            f"prediction.address: cannot listen on {section.address} ({error}); choose another"
        ) from error
