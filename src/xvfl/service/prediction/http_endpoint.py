"""The HTTP endpoint of prediction by the federation, from a section `[prediction]`."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xvfl.errors import ConfigError, RunError, WireError, XVFLError
from xvfl.service.addresses import parse_address
from xvfl.service.prediction.assisted_prediction import AssistedPredictor
from xvfl.service.prediction.coordinator_prediction import CoordinatorPredictor
from xvfl.service.prediction.prediction_config import CoordinatorPrediction, PartyPrediction
from xvfl.system.event_log import LogFunction
from xvfl.version import VERSION
from xvfl.wire.texts import NAME
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import is_loopback
from xvfl_serve.http.id_endpoint import IdEndpoint, IdSettings, PredictionService
from xvfl_serve.http.micro_batches import MicroBatcher
from xvfl_serve.http.server import server_tls

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
    host, port = parse_address(section.address, "prediction.address")
    tokens = read_tokens(section.tokens)
    if not (is_loopback(host) or tokens):
        raise ConfigError(
            f"prediction.address: other machines could predict at {section.address} without a "
            "token; set prediction.tokens"
        )
    try:
        tls = server_tls(section.certificate, section.private_key) if section.certificate else None
        settings = IdSettings(host, port, tokens, section.deadline, section.max_rows, tls, VERSION)
        return IdEndpoint(settings, service, log)
    except ServeError as error:
        raise ConfigError(f"prediction.certificate: {error}") from error
    except (OSError, OverflowError) as error:
        raise RunError(
            f"prediction.address: cannot listen on {section.address} ({error}); choose another"
        ) from error


def read_tokens(path: str | None) -> dict[str, str]:
    """Read the callers of an endpoint: a name and a token in each line."""
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"prediction.tokens: {path} cannot be read ({error})") from error
    pairs = [line.split() for line in lines if line.strip()]
    callers = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    distinct = len(set(callers.values()))
    if not pairs or len(callers) < len(pairs) or distinct < len(pairs):
        raise ConfigError(
            f"prediction.tokens: {path}: expected a name and a token in each line, all distinct"
        )
    try:
        for name in callers:
            NAME.read(name, "name")
    except WireError as error:
        raise ConfigError(f"prediction.tokens: {path}: {error}") from error
    return callers
