"""The sections `[prediction]` of the coordinator's and of a party's configuration."""

import math
from dataclasses import dataclass

from xvfl.errors import ConfigError
from xvfl.federation.prediction_ledger import PredictionLimits

MAX_DEADLINE_S = 60.0
MAX_ASSISTED_ROWS = 200
"""Rows of one request for assistance; the help for as many fits into one message."""


@dataclass(frozen=True)
class CoordinatorPrediction:
    """Prediction by the federation, at the coordinator."""

    ids: str
    """The ids that may be predicted: a .csv, .csv.gz, .parquet or .xlsx file, or "sql:SELECT …"
    (DuckDB)."""
    id_column: str | None = None
    """The id column; by default that of the labels."""
    address: str = "127.0.0.1:7490"
    """HOST:PORT of the HTTP endpoint."""
    tokens: str | None = None
    """File of callers and their rights, a name, a token and rights in each line; needed if other
    machines can reach `address`."""
    certificate: str | None = None
    """Certificate of the HTTP endpoint (PEM), which then serves https, for the host of `address`;
    that of `[tls]` may be used."""
    private_key: str | None = None
    """Private key of `certificate`."""
    deadline: float = 2.0
    """Seconds until a request is answered; parties that have not replied by then are left out."""
    min_parties: int = 1
    """Minimum number of parties that must answer. With fewer, requests and `/v2/health/ready`
    return status 503 with `Retry-After`."""
    max_rows: int = 1000
    """Largest number of ids in a request."""
    local_table: str | None = None
    """Prediction table of the local party."""

    def __post_init__(self) -> None:
        _check(self, 4096)
        if self.min_parties < 1:
            raise ConfigError(
                f"prediction.min_parties: expected at least 1, got {self.min_parties}"
            )


@dataclass(frozen=True)
class PartyPrediction:
    """Prediction by the federation, at a party."""

    table: str
    """The rows that may be predicted, with the columns of training: a .csv or .parquet file, an
    .npz file of images, or "sql:SELECT …" (DuckDB)."""
    limits: PredictionLimits = PredictionLimits()
    """Budgets."""
    address: str | None = None
    """HOST:PORT of an HTTP endpoint for the party's own rows, in mode assisted; off by default. It
    needs a released head."""
    tokens: str | None = None
    """File of callers and their rights, as for the coordinator."""
    certificate: str | None = None
    """Certificate of the HTTP endpoint (PEM), which then serves https, issued for the host of
    `address` (`xvfl certs issue --host`); that of `[tls]` has no host."""
    private_key: str | None = None
    """Private key of `certificate`."""
    deadline: float = 2.0
    """Seconds until a request is answered; peers that have not replied by then are left out."""
    max_rows: int = 100
    """Largest number of ids in a request."""

    def __post_init__(self) -> None:
        _check(self, MAX_ASSISTED_ROWS)


def _check(section: CoordinatorPrediction | PartyPrediction, largest: int) -> None:
    deadline, max_rows = section.deadline, section.max_rows
    if (section.certificate is None) != (section.private_key is None):
        raise ConfigError("prediction.certificate: expected also `private_key`, or neither")
    if not (math.isfinite(deadline) and 0 < deadline <= MAX_DEADLINE_S):
        raise ConfigError(
            f"prediction.deadline: expected up to {MAX_DEADLINE_S:g} seconds, got {deadline}"
        )
    if not 1 <= max_rows <= largest:
        raise ConfigError(f"prediction.max_rows: expected 1 to {largest}, got {max_rows}")
