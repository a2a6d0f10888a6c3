"""Settings of the HTTP endpoint of prediction by the federation: address, callers, certificate."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xvfl.errors import ConfigError, WireError
from xvfl.service.prediction.prediction_config import CoordinatorPrediction, PartyPrediction
from xvfl.wire.texts import NAME
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import is_loopback
from xvfl_serve.http.server import server_tls

MIN_DEADLINE_S = 0.01
"""Shortest time that a request may demand."""


@dataclass(frozen=True)
class EndpointSettings:
    """Address, callers and limits of an endpoint."""

    address: str
    tokens: str | None
    deadline: float
    max_rows: int
    certificate: str | None = None
    private_key: str | None = None

    @classmethod
    def of(cls, section: CoordinatorPrediction | PartyPrediction) -> "EndpointSettings":
        """Read the settings from a section `[prediction]` with an address."""
        assert section.address is not None
        return cls(
            section.address,
            section.tokens,
            section.deadline,
            section.max_rows,
            section.certificate,
            section.private_key,
        )


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


def load_certificate(settings: EndpointSettings) -> ssl.SSLContext | None:
    """Load the certificate and its key, if there is one."""
    if settings.certificate is None:
        return None
    try:
        return server_tls(settings.certificate, settings.private_key)
    except ServeError as error:
        raise ConfigError(f"prediction.certificate: {error}") from error


def check_exposure(host: str, address: str, callers: Mapping[str, str]) -> None:
    """Reject an endpoint that other machines can use without a token."""
    if not (is_loopback(host) or callers):
        raise ConfigError(
            f"prediction.address: other machines could predict at {address} without a token; set "
            "prediction.tokens"
        )
